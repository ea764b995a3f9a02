"""A training step of element-wise attention, in units of a loop over its heads as the paper describes it.

The network is the published configuration B on images of Fashion-MNIST's size: what they show changes no time. A step
is forward, loss, backward and Adam. Ours is the engine's, which also gathers its batch from bytes and is one CUDA graph
on a GPU. Beside it stand the plain layer by `torch.compile`, and one head after the other in plain torch; all are
measured in turns, in full float32 precision. Gradients are compared with those of the loop in float64 first, and
whoever gets them wrong has no time.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from nnarena.api import build, make_study
from nnarena.bench.timing import Measure, measure
from nnarena.core.errors import ArenaError, first_line
from nnarena.engine.device import computing_with, cores, synchronise
from nnarena.engine.fit import seconds_per_step
from nnarena.kernels import toolchain
from nnarena.nn.attention_wise import AttentionWise2d
from nnarena.nn.attention_wise_net import AttentionWiseNet

MODEL, TASK = "attention_wise[config=B]", "fashion_mnist"
EPOCH, CLASSES = 60_000, 10  # images of Fashion-MNIST
BATCH = {"cuda": 4096, "cpu": 64}  # the paper's, and what a CPU can do
STEPS = {"cuda": 20, "cpu": 2}  # of one measurement
# Rounding in float32 comes to 1e-6 … 2e-3 of a parameter's largest gradient, a wrong formula to 1e-1.
TOLERANCE = 1e-2
LOOP, COMPILED, OURS = "one head after the other", "torch.compile", "ours"
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to train: the time of a step of one model, in units of the loop over heads and in seconds.

    epoch            seconds for 60,000 images
    memory           bytes an image takes at most during a step, on a GPU
    gradient_error   the largest error of a parameter's gradient, as a part of its largest entry
    compile_seconds  what the first way there and back took, where something is compiled in it
    """

    way: str
    seeds: int = 1
    ratio: float | None = None
    seconds: float | None = None
    epoch: float | None = None
    memory: float | None = None
    gradient_error: float | None = None
    compile_seconds: float | None = None
    note: str = ""


class OneHead(nn.Module):
    """norm(softmax of rows ⊙ softmax of columns) ⊙ I, of one head."""

    def __init__(self, weight_x: Tensor, weight_y: Tensor) -> None:
        super().__init__()
        self.weight_x, self.weight_y = nn.Parameter(weight_x.clone()), nn.Parameter(weight_y.clone())
        self.norm = nn.BatchNorm2d(len(weight_x), affine=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.softmax(x * self.weight_x, -1)
        columns = torch.softmax(x * self.weight_y, -2)
        return self.norm(rows * columns) * x


class HeadByHead(nn.Module):
    """The network as the paper describes it, with the weights of one of ours."""

    def __init__(self, net: AttentionWiseNet) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for layer in net.layers:
            assert isinstance(layer, AttentionWise2d) and layer.skip and layer.norm is None
            pairs = zip(layer.attention.weight_x.detach(), layer.attention.weight_y.detach(), strict=True)
            conv = nn.Conv2d(layer.conv.in_channels, layer.conv.out_channels, 3, padding=1)
            conv.load_state_dict(layer.conv.state_dict())
            self.layers.append(nn.ModuleDict({"heads": nn.ModuleList(OneHead(*pair) for pair in pairs), "conv": conv}))
        self.head = nn.Linear(net.head.in_features, net.head.out_features)
        self.head.load_state_dict(net.head.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            parts = [head(x) for head in layer["heads"]]  # type: ignore[index]
            x = torch.relu(layer["conv"](torch.cat(parts, 1)) + x)  # type: ignore[index]
        return self.head(x.flatten(1))

    def gradients(self) -> list[Tensor]:
        """In the order of our own parameters: the weights of all heads are one tensor there."""
        found: list[Tensor] = []
        for layer in self.layers:
            heads, conv = layer["heads"], layer["conv"]  # type: ignore[index]
            for name in ("weight_x", "weight_y"):
                found.append(torch.stack([getattr(head, name).grad for head in heads]))
            found += [conv.weight.grad, conv.bias.grad]
        return [*found, self.head.weight.grad, self.head.bias.grad]  # type: ignore[list-item]


def compare(device: torch.device, rounds: int, seeds: int, tell: Tell) -> Iterator[Row]:
    """A row for every way; the loop over heads first."""
    with computing_with(cores(), device):
        rows, times = _measured(device, rounds, seeds, tell)
    middle = statistics.median if device.type == "cuda" else min
    unit = middle(times[0]) if 0 in times else None
    for place, row in enumerate(rows):
        if place not in times:
            yield row
            continue
        seconds = middle(times[place]) / row.seeds
        ratio = None if unit is None else seconds / unit
        yield replace(row, ratio=ratio, seconds=seconds, epoch=seconds * EPOCH / BATCH[device.type])


def _measured(device: torch.device, rounds: int, seeds: int, tell: Tell) -> tuple[list[Row], dict[int, list[float]]]:
    """The ways, and the seconds of each in every round, for those that have a right to them."""
    rows: list[Row] = []
    measures: dict[int, Measure] = {}
    for way, count in ((LOOP, 1), (COMPILED, 1), *((OURS, count) for count in dict.fromkeys((1, seeds)))):
        tell(f"{way}: checking its gradient")
        row, measured = _prepared(Row(way=way, seeds=count), device)
        if measured is not None:
            measures[len(rows)] = measured
        rows.append(row)
    times: dict[int, list[float]] = {place: [] for place in measures}
    for turn in range(rounds):
        for place, measured in measures.items():
            tell(f"{rows[place].way}: measuring, {turn + 1} of {rounds}")
            times[place].append(measured(STEPS[device.type]))
    return rows, times


def _prepared(row: Row, device: torch.device) -> tuple[Row, Measure | None]:
    """The row with its gradient error, and how its step is measured, if it has a right to that."""
    if row.way == COMPILED and toolchain.compiler() is None:
        return replace(row, note="skipped: there is no C++ compiler"), None
    try:
        row = check(row, device)
        if not (row.gradient_error is not None and row.gradient_error <= TOLERANCE):
            return replace(row, note="failed: its gradient is wrong"), None
        step = training_step(model_of(row.way, device), device)
        step()
        row = replace(row, memory=memory_of(step, device))
        ours = functools.partial(our_step, row.seeds, device)
        return row, ours if row.way == OURS else functools.partial(measure, step, device)
    except Exception as error:  # torch.compile does not go everywhere
        return replace(row, note=f"failed: {first_line(error)}"), None


def model_of(way: str, device: torch.device) -> nn.Module:
    """With the same weights for every way."""
    torch.manual_seed(0)
    net = build(MODEL, task=TASK)
    assert isinstance(net, AttentionWiseNet)
    if way == LOOP:
        return HeadByHead(net).to(device)
    return torch.compile(net.to(device)) if way == COMPILED else net.to(device)  # type: ignore[return-value]


def check(row: Row, device: torch.device) -> Row:
    """The gradient of a batch, compared with that of the loop over heads in float64."""
    x, y = batch(device)
    model, exact = model_of(row.way, device), model_of(LOOP, device).double()
    assert isinstance(exact, HeadByHead)
    began = time.perf_counter()
    cross_entropy(model(x), y).backward()
    if row.way == COMPILED:
        synchronise(device)
        row = replace(row, compile_seconds=time.perf_counter() - began)
    cross_entropy(exact(x.double()), y).backward()
    slopes = model.gradients() if isinstance(model, HeadByHead) else [param.grad for param in model.parameters()]
    errors = []
    for slope, wanted in zip(slopes, exact.gradients(), strict=True):
        if slope is None or slope.shape != wanted.shape:
            raise ArenaError("a parameter has no gradient, or one of another shape.")
        errors.append(float((slope.double() - wanted).abs().max() / wanted.abs().max()))
    return replace(row, gradient_error=max(errors))


def training_step(model: nn.Module, device: torch.device) -> Callable[[], None]:
    """As most people write it."""
    x, y = batch(device)
    optimizer = Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def our_step(seeds: int, device: torch.device, steps: int) -> float:
    """Seconds of a step of the engine, all seeds as one."""
    settings = {"batch_size": BATCH[device.type], "threads": cores()}
    study = make_study(None, [TASK], [MODEL], ["adam"], seeds=seeds, settings=settings)
    return seconds_per_step(study.trials(), device, steps)


def memory_of(step: Callable[[], None], device: torch.device) -> float | None:
    """Bytes an image takes in the greatest moment of a step, above what lies there anyway."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return (torch.cuda.max_memory_allocated(device) - before) / BATCH[device.type]


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    generator, count = torch.Generator().manual_seed(0), BATCH[device.type]
    x = torch.randn(count, 1, 28, 28, generator=generator)
    return x.to(device), torch.randint(CLASSES, (count,), generator=generator).to(device)
