"""One thread a test process: small tensors gain nothing from more, and bits stay the same everywhere.

Without a GPU, Triton's kernels run in its interpreter, which must be asked for before Triton is imported.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def never_waiting() -> Callable[[], AbstractContextManager[None]]:
    """A context in which it is an error that the host waits for the GPU."""

    @contextmanager
    def watch() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return watch
