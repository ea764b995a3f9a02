"""A step of our optimizers, in units of `torch.optim.AdamW`, beside their authors' package.

    python -m nnarena.bench.optimizers

Only the step: gradients lie ready. Each is measured in turns with AdamW on the same tensors; on a GPU also as one CUDA
graph, where that is possible. Who has a peer here is compared with it first, and has no time where it differs.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from nnarena.bench.timing import graphed, measure, side_by_side
from nnarena.optim import SGDP, AdamP, OrthAdam

Make = Callable[[list[Tensor]], Optimizer]
STEPS, TOLERANCE = 5, 1e-4  # of the comparison, in float32
# A recurrent cell of the arena, a stack of small layers where launches are all that counts, and ResNet-18's sizes.
TENSORS: dict[str, list[tuple[int, ...]]] = {
    "cell": [(256, 2), (256, 64), (256,), (256,), (1, 64), (1,)],
    "layers": [(64, 64), (64,)] * 50,
    "convolutions": [
        shape
        for width, before in ((64, 64), (128, 64), (256, 128), (512, 256))
        for shape in ((width, before, 3, 3), *((width, width, 3, 3),) * 3, *((width,),) * 8)
    ],
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One optimizer on one list of tensors; `ratio` is its time in units of AdamW's, `seconds` AdamW's own."""

    optimizer: str
    tensors: str
    graph: bool
    ratio: float | None
    seconds: float | None = None
    note: str = ""


def ours(capturable: bool) -> dict[str, Make]:
    return {
        "OrthAdam": lambda params: OrthAdam(params, capturable=capturable),
        "OrthAdam, by channels": lambda params: OrthAdam(params, capturable=capturable, view="channel"),
        "AdamP": lambda params: AdamP(params, capturable=capturable),
        "SGDP": lambda params: SGDP(params, momentum=0.9),
    }


def peers() -> dict[str, Make]:
    """The authors' package, where it is installed."""
    if importlib.util.find_spec("adamp") is None:
        return {}
    package: Any = importlib.import_module("adamp")
    return {
        "AdamP": lambda params: package.AdamP(params, lr=1e-3),
        "SGDP": lambda params: package.SGDP(params, lr=1e-3, momentum=0.9),
    }


def compare(
    device: torch.device, rounds: int = 5, tensors: dict[str, list[tuple[int, ...]]] | None = None
) -> Iterator[Row]:
    """A row for every optimizer on every list of tensors."""
    for name, shapes in (tensors or TENSORS).items():
        for graph in (False, True)[: 1 + (device.type == "cuda")]:
            others = {} if graph else {f"adamp's {key}": make for key, make in peers().items()}  # they ask for numbers
            for optimizer, make in {**ours(graph), **others}.items():
                wrong = difference(optimizer, shapes, device)
                if wrong > TOLERANCE:
                    yield Row(optimizer=optimizer, tensors=name, graph=graph, ratio=None, note=f"{wrong:.0e} off")
                else:
                    yield _timed(
                        Row(optimizer=optimizer, tensors=name, graph=graph, ratio=None), make, shapes, device, rounds
                    )


def difference(name: str, shapes: list[tuple[int, ...]], device: torch.device) -> float:
    """The largest distance from the peer of the same name after a few steps; 0 where there is none."""
    if name not in peers() or name not in ours(False):
        return 0.0
    lists = []
    for make in (ours(False)[name], peers()[name]):
        params = _params(shapes, device)
        optimizer = make(params)
        for _ in range(STEPS):
            optimizer.step()
        lists.append(params)
    return max(float((one - two).detach().abs().max()) for one, two in zip(*lists, strict=True))


def _timed(row: Row, make: Make, shapes: list[tuple[int, ...]], device: torch.device, rounds: int) -> Row:
    steps, note = [], ""
    for each in (make, lambda params: AdamW(params, capturable=row.graph)):
        step = each(_params(shapes, device)).step
        step()
        if row.graph:
            step, note = graphed(step)
        steps.append(step)
    first, unit = side_by_side(
        *(functools.partial(measure, step, device) for step in steps), rounds=rounds, device=device
    )
    return Row(
        optimizer=row.optimizer, tensors=row.tensors, graph=row.graph, ratio=first / unit, seconds=unit, note=note
    )


def _params(shapes: list[tuple[int, ...]], device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params: list[Tensor] = []
    for shape in shapes:
        param = nn.Parameter(torch.randn(shape, generator=generator).to(device))
        param.grad = torch.randn(shape, generator=generator).to(device)
        params.append(param)
    return params


if __name__ == "__main__":
    for row in compare(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        time = "–" if row.ratio is None else f"{row.ratio:.2f}"
        print(
            f"{row.tensors:14}{'graph' if row.graph else 'step':7}{row.optimizer:24}{time:>7}  {row.note}", flush=True
        )
