"""Compiled loops at work on a CPU: a C++ compiler, memory, and gradients.

S seeds, B batch, T steps. A block of samples is the work of one thread from the first step to the last, so threads
never wait for each other; each block sums gradients of weights for itself, and these are added up in their order, so
that the numbers are the same however many threads there are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import string
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnarena.core.files import write_text
from nnarena.kernels import toolchain
from nnarena.kernels.compiler.compile import compile_step
from nnarena.kernels.compiler.compiled import Compiled, Text
from nnarena.kernels.compiler.plan import LANES, cpu_plan
from nnarena.kernels.compiler.trace import CannotCompile, FlatStep, Signature, trace
from nnarena.kernels.cpu.emit import write
from nnarena.kernels.cpu.nest import OURS

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

log = logging.getLogger("nnarena.kernels")
_made: dict[tuple[str, str], Any] = {}  # a name and a text: the function, or why there is none


class Loop:
    """The kernels of one cell."""

    reason = ""

    def __init__(self, step: FlatStep, signature: Signature) -> None:
        self.counts = (len(signature.constants), len(signature.inputs), len(signature.state))
        self.kernels = Kernels(compile_step(trace(step, signature), signature, cpu_plan(), write), self.counts)

    def of(self, tensors: Sequence[Tensor]) -> Kernels:
        return self.kernels


class Kernels:
    """Three functions of machine code, compiled when they are called: forward in training, forward else, and backward.

    CannotCompile if there is no compiler, or it fails.
    """

    def __init__(self, compiled: Compiled, counts: tuple[int, int, int]) -> None:
        self.compiled, self.counts = compiled, counts
        self.kept = sorted(name for name in compiled.forward.arguments if name.startswith(OURS))

    def forward(self, tensors: Sequence[Tensor], training: bool, last: bool) -> dict[str, Tensor]:
        compiled = self.compiled
        ready([("forward", compiled.forward), ("backward", compiled.backward)] if training else [])
        memory = self._memory(tensors)
        text = compiled.forward if training else compiled.inference
        self._run("forward", text, memory, every=self._steps(memory) if last else compiled.repeats)
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
        self._run("backward", self.compiled.backward, memory, every=self._steps(memory) // pull.shape[2])
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

    def _run(self, name: str, text: Text, memory: dict[str, Tensor], every: int) -> None:
        """Call a function; what it writes is made first."""
        (seeds, batch), steps = memory["u0"].shape[:2], self._steps(memory)
        blocks = -(-batch // LANES)
        sizes = {
            "dc": (blocks, seeds),
            "du": (seeds, batch, steps),
            "hist": (seeds, blocks, steps + 1),
            "saved": (seeds, blocks, steps),
            "output": (seeds, batch, steps // every),
            "end": (seeds, batch),
            "dstart": (seeds, batch),
        }
        for place in text.arguments:
            if place not in memory:
                size = (*sizes[place.rstrip(string.digits)], *self.compiled.shapes[place])
                size = (*size, LANES) if place.startswith(OURS) else size
                # of a gradient, a part that is always zero is not written
                memory[place] = torch.zeros(size) if place.startswith("dc") else torch.empty(size)
        places = (ctypes.c_void_p * len(text.arguments))(*(memory[place].data_ptr() for place in text.arguments))
        function(name, text.source)(places, steps, batch, every, seeds, torch.get_num_threads())


def ready(texts: Sequence[tuple[str, Text]]) -> None:
    """Functions that are wanted together are compiled together."""
    if any((name, text.source) not in _made for name, text in texts):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda each: function(each[0], each[1].source), texts))


@functools.cache
def processor() -> str:
    """What this processor can do; machine code of another may not run here."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()}"


def function(name: str, text: str) -> Any:
    """The function of this text, compiled, or as it was compiled before. CannotCompile if that fails."""
    if (name, text) not in _made:
        try:
            _made[name, text] = _function(name, text)
        except CannotCompile as reason:
            _made[name, text] = reason
    if isinstance(_made[name, text], CannotCompile):
        raise _made[name, text]
    return _made[name, text]


def _function(name: str, text: str) -> Any:
    command = toolchain.compiler()
    if command is None:
        raise CannotCompile("there is no C++ compiler.")
    key = "\n".join([text, HEADER.read_text(), command, *FLAGS, target(), processor()])
    path = toolchain.cache_folder() / f"{name}_{hashlib.sha256(key.encode()).hexdigest()[:24]}.so"
    if not path.exists():
        log.info("Compiling %s for this CPU.", path.stem)
        write_text(path.with_suffix(".cpp"), text)
        compile_to(path, command)
    try:
        found = getattr(ctypes.CDLL(str(path)), name)
    except OSError as error:  # a folder from which nothing may be run
        raise CannotCompile(f"machine code cannot be loaded: {error}") from error
    found.argtypes = [ctypes.c_void_p, *[ctypes.c_long] * 5]
    found.restype = None
    return found


def target() -> str:
    """The flag that lets a compiler use all that this processor can do."""
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def compile_to(path: Path, command: str) -> None:
    """Machine code of the text beside it. It appears whole or not at all."""
    handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    call = [command, *FLAGS, target(), f"-I{HEADER.parent}", str(path.with_suffix(".cpp")), "-o", made]
    try:
        subprocess.run(call, check=True, capture_output=True, text=True, timeout=PATIENCE)
        os.replace(made, path)
    except OSError as error:
        raise CannotCompile(f"{command} cannot be run: {error.strerror}.") from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if "error" in line] or [f"exit code {error.returncode}"]
        raise CannotCompile(f"{Path(command).name} failed: {said[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(f"{Path(command).name} took more than {PATIENCE} seconds.") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(made)
