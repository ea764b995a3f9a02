"""A step of our optimizers, in units of torch's fused AdamW, beside the packages that have them too.

Only the step: gradients lie ready, and stay where they are. Each is measured in turns with the unit on the same
tensors; on a GPU also as one CUDA graph, where that is possible. Ours are compared with float64 first, and have no time
where they are wrong.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from nnarena.bench.timing import graphed, measure, side_by_side
from nnarena.core.errors import BadOption, UnknownName, first_line
from nnarena.optim import SGDP, AdamP, OrthAdam

Make = Callable[..., Optimizer]  # from tensors, and `capturable`
Shapes = list[tuple[int, ...]]
Tell = Callable[[str], None]
NETWORKS = ("resnet18", "densenet121", "resnext50_32x4d")
CELL: Shapes = [(256, 2), (256, 64), (256,), (256,), (1, 64), (1,)]  # an LSTM of the arena with its head
STEPS, TOLERANCE = 5, 1e-5  # of the comparison
UNIT = "torch AdamW, fused"
RELEASED: dict[str, Any] = {"threshold": "constant", "eps_place": "outside", "decay": "released", "project": "all"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One optimizer on one network: its time in units of fused AdamW's, and in seconds.

    `graph` and `graph_seconds` are those of a CUDA graph; `error` is the distance from float64, as a part of the way.
    """

    optimizer: str
    network: str
    ratio: float | None = None
    seconds: float | None = None
    graph: float | None = None
    graph_seconds: float | None = None
    error: float | None = None
    note: str = ""


def torchs() -> dict[str, Make]:
    return {
        UNIT: functools.partial(AdamW, fused=True),
        "torch AdamW, foreach": functools.partial(AdamW, foreach=True),
    }


def ours() -> dict[str, Make]:
    return {
        "OrthAdam": OrthAdam,
        "OrthAdam, by channels": functools.partial(OrthAdam, view="channel"),
        "OrthAdam, as released": functools.partial(OrthAdam, **RELEASED),
        "AdamP": AdamP,
        "SGDP": lambda params, capturable=False, **options: SGDP(params, momentum=0.9, **options),
    }


def peers() -> dict[str, Make | None]:
    """What other packages have; none where one is not installed. They cannot be recorded."""
    found: dict[str, Make | None] = {}
    for package, module, names in (
        ("adamp", "adamp", ("AdamP", "SGDP")),
        ("pytorch-optimizer", "pytorch_optimizer", ("AdamP", "SGDP")),
    ):
        there = importlib.util.find_spec(module) is not None
        for name in names:
            kind = getattr(importlib.import_module(module), name) if there else None
            options = {"lr": 1e-3, **({"momentum": 0.9} if name == "SGDP" else {})}
            found[f"{package} {name}"] = kind and functools.partial(kind, **options)
    return found


def choose(networks: Sequence[str]) -> dict[str, Shapes]:
    """The tensors of some networks, all if none is named; those of torchvision only where it is installed."""
    for name in networks:
        if name not in ("cell", *NETWORKS):
            raise UnknownName("network", name, ("cell", *NETWORKS))
        if name != "cell" and not _has_torchvision():
            raise BadOption(f"The tensors of {name} are torchvision's: pip install torchvision, or take `cell`.")
    names = networks or ["cell", *(NETWORKS if _has_torchvision() else ())]
    return {name: CELL if name == "cell" else _shapes(name) for name in names}


def compare(device: torch.device, networks: dict[str, Shapes], rounds: int, tell: Tell) -> Iterator[Row]:
    """A row for every optimizer on every network."""
    for network, shapes in networks.items():
        for name, make in {**torchs(), **ours(), **peers()}.items():
            row = Row(optimizer=name, network=network)
            tell(f"{network}, {name}")
            if make is None:
                yield replace(row, note=f"skipped: {name.split()[0]} is not installed")
                continue
            if name in ours():
                row = replace(row, error=error_of(make, shapes, device))
                if not (row.error is not None and row.error <= TOLERANCE):
                    yield replace(row, note="failed: its step is wrong")
                    continue
            yield _timed(row, make, shapes, device, rounds, record=name not in peers())


def error_of(make: Make, shapes: Shapes, device: torch.device) -> float:
    """The distance from a few steps in float64, by lists of tensors, as a part of the way."""
    ends = []
    for dtype, options in ((torch.float32, {}), (torch.float64, {"foreach": True})):
        params = _params(shapes, device, dtype)
        starts = [param.detach().clone() for param in params]
        optimizer = make(params, **options)
        for _ in range(STEPS):
            optimizer.step()
        ends.append([(p.detach() - start).double() for p, start in zip(params, starts, strict=True)])
    distance = sum(float((one - two).square().sum()) for one, two in zip(*ends, strict=True))
    return (distance / sum(float(one.square().sum()) for one in ends[1])) ** 0.5


def _timed(row: Row, make: Make, shapes: Shapes, device: torch.device, rounds: int, record: bool) -> Row:
    makes = (make, torchs()[UNIT])
    try:
        ours, unit = (functools.partial(measure, each(_params(shapes, device)).step, device) for each in makes)
        seconds, of_unit = side_by_side(ours, unit, rounds, device)
        row = replace(row, ratio=seconds / of_unit, seconds=seconds)
        if device.type == "cuda" and record:
            found = [graphed(each(_params(shapes, device), capturable=True).step) for each in makes]
            ours, unit = (functools.partial(measure, step, device) for step, _ in found)
            seconds, of_unit = side_by_side(ours, unit, rounds, device)
            note = "; ".join(note for _, note in found if note)
            row = replace(row, graph=seconds / of_unit, graph_seconds=seconds, note=note)
    except Exception as error:  # a peer that does not go with this torch
        return replace(row, ratio=None, note=f"failed: {type(error).__name__}: {first_line(error)}")
    return row


def _has_torchvision() -> bool:
    return importlib.util.find_spec("torchvision") is not None


def _shapes(name: str) -> Shapes:
    import torchvision

    with torch.device("meta"):
        return [tuple(param.shape) for param in getattr(torchvision.models, name)(num_classes=10).parameters()]


def _params(shapes: Shapes, device: torch.device, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params: list[Tensor] = []
    for shape in shapes:
        numbers, slopes = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2))
        param = nn.Parameter(0.02 * numbers)  # about as large as weights are
        param.grad = slopes
        params.append(param)
    return params
