"""Kernels compiled for an H100 or H200 (sm_90), with or without a GPU, and what they would take of it.

    python tests/kernels/sm90.py            every kernel: registers, stack, shared memory, what a step does
    python tests/kernels/sm90.py lstm gru   those of some cells
    python tests/kernels/sm90.py --serve    reads jobs as JSON from stdin, a line each, and answers each with a line
    python tests/kernels/sm90.py --texts    a digest of every kernel's text
    python tests/kernels/sm90.py --others   kernels that belong to no cell, as JSON

A job is a cell, a kernel, and how many sequences there are at once. Stack is what did not fit in registers, in bytes a
thread: spilled numbers, which are written to memory and read again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

import nnarena
from nnarena.kernels import passes, recurrence
from nnarena.kernels.compiler.compiled import Text
from nnarena.kernels.gpu import runtime
from nnarena.kernels.gpu.descriptors import computed_in_place
from nnarena.kernels.launch import OPTIONS

CAPABILITY, WARP = 90, 32
KERNELS = ("backward", "forward", "inference")
# A cell as it stands in a registered model, in its published size: the model, the layer in it, and the task.
CELLS = {
    "memory_augmented_transformer": ("memory_augmented_transformer", "layer", "add"),  # the longest to compile first
    "dnc": ("differentiable_neural_computer", "layer", "add"),
    "attention_split 4": ("attention_split", "layer.first", "add"),
    "attention_split": ("attention_split", "layer.second", "add"),
    "attention_split released": ("attention_split[variant=released]", "layer.second", "add"),
    "attention_split gated": ("attention_split[gated=true,hidden_size=64]", "layer.second", "add"),
    "attention_split dot_product": ("attention_split[attention=dot_product,hidden_size=64]", "layer.second", "add"),
    "ct_rnn": ("ct_rnn", "layer", "add"),
    "lstm": ("lstm", "layer", "add"),
    "gru": ("gru", "layer", "add"),
    "elman": ("elman", "layer", "add"),
    "jordan": ("jordan", "layer", "add"),
    "ct_gru": ("ct_gru", "layer", "add"),
    "ode_lstm": ("ode_lstm", "layer", "add"),
    "neural_circuit_policies": ("neural_circuit_policies", "layer", "add"),
    "unitary_rnn": ("unitary_rnn", "layer", "add"),
    "exp_unitary_rnn": ("matrix_exponential_unitary_rnn", "layer", "add"),
    "unitary 32": ("unitary_ncp", "layer.memory", "add"),
    "ltc 9": ("unitary_ncp", "layer.circuit", "add"),
    "unitary 8": ("recurrent_network_attention_transformer", "encoder.0.attention.readers.0", "add"),
    "lstm 8": ("recurrent_network_augmented_transformer", "encoder.0.attention.readers.0", "add"),
    "memory_cell": ("memory_cell", "layer", "cell"),
}
# Cells that project two features themselves, for many sequences; those of the others read what was projected.
PROJECTING = ("ct_gru", "ode_lstm", "ct_rnn", "gru", "lstm", "unitary_rnn", "exp_unitary_rnn", "elman")
CELLS |= {f"{cell}, projecting": CELLS[cell] for cell in PROJECTING}
WEIGHTS = (240, 80), (256, 64), (512, 32), (64, 64), (32, 32), (192, 16), (240, 2)  # whose gradients are products
EVEN = ("left_", "right_", "height", "width")  # what is a multiple of 16 in most layers
FEW, SOME, MANY, VERY_MANY = 1, 384, 2048, 12_800  # sequences
HEAVY = (
    "memory_augmented_transformer",
    "dnc",
    "ct_rnn",
    "lstm",
    "gru",
    "ct_gru",
    "ode_lstm",
    "unitary_rnn",
)  # whose kernels are others for many sequences
SMALL = ("neural_circuit_policies", "unitary 32", "ltc 9", "unitary 8", "lstm 8")  # and others only for very many


class Job(NamedTuple):
    cell: str
    kernel: str
    sequences: int

    def __str__(self) -> str:
        return f"{self.cell}, {self.kernel}, {self.sequences}"


def numbers_of_sequences(cell: str) -> tuple[int, ...]:
    """Those for which a cell's kernels are others, the longest to compile first."""
    if cell == "dnc":
        return MANY, SOME, FEW
    if cell.endswith("projecting"):
        return (MANY,)
    return (MANY, FEW) if cell in HEAVY else (VERY_MANY, FEW) if cell in SMALL else (FEW,)


SUMS = {"memory_augmented_transformer": 5}  # kernels that add up gradients after the loops
JOBS = [
    Job(cell, kernel, sequences) for cell in CELLS for sequences in numbers_of_sequences(cell) for kernel in KERNELS
] + [Job(cell, f"sums {number}", MANY) for cell, count in SUMS.items() for number in range(count)]


class _Reached(Exception):
    """A loop is about to be launched: its kernels are there."""


@functools.cache
def loop_of(cell: str) -> runtime.Loop:
    """The loop that a call of the layer builds; nothing is launched."""
    model, place, task = CELLS[cell]
    torch.manual_seed(0)
    layer: Any = nnarena.build(model, task=task).get_submodule(place)
    layer.backend = "fused"
    inside = cell.endswith("projecting")
    with (
        mock.patch.object(recurrence, "takes_projection", return_value=inside),
        mock.patch.object(passes.Forward, "apply", side_effect=_Reached) as launch,
        contextlib.suppress(_Reached),
    ):
        layer(torch.zeros(MANY if inside else 1, 3, layer.input_size))
    return launch.call_args.args[0]


def text_of(job: Job) -> tuple[Text, str]:
    """The text of a kernel, and its name there."""
    kind, _, number = job.kernel.partition(" ")
    compiled = loop_of(job.cell).at(job.sequences).compiled
    if number:
        return compiled.sums[int(number)], kind
    return getattr(compiled, kind), "forward" if kind == "inference" else kind


def measure(job: Job, closely: bool = False) -> dict[str, Any]:
    """Compile a kernel; returns what it takes. If looked at `closely`, what a step does, too: its instructions, and how
    often warps wait for each other."""
    from triton import compile as compile_for
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    loop = loop_of(job.cell)
    kernels = loop.at(job.sequences)
    text, name = text_of(job)
    function = runtime.load_kernel(text.source, name)
    names = function.arg_names
    how = {"precision": kernels.plan.precision, "direct": True, "whole": True}
    how = {name: value for name, value in how.items() if name in names}
    types = {name: "constexpr" if name in how else _type(name, loop) for name in names}
    pointers = [place for place, name in enumerate(names) if types[name].startswith("*")]
    source = ASTSource(
        fn=function,
        signature=types,
        constexprs={(names.index(name),): value for name, value in how.items()},
        attrs={(place,): [["tt.divisibility", 16]] for place in pointers},  # torch's memory is aligned
    )
    began = time.perf_counter()
    with computed_in_place():
        made = compile_for(
            source,
            target=GPUTarget("cuda", CAPABILITY, WARP),
            options={"num_warps": text.warps, "num_stages": 1, **OPTIONS},
        )
    seconds = time.perf_counter() - began
    usage = _usage(made.asm["cubin"])
    return {
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "shared": made.metadata.shared,
        "warps": text.warps,
        "rows": kernels.plan.rows,
        "direct": runtime.is_direct(made.asm["ttgir"]),
        "again": _read_again(_step(made.asm["ttgir"])),
        "exchanged": _step(made.asm["ttgir"]).count("ttg.convert_layout"),
        **(_instructions(made.asm["cubin"]) if closely else {}),
        "seconds": round(seconds, 2),
    }


def _step(code: str) -> str:
    """What a kernel does at every step: the inside of its loop over them."""
    loops = re.findall(r"^( *)(?:%\S+ = )?scf\.for.*\n((?:\1 .*\n)*)", code, re.MULTILINE)
    return max((inside for _, inside in loops), key=lambda inside: (inside.count("tt.dot"), len(inside)), default="")


def _read_again(step: str) -> int:
    """What a step reads of shared memory without having written it: weights."""
    return step.count("ttg.local_load") - step.count("ttg.local_alloc")


def _type(name: str, loop: runtime.Loop) -> str:
    """The type of an argument, in Triton's words."""
    if name.startswith("signs"):
        return "*i8"
    if name in ("T", "B", "E", "own"):
        return "i32"
    constant = re.fullmatch(r"c(\d+)t?", name)
    dtype = loop.signature.constants[int(constant[1])][1] if constant else torch.float32
    if dtype.is_floating_point:
        return "*fp32"
    return "*i8" if dtype == torch.bool else "*i32"


def _usage(cubin: bytes) -> dict[str, int]:
    """`REG`, `STACK`, … of a compiled kernel."""
    said = _dumped(cubin, "--dump-resource-usage")
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", said)}


def _instructions(cubin: bytes) -> dict[str, int]:
    """Of the inmost loop that multiplies, or of the longest."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/ +(.*?);", _dumped(cubin, "--dump-sass"))
    code = [(int(place, 16), text) for place, text in lines]
    jumps = [(place, int(to[1], 16)) for place, text in code if (to := re.search(r"\bBRA\b.* (0x[0-9a-f]+)", text))]
    loops = [[text for place, text in code if to <= place <= end] for end, to in jumps if to < end]
    multiply = [loop for loop in loops if any("MMA" in text for text in loop)]
    step = min(multiply, key=len) if multiply else max(loops, key=len, default=[])
    waits = sum(bool(re.match(r"(@\S+ +)?(BAR|WARPGROUP\.DEPBAR)\.", text)) for text in step)
    return {"instructions": len(step), "waits": waits}


def _dumped(cubin: bytes, what: str) -> str:
    """What a tool that comes with Triton says about a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return subprocess.run([tool, what, path], capture_output=True, text=True, check=True).stdout


def others() -> dict[str, dict[str, int]]:
    """What kernels take that belong to no cell: dense layers, norms, rotations, element-wise attention, optimizers."""
    from triton import compile as compile_for
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from nnarena.kernels.gpu import gemm, parts
    from nnarena.kernels.layers import axial, axial_conv, dense, exponential, norm, rotation
    from nnarena.kernels.optimizers import projected

    plain = {"BY_SAMPLE": True, "SUMMED": False, "TURNED": False, "SHARED": False, "precision": "bf16x6"}
    plain |= {"FEATURES": 0, "EVERY": 1, "few_feature": 1}
    column = {"right_row": 1, "width": 1, **gemm.tiling(138, 1).sizes}  # Triton has ones written into a kernel's text
    sums, turned = {"SUMMED": True}, {"SUMMED": True, "TURNED": True}
    two, four, most = {"FEATURES": 2}, {"FEATURES": 4}, {"FEATURES": gemm.MOST_FEW}
    in_halves = {"precision": "halves", "SHARED": True}
    rows = {"GELU": True, "W": 12, "PAD": 16, "ROWS": norm.NUMBERS // 16}
    adam = dict.fromkeys(
        ("ADAM", "EPS_INSIDE", "NESTEROV", "AMSGRAD", "MAXIMIZE", "BY_GRADIENT", "LR_IS_TENSOR"), False
    )
    adam["ADAM"] = True
    tests = {"BY_DIMENSION": True, "CURVED": False, "LR_IS_TENSOR": False}
    jobs: list[tuple[str, Any, dict[str, Any], int | gemm.Tiling]] = [
        *(
            (
                f"products, {tiles.down} × {tiles.across}{name}",
                gemm.thin_products if tiles.across <= gemm.THIN else gemm.outer_products,
                {**plain, **tiles.sizes, **more},
                tiles,
            )
            for tiles in (gemm.tiling(*sizes) for sizes in WEIGHTS)
            for name, more in (
                ("", {}),
                (", and sums", sums),
                (", turned and sums", turned),
                (", by steps", {"BY_SAMPLE": False}),
                (", tf32", {"precision": "tf32"}),
                *(
                    [
                        (", halves", in_halves),
                        (", halves and sums", {**sums, **in_halves}),
                        (", sums of others", {**sums, "SHARED": True}),
                    ]
                    if tiles.across > gemm.THIN
                    else []
                ),
                *(
                    [
                        (", and features", two),
                        (", features and sums", {**sums, **two}),
                        (", four and sums", {**sums, **four}),
                        (", features and sums, by steps", {**sums, **two, "BY_SAMPLE": False, "EVERY": 12}),
                        (", features of rows", most),
                        (", features and sums, halves", {**sums, **two, **in_halves}),
                    ]
                    if tiles.across > gemm.THIN
                    else []
                ),
            )
        ),
        *(
            (f"products, {by} of a column", gemm.thin_products, {**plain, **column, "BY_SAMPLE": by == "samples"}, 4)
            for by in ("samples", "steps")
        ),
        ("parts", parts.add_up, {"HIGH": 512, "WIDE": 16}, 4),
        ("widen", dense.widen, {"N": 240, "F": 2, "BIASED": True, "DOWN": 32, "ACROSS": 128}, 4),
        *(
            (f"exponential, {tile}", exponential.add_products, {"H": 128, "TILE": tile, "DEEP": 512 // tile}, 4)
            for tile in (16, 32)
        ),
        *(
            (
                f"exponential, halves{', scaled' * scaled}",
                exponential.add_products_of_halves,
                {"H": 128, "DOWN": 64, "ACROSS": 32, "DEEP": 64, "SCALED": scaled},
                4,
            )
            for scaled in (False, True)
        ),
        ("exponential, split", exponential.split, {"H": 128, "TILE": 32, "SCALED": True}, 4),
        ("norm", norm.forward, rows, 4),
        ("norm, back", norm.backward, rows, 4),
        *(
            (f"{name}, {units} units, {kind}", kernel, _of_rotations(units, kind), 1)
            for name, kernel in (("rotation", rotation.forward), ("rotation back", rotation.backward))
            for units, kind in ((18, "complex"), (128, "complex"), (128, "real"), (512, "complex"))
        ),
        ("measure, orthadam", projected.measure, {**adam, "EPS_INSIDE": True}, 4),
        ("measure, adamp", projected.measure, {**adam, "BY_GRADIENT": True, "NESTEROV": True, "AMSGRAD": True}, 4),
        ("measure, sgdp", projected.measure, {**adam, "ADAM": False, "BY_GRADIENT": True}, 4),
        *((f"judge, {view}", projected.judge, {**tests, "VIEW": view}, 4) for view in ("tensor", "channel", "both")),
        ("move", projected.move, adam, 4),
        ("settle", axial.settle, {"PIXELS": 784, "MEASURED": True, "PARTS": 256}, 4),
        *(
            (f"{kernel.__name__}, {side}×{side}{', biases' * bias}", kernel, _of_images(side, bias), warps)
            for kernel in (axial.measure, axial.attend, axial.pulled, axial.to_images, axial.to_weights)
            for side, warps, bias in ((28, 4, False), (32, 4, True), (64, 16, True))
        ),
        *(
            (f"conv {kernel.__name__}, {side}×{side}{', biases' * bias}", kernel, _of_images(side, bias), 4)
            for kernel in (axial_conv.convolve, axial_conv.pulled, axial_conv.to_images, axial_conv.to_weights)
            for side, bias in ((28, False), (32, True))
        ),
    ]
    found = {}
    for name, function, constants, warps in jobs:
        names = function.arg_names
        here = {key: value for key, value in constants.items() if key in names}
        halves = "factor" in names
        types = {each: "constexpr" if each in here else _type_of_other(each, halves) for each in names}
        source = ASTSource(
            fn=function,
            signature=types,
            constexprs={(names.index(key),): value for key, value in here.items()},
            attrs={place: [["tt.divisibility", 16]] for place in _even_places(names, types)},
        )
        options = {"num_warps": warps, "num_stages": 1, **OPTIONS}
        if isinstance(warps, gemm.Tiling):
            options |= {"num_warps": warps.warps, "maxnreg": warps.registers}
        found[name] = _usage(
            compile_for(source, target=GPUTarget("cuda", CAPABILITY, WARP), options=options).asm["cubin"]
        )
    return found


def _of_rotations(units: int, kind: str) -> dict[str, Any]:
    """What kernels are told of a matrix of 16 layers of rotations."""
    from nnarena.kernels.layers import rotation

    absent = {} if kind == "complex" else dict.fromkeys(("phi", "omega", "im", "pull_im"))
    return {**rotation._sizes(torch.empty(1, 8, units - 1)), **absent}


def _of_images(side: int, bias: bool) -> dict[str, Any]:
    """What kernels of element-wise attention are told of images of one channel."""
    padded = 1 << (side - 1).bit_length()
    absent = {} if bias else {"bx": None, "by": None}
    sizes = {"H": side, "W": side, "HP": padded, "WP": padded}
    return {"C": 1, **sizes, "BIAS": bias, "TRAINING": True, **absent}


def _even_places(names: list[str], types: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    """Of what Triton knows to be a multiple of 16: addresses, and sizes and strides of most layers."""
    for place, name in enumerate(names):
        if isinstance(types[name], tuple):
            yield from ((place, number) for number, kind in enumerate(types[name]) if kind.startswith("*"))
        elif types[name].startswith("*") or (types[name] == "i32" and name.startswith(EVEN)):
            yield (place,)


def _type_of_other(name: str, halves: bool) -> str | tuple[str, ...]:
    if name in ("lefts", "rights", "plus"):
        return ("*fp16" if halves and name != "plus" else "*fp32",) * 2
    if name == "factor" or (name == "turned" and halves):
        return "*fp16"
    if name in ("scales", "weights"):
        return "fp32", "fp32"
    if name in ("pointers", "layout", "blocks", "tensors"):
        return "*i64"
    rows = ("x", "y", "weight", "bias", "pull", "dx")
    maps = ("wx", "wy", "bx", "by", "conv", "stats", "out", "turned", "numbers", "seed_scales")
    turns = ("theta", "phi", "omega", "re", "im", "pull_re", "pull_im")
    if name in (
        "left",
        "right",
        "few",
        "size_left",
        "size_right",
        "size_few",
        "found",
        "sums",
        "verdicts",
        *rows,
        *maps,
        *turns,
    ):
        return "*fp32"
    whole = (
        "pieces",
        "length",
        "own_blocks",
        "own_places",
        "share",
        "many",
        "most",
        "rows",
        "batch",
        "heads",
        "parts",
        "count",
        "size",
        "height",
        "width",
    )
    return "i32" if name in whole or name.startswith(("left_", "right_", "few_", "x_")) else "fp32"


def texts() -> dict[str, str]:
    """A digest of every kernel's text."""
    found = {}
    for job in JOBS:
        text, _ = text_of(job)
        found[str(job)] = hashlib.sha256(text.source.encode()).hexdigest()
    return found


def serve() -> None:
    """Answer jobs until there are no more."""
    for line in sys.stdin:
        try:
            answer = measure(Job(*json.loads(line)))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def main(arguments: list[str]) -> None:
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise SystemExit("Unset TRITON_INTERPRET: with it, Triton compiles nothing.")
    torch.set_num_threads(1)
    if arguments == ["--serve"]:
        serve()
    elif arguments == ["--texts"]:
        print(json.dumps(texts()))
    elif arguments == ["--others"]:
        print(json.dumps(others()))
    else:
        for job in JOBS:
            if not arguments or job.cell in arguments:
                found = measure(job, closely=True)
                print(f"{job!s:50}", *(f"{key} {value:<6}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
