"""How a kernel is launched."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

# A product and the sum that it is added to are one instruction. Triton's own default is about to change.
OPTIONS = {"enable_fp_fusion": True}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, like: Tensor, **options: Any) -> None:
    """Run a kernel on the device of `like`; for tensors of a CPU in Triton's interpreter."""
    with torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext():
        kernel[grid](*arguments, **OPTIONS, **options)
