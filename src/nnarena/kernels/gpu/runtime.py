"""Compiled loops at work on a GPU: memory, launches and gradients.

S seeds, B batch, T steps.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nnarena.core.files import write_text
from nnarena.kernels.compiler.compile import compile_step
from nnarena.kernels.compiler.compiled import Compiled, Text
from nnarena.kernels.compiler.plan import Plan, make_plan
from nnarena.kernels.compiler.trace import CannotCompile, FlatStep, Signature, repeated, trace
from nnarena.kernels.gpu.after import After
from nnarena.kernels.gpu.descriptors import computed_in_place
from nnarena.kernels.gpu.parts import added_up
from nnarena.kernels.gpu.write import write
from nnarena.kernels.launch import OPTIONS, launch
from nnarena.kernels.steps import Steps
from nnarena.kernels.toolchain import cache_folder

SHARES = 528  # programs that share all samples and steps: four for each processor of an H100
LEAST = 8  # steps, of which it pays to start one
ALIGNED = 16  # bytes, of which memory that torch makes begins at a multiple


class Loop:
    """The kernels of one cell, by the plan that suits the number of sequences.

    `reason` is why there are none, and its steps are compiled one by one (`Steps`). What cannot be traced cannot even
    be that, and says so.
    """

    def __init__(self, step: FlatStep, signature: Signature) -> None:
        self.signature = signature
        self.counts = (len(signature.constants), len(signature.inputs), len(signature.state))
        self.traced = trace(step, signature)
        self.steps = Steps(repeated(step, signature.repeats), signature)
        self.kernels: dict[Plan, Kernels] = {}

    @functools.cached_property
    def reason(self) -> str:
        try:
            self.at(1)
        except CannotCompile as reason:
            return str(reason)
        return ""

    def at(self, sequences: int, precision: str = "bf16x6", spare: bool = False) -> Kernels:
        """The kernels that are best for so many sequences; of those that `spare` memory on the chip, if asked."""
        plan = make_plan(self.traced, self.signature, sequences, precision)
        plan = replace(plan, divided=0) if spare else plan
        if plan not in self.kernels:
            self.kernels[plan] = Kernels(compile_step(self.traced, self.signature, plan, write), self.counts)
        return self.kernels[plan]

    def replan(self, **changes: Any) -> None:
        """All kernels so far by plans that differ in some options, for whoever wants to know what these are worth."""
        for plan in self.kernels:
            made = compile_step(self.traced, self.signature, replace(plan, **changes), write)
            self.kernels[plan] = Kernels(made, self.counts)

    def holds_blocks(self, sequences: int, device: torch.device) -> bool:
        """Whether a program has a block of samples if there are so many sequences."""
        made = make_plan(self.traced, self.signature, sequences, precision_on(device))
        if made.rows == 1 or made.matrices or self.reason:
            return False
        return self.at(sequences, made.precision).fit(device, self.signature)

    def of(self, tensors: Sequence[Tensor]) -> Kernels | Steps:
        """What suits these tensors; of the kernels, those for few sequences need the least memory on the chip."""
        seeds, batch = tensors[self.counts[0]].shape[:2]
        device = tensors[self.counts[0]].device
        if self.reason:
            return self.steps
        for sequences, spare in ((seeds * batch, False), (1, False), (1, True)):
            if (kernels := self.at(sequences, precision_on(device), spare)).fit(device, self.signature):
                return kernels
        return self.steps


def precision_on(device: torch.device) -> str:
    """Of products on the matrix units: as good as float32, unless `torch.set_float32_matmul_precision` allows less."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        return "ieee"  # its matrix units know neither bfloat16 nor tf32
    return "bf16x6" if torch.get_float32_matmul_precision() == "highest" else "tf32"


class Kernels:
    """Three kernels, ready to be launched: forward in training, forward else, and backward."""

    def __init__(self, compiled: Compiled, counts: tuple[int, int, int]) -> None:
        self.compiled, self.plan, self.counts = compiled, compiled.plan, counts
        # what the way forward writes and the way back reads
        self.kept = sorted(
            name for name in compiled.forward.arguments if name.startswith(("hist", "saved", "signs", "size"))
        )
        self.after = After(compiled)
        self.fits: dict[torch.device, bool] = {}
        self.direct: dict[str, bool] = {}  # source: whether threads read and write what is theirs

    def fit(self, device: torch.device, signature: Signature) -> bool:
        """Whether the chip has the shared memory that the kernels ask for; to know it, they are compiled."""
        if device.type == "cpu":
            return True
        if device not in self.fits:
            with torch.cuda.device(device):
                limit = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
                with computed_in_place():
                    self.fits[device] = all(size <= limit for size in self._compiled_sizes(signature))
        return self.fits[device]

    def _compiled_sizes(self, signature: Signature) -> Iterator[int]:
        """Compile every kernel; the shared memory that it takes, in bytes."""
        types = {f"c{place}": _number_type(dtype) for place, (_, dtype) in enumerate(signature.constants)}
        compiled = self.compiled
        texts = (compiled.forward, compiled.inference, compiled.backward, *compiled.sums)
        for text, name in zip(texts, ("forward", "forward", "backward", *["sums"] * len(compiled.sums)), strict=True):
            kernel = load_kernel(text.source, name)
            arguments = [types.get(argument.rstrip("t")) or _written_type(argument) for argument in text.arguments]
            options = {"num_warps": text.warps, "num_stages": 1, "grid": (1, 1), **OPTIONS}
            whole = [True] * self.plan.knows_whole
            made = kernel.warmup(*arguments, 1, 1, 1, self.plan.precision, True, *whole, **options)
            self.direct[text.source] = is_direct(made.asm["ttgir"])
            if not self.direct[text.source]:
                made = kernel.warmup(*arguments, 1, 1, 1, self.plan.precision, False, *whole, **options)
            yield made.metadata.shared

    def forward(self, tensors: Sequence[Tensor], training: bool, last: bool = False) -> dict[str, Tensor]:
        text = self.compiled.forward if training else self.compiled.inference
        memory = self._memory(tensors, text)
        self._launch(text, "forward", memory)
        return memory

    def output(self, memory: dict[str, Tensor], last: bool = False) -> Tensor:
        compiled, repeats = self.compiled, self.compiled.repeats
        every = memory[compiled.output].narrow(2, compiled.output_shift, self._sizes(memory)[2])
        return every[:, :, -1:].clone() if last else every[:, :, repeats - 1 :: repeats]

    def ends(self, memory: dict[str, Tensor]) -> list[Tensor]:
        parts = range(self.counts[2])
        return [memory[f"hist{i}"][:, :, -1] if f"hist{i}" in memory else memory[f"end{i}"] for i in parts]

    def backward(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], pull: Tensor, ends: Sequence[Tensor]
    ) -> list[Tensor | None]:
        compiled = self.compiled
        memory = self._memory(tensors, compiled.backward) | dict(zip(self.kept, kept, strict=True))
        memory |= {"pull": _whole(pull)} | {f"end{i}": _whole(end) for i, end in enumerate(ends)}
        self._launch(compiled.backward, "backward", memory)
        for text in compiled.sums:
            memory |= self._memory(tensors, text) | memory
            self._launch(text, "sums", memory)
        gradients: dict[str, Tensor] = {name: added_up(memory[name]) for name in memory if name.startswith("dc")}
        for constant, part in self.after.gradients(memory):
            known = gradients.get(f"dc{constant}")
            gradients[f"dc{constant}"] = part if known is None else known + part
        constants, inputs, state = self.counts
        return [
            *(gradients.get(f"dc{i}") for i in range(constants)),
            *(self._for_one_input(memory.get(f"du{i}")) for i in range(inputs)),
            *(memory[f"dstart{i}"] for i in range(state)),
        ]

    def _for_one_input(self, gradient: Tensor | None) -> Tensor | None:
        """Of all steps that were taken with one input together."""
        repeats = self.compiled.repeats
        return gradient if gradient is None or repeats == 1 else gradient.unflatten(2, (-1, repeats)).sum(3)

    def _memory(self, tensors: Sequence[Tensor], text: Text) -> dict[str, Tensor]:
        """What a kernel is given."""
        constants, inputs, _ = self.counts
        read = {name.rstrip("t") for name in text.arguments}
        memory = {f"c{i}": _numbers(tensor) for i, tensor in enumerate(tensors[:constants]) if f"c{i}" in read}
        memory |= {f"{name}t": memory[name].mT.contiguous() for name in memory if f"{name}t" in text.arguments}
        memory |= {f"u{i}": _whole(tensor) for i, tensor in enumerate(tensors[constants : constants + inputs])}
        return memory | {f"start{i}": _whole(tensor) for i, tensor in enumerate(tensors[constants + inputs :])}

    def _allocate(self, memory: dict[str, Tensor], names: Sequence[str], parts: int) -> None:
        """What is not there yet; of sums, that many parts more than there are blocks of samples."""
        seeds, batch, steps = self._sizes(memory)
        programs = -(-batch // self.plan.rows)
        for name in names:
            if name in memory:
                continue
            shape = self.compiled.shapes[name]
            if name.startswith("dc"):
                size: tuple[int, ...] = (parts * programs, seeds)
            elif name.startswith("size"):
                size = (seeds, programs)
            elif name.startswith(("end", "dstart")):
                size = (seeds, batch)
            else:
                size = (seeds, batch, steps + name.startswith("hist"))
            memory[name] = torch.empty((*size, *shape), device=memory["u0"].device, dtype=_written_type(name))

    def _sizes(self, memory: dict[str, Tensor]) -> tuple[int, int, int]:
        """Seeds, batch and steps."""
        seeds, batch, inputs = memory["u0"].shape[:3]
        return seeds, batch, inputs * self.compiled.repeats

    def _launch(self, text: Text, name: str, memory: dict[str, Tensor]) -> None:
        seeds, batch, steps = self._sizes(memory)
        programs = -(-batch // self.plan.rows)
        if name == "sums":  # programs share the steps, so that all processors have work; each has so many
            of_steps = -(-steps // max(1, min(steps // LEAST, SHARES // (programs * seeds))))
        else:  # the last of so many has a gradient
            of_steps = steps // memory["pull"].shape[2] if "pull" in memory else 1
        parts = -(-steps // of_steps) if name == "sums" else 1
        self._allocate(memory, text.arguments, parts)
        arguments = [memory[argument] for argument in text.arguments]
        kernel = load_kernel(text.source, name)
        like = memory["u0"]
        how = ["ieee", False]  # the interpreter is for tests, and knows one precision
        if like.is_cuda:
            how = [self.plan.precision, self.direct[text.source]]
        how += [batch % self.plan.rows == 0] * self.plan.knows_whole
        grid = (programs, seeds, parts)
        with computed_in_place():
            launch(
                kernel, grid, *arguments, steps, batch, of_steps, *how, like=like, num_warps=text.warps, num_stages=1
            )


def is_direct(code: str) -> bool:
    """Whether all that a kernel reads and writes in twos is so spread over the threads that one has both of them.

    As the matrix units spread their results, for example, or views of those.
    """
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.(\w+<.*)", code, re.MULTILINE))
    twos = [line for line in code.splitlines() if ".global.v2" in line]
    used = {name for line in twos for name in re.findall(r"tensor<[^>]*?, (#[\w.]+)", line)}
    return all(_has_pairs(layouts.get(name, "")) for name in used)


def _has_pairs(layout: str) -> bool:
    """Whether a thread has neighbours along the last dimension one after the other."""
    if layout.startswith("blocked"):
        sizes, order = (re.search(rf"{key} = \[([\d, ]+)\]", layout) for key in ("sizePerThread", "order"))
        numbers = [[int(number) for number in match[1].split(",")] for match in (sizes, order) if match]
        return numbers[0][-1] % 2 == 0 and numbers[1][0] == len(numbers[0]) - 1
    return bool(re.match(r"nvidia_mma|linear<\{register = \[\[(0, )*1\]", layout))


def _whole(tensor: Tensor) -> Tensor:
    """In one piece of memory that begins where several numbers can be read at once; a part of another may not."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNED else tensor


def _numbers(tensor: Tensor) -> Tensor:
    """Truth values and whole numbers in a type that kernels read."""
    return tensor.to(_number_type(tensor.dtype)).contiguous()


def _number_type(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float32
    return torch.int8 if dtype == torch.bool else torch.int32


def _written_type(name: str) -> torch.dtype:
    """The type of memory that kernels write."""
    return torch.int8 if name.startswith("signs") else torch.float32


@functools.cache
def load_kernel(text: str, name: str) -> Any:
    """The kernel of this text. Triton reads source from files, and keeps what it compiled on disk by it."""
    path = cache_folder() / f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:24]}.py"
    if not path.exists():
        write_text(path, text)
    spec = importlib.util.spec_from_file_location(f"nnarena_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
