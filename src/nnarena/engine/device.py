"""Which device computes, what it is called, and how much memory a trial took on it."""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

import nnarena
from nnarena.core.components import PACKAGE
from nnarena.core.errors import ArenaError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # options of mallopt: from which size on memory is given back
LARGEST = 2**31 - 1  # that it takes


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ArenaError("There is no CUDA device here: use --device cpu, or see `nnarena doctor`.")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ArenaError(f"There is no device {name!r}; --device takes auto, cpu or cuda.") from error


def check_precision(precision: str, device: torch.device) -> None:
    """bfloat16 is for GPUs: on a CPU torch 2.15 fills the gradient of some small convolutions with what lay in memory.

    (Of a 3×3 kernel with stride 2 on an image of 1×1, for one; ResNet has it on images of 8×8.)
    """
    if precision == "bf16" and device.type == "cpu":
        raise ArenaError("precision=bf16 needs a GPU: on a CPU some gradients would be wrong. Leave it at float32.")
    if precision == "tf32" and device.type == "cpu":
        raise ArenaError("precision=tf32 needs a GPU, whose matrix units it is for. Leave it at float32.")


def cores() -> int:
    """How many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_lost(device: torch.device) -> bool:
    """Whether the device will answer this process no more, whatever it is asked: some errors of a GPU last."""
    try:
        synchronise(device)
    except Exception:
        return True
    return False


def keep_memory() -> None:
    """Have this process use again what it frees, for a CPU: a training step needs the same memory every time.

    The C library of Linux gives large blocks back to the system at once, which hands them out again page by page and
    filled with zeros: torch's LSTM takes 1.7 times as long by that.
    """
    with suppress(AttributeError):  # a C library that has nothing of the kind
        if sys.platform == "linux":
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, LARGEST)
            library.mallopt(TRIM_THRESHOLD, LARGEST)


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds on to any more: other processes may need it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with suppress(AttributeError):
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # Linux: forget the process's largest size so far
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Bytes: of the device's allocator on a GPU, of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


@contextmanager
def computing_with(threads: int, device: torch.device, precision: str = "float32") -> Iterator[None]:
    """The trial's own threads, random numbers and precision, full float32 if not said; what was before comes back."""
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_float32_matmul_precision(before[2])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    """What made a result."""
    builds_models = {"torchvision": metadata.version("torchvision")} if find_spec("torchvision") else {}
    return {
        "nnarena": nnarena.__version__,
        "code": code_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **builds_models,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


@functools.cache
def code_version() -> str:
    """A hash of this package's source."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
