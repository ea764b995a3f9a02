"""Compiled loops at work on a CPU: a C++ compiler, memory, and gradients.

S seeds, B batch, T steps. A block of samples is the work of one thread from the first step to the last, so threads never
wait for each other; each block sums gradients of weights for itself, and these are added up in their order, so that the
numbers are the same however many threads there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnarena.core.files import write_text
from nnarena.kernels.cache import cache_folder
from nnarena.kernels.compile import Text, compile_step
from nnarena.kernels.emit_cpp import OURS
from nnarena.kernels.plan import LANES, cpu_plan
from nnarena.kernels.trace import CannotCompile, FlatStep, Signature, trace

HEADER = Path(__file__).with_name("lanes.hpp")
# -ffp-contract: a product is added without being rounded first. The rest is for functions that nobody asks for errors.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-pthread",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
PATIENCE = 120  # seconds


class Loop:
    """The kernels of one cell; whatever stands in their way, CannotCompile says."""

    reason = ""

    def __init__(self, step: FlatStep, signature: Signature) -> None:
        self.counts = (len(signature.constants), len(signature.inputs), len(signature.state))
        self.kernels = Kernels(step, signature, self.counts)

    def of(self, tensors: Sequence[Tensor]) -> Kernels:
        return self.kernels


class Kernels:
    """Three functions of machine code: forward in training, forward else, and backward."""

    def __init__(self, step: FlatStep, signature: Signature, counts: tuple[int, int, int]) -> None:
        self.compiled, self.counts = compile_step(trace(step, signature), signature, cpu_plan()), counts
        self.kept = sorted(name for name in self.compiled.forward.arguments if name.startswith(OURS))
        for text in (self.compiled.forward, self.compiled.backward):
            function(text.source, name_of(text, self.compiled.backward))

    def forward(self, tensors: Sequence[Tensor], training: bool, last: bool) -> dict[str, Tensor]:
        text = self.compiled.forward if training else self.compiled.inference
        memory = self._memory(tensors)
        self._run(text, memory, every=self._steps(memory) if last else self.compiled.repeats)
        return memory

    def output(self, memory: dict[str, Tensor], last: bool) -> Tensor:
        return memory["output"]

    def ends(self, memory: dict[str, Tensor]) -> list[Tensor]:
        return [memory[f"end{part}"] for part in range(self.counts[2])]

    def backward(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], pull: Tensor, ends: Sequence[Tensor]
    ) -> list[Tensor | None]:
        memory = self._memory(tensors) | dict(zip(self.kept, kept, strict=True))
        memory |= {"pull": pull.contiguous()} | {f"end{part}": end.contiguous() for part, end in enumerate(ends)}
        self._run(self.compiled.backward, memory, every=self._steps(memory) // pull.shape[2])
        constants, inputs, state = self.counts
        return [
            *(memory[name].sum(0) if (name := f"dc{place}") in memory else None for place in range(constants)),
            *(self._for_one_input(memory.get(f"du{place}")) for place in range(inputs)),
            *(memory[f"dstart{part}"] for part in range(state)),
        ]

    def _for_one_input(self, gradient: Tensor | None) -> Tensor | None:
        """Of all steps that were taken with one input together."""
        repeats = self.compiled.repeats
        return gradient if gradient is None or repeats == 1 else gradient.unflatten(2, (-1, repeats)).sum(3)

    def _steps(self, memory: dict[str, Tensor]) -> int:
        return memory["u0"].shape[2] * self.compiled.repeats

    def _memory(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """What a function is given, in float32 and in one piece."""
        constants, inputs, state = self.counts
        names = [f"c{i}" for i in range(constants)] + [f"u{i}" for i in range(inputs)]
        names += [f"start{i}" for i in range(state)]
        return {name: tensor.to(torch.float32).contiguous() for name, tensor in zip(names, tensors, strict=True)}

    def _run(self, text: Text, memory: dict[str, Tensor], every: int) -> None:
        """Call a function; what it writes is made first."""
        (seeds, batch), steps = memory["u0"].shape[:2], self._steps(memory)
        blocks = -(-batch // LANES)
        for name in text.arguments:
            if name in memory:
                continue
            shape = self.compiled.shapes[name]
            if name.startswith("dc"):
                size: tuple[int, ...] = (blocks, seeds, *shape)
            elif name.startswith(OURS):
                size = (seeds, blocks, steps + name.startswith("hist"), *shape, LANES)
            elif name.startswith(("end", "dstart")):
                size = (seeds, batch, *shape)
            else:
                size = (seeds, batch, steps // every if name == "output" else steps, *shape)
            # a gradient of which some part is always zero is not written there
            memory[name] = torch.zeros(size) if name.startswith(("dc", "du")) else torch.empty(size)
        places = (ctypes.c_void_p * len(text.arguments))(*(memory[name].data_ptr() for name in text.arguments))
        call = function(text.source, name_of(text, self.compiled.backward))
        call(places, steps, batch, every, seeds, torch.get_num_threads())


def name_of(text: Text, backward: Text) -> str:
    return "backward" if text is backward else "forward"


@functools.cache
def compiler() -> str | None:
    """The C++ compiler that is here."""
    found = (shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)
    return next((path for path in found if path), None)


@functools.cache
def processor() -> str:
    """What this processor can do; machine code of another may not run here."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()}"


@functools.cache
def function(text: str, name: str) -> Any:
    """The function of this text, compiled, or as it was compiled before. CannotCompile if that fails."""
    command = compiler()
    if command is None:
        raise CannotCompile("there is no C++ compiler.")
    key = "\n".join([text, HEADER.read_text(), command, *FLAGS, processor()])
    path = cache_folder() / f"{name}_{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    if not path.exists():
        write_text(path.with_suffix(".cpp"), text)
        compile_to(path, command)
    found = getattr(ctypes.CDLL(str(path)), name)
    found.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 5]
    found.restype = None
    return found


def compile_to(path: Path, command: str) -> None:
    """Machine code of the text beside it. It appears whole or not at all."""
    handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    call = [command, *FLAGS, native, f"-I{HEADER.parent}", str(path.with_suffix(".cpp")), "-o", made]
    try:
        subprocess.run(call, check=True, capture_output=True, text=True, timeout=PATIENCE)
        os.replace(made, path)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line] or [f"exit code {error.returncode}"]
        raise CannotCompile(f"{Path(command).name} failed: {said[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(f"{Path(command).name} took more than {PATIENCE} seconds.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(made)
