"""One thread a test process: small tensors gain nothing from more, and bits stay the same everywhere."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
