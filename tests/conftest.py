"""One thread a test process: small tensors gain nothing from more, and bits stay the same everywhere.

Without a GPU, Triton's kernels run in its interpreter, which must be asked for before Triton is imported.
"""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
