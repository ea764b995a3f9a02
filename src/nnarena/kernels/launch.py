"""Whether there is something to launch kernels on, and how it is done."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor

# A product and the sum that it is added to are one instruction. Triton's own default is about to change.
OPTIONS = {"enable_fp_fusion": True}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, like: Tensor, **options: Any) -> None:
    """Run a kernel on the device of `like`; for tensors of a CPU in Triton's interpreter."""
    with torch.cuda.device(like.device) if like.is_cuda else contextlib.nullcontext():
        kernel[grid](*arguments, **OPTIONS, **options)


def can_fuse(x: Tensor) -> bool:
    """Whether there is a GPU to compile for, and nobody else is tracing."""
    return x.is_cuda and x.dtype == torch.float32 and not torch.compiler.is_compiling() and has_triton()


@functools.cache
def has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True
