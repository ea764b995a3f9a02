"""Where the time of a training step goes on a GPU: the loop forward, the loop back, products after it, and the rest.

The plan of a kernel (`kernels.compiler.plan.Plan`) says how many samples a program holds, how many warps compute it,
what is saved, and more. Each can be changed here, to see what it is worth on the GPU at hand. No time without a right
gradient.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nnarena.bench import peers
from nnarena.bench.recurrence import (
    LOOSE,
    TOLERANCE,
    build,
    gradient_error,
    known,
    make_task,
    population_step,
    recurrent_layers,
    together,
    trained,
    training_step,
    use,
    worst_error,
)
from nnarena.bench.recurrence import batch as samples_of
from nnarena.bench.timing import Step, graphed, measure
from nnarena.core.components import find
from nnarena.core.errors import BadOption, Unfit, first_line
from nnarena.core.task import Task
from nnarena.kernels import recurrence
from nnarena.kernels.compiler.plan import Plan

Changes = dict[str, Any]  # options of a plan
CALLS = 5  # that are looked at
AFTER = ("outer_products", "thin_products", "sums", "add_up")  # kernels of what comes after the loops
KINDS = {"forward": "forward", "backward": "backward", **dict.fromkeys(AFTER, "products")}


@dataclass(frozen=True, kw_only=True)
class Row:
    """The time of a training step without the optimizer, and its parts, in seconds.

    plan            how it differs from what the arena plans
    seconds         of the step in a CUDA graph
    forward         of it in the loop, backward in the loop back, products in what makes gradients of weights after it
    rest            all other kernels, and how many
    gradient_error  as `bench recurrence` has it; of several seeds, the first one's
    """

    model: str
    seeds: int
    plan: str = ""
    seconds: float | None = None
    forward: float | None = None
    backward: float | None = None
    products: float | None = None
    rest: float | None = None
    launches: int | None = None
    gradient_error: float | None = None
    note: str = ""


def choose(names: list[str]) -> list[str]:
    """All recurrent models, or those asked for."""
    for name in names:
        find("model", name)
        if not _has_loops(name):
            raise BadOption(f"{name} has no recurrent layer whose kernels could be measured.")
    return names or [name for name in known() if name not in peers.PEERS and _has_loops(name)]


def read_seeds(text: str) -> list[int]:
    """The numbers of `1,16`. BadOption if one is none."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise BadOption(f"--seeds is a number or several, such as 1,16, not {text!r}.")
    return [int(word) for word in words]


def read_changes(text: str) -> Changes:
    """The options of `warps=8,announce=no`. BadOption if a plan has none of that name, or it cannot have that value."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(Plan)}
    found: Changes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in kinds:
            raise BadOption(f"A plan has no option {name!r}; it has {', '.join(kinds)}.")
        found[name] = _value(name, value, kinds[name])
    return found


def _value(name: str, value: str, kind: str) -> int | bool | str:
    truths = {"yes": True, "true": True, "no": False, "false": False}
    if kind.startswith("bool") and value.lower() in truths:
        return truths[value.lower()]
    if kind == "int" and value.isdigit():
        return int(value)
    if kind == "str" and value:
        return value
    wanted = "a whole number" if kind == "int" else "yes or no" if kind.startswith("bool") else "a word"
    raise BadOption(f"{name} is {wanted}, not {value!r}: --plan {name}={'8' if kind == 'int' else 'yes'}.")


def compare(
    names: list[str], seeds: list[int], plans: list[str], device: torch.device, tell: Callable[[str], None]
) -> Iterator[Row]:
    """A row for every model, number of seeds and plan; what the arena plans first."""
    changes = {text: read_changes(text) for text in ("", *plans)}
    for name in names:
        for count in seeds:
            for text, options in changes.items():
                tell(f"{name}, {count} at once, {text or 'as planned'}")
                row = Row(model=name, seeds=count, plan=text)
                try:
                    yield _measured(row, options, device)
                except Exception as error:
                    yield dataclasses.replace(row, note=f"failed: {first_line(error)}")


def _measured(row: Row, options: Changes, device: torch.device) -> Row:
    task = make_task(row.model)
    models = [use(build(row.model, task, device, seed), "fused") for seed in range(row.seeds)]
    x, y = samples_of(task, device)

    def make() -> Step:
        if row.seeds == 1:
            return training_step(models[0], task, x, y, optimizer=False)
        return population_step(models, task, x, y, optimizer=False)

    recurrence.forget()
    make()()
    if options:
        replan(options, device)
    error = first_error(models, task, x, y)
    row = dataclasses.replace(row, gradient_error=error)
    if not error <= LOOSE.get(row.model, TOLERANCE):
        return dataclasses.replace(row, note="failed: its gradient is wrong")
    step = make()
    step()
    parts = profile(step)
    quick, note = graphed(step)
    seconds = min(measure(quick, device, 20) for _ in range(3))
    notes = [note] * bool(note) + ["the profiler sees no kernels here"] * (not parts)
    return dataclasses.replace(row, seconds=seconds, note="; ".join(notes), **parts)


def replan(options: Changes, device: torch.device) -> None:
    """Kernels of all loops that were built since, by other plans."""
    from nnarena.kernels.gpu.runtime import Loop

    for loop in recurrence.built():
        if isinstance(loop, Loop):
            loop.replan(**options)
            if not all(kernels.fit(device, loop.signature) for kernels in loop.kernels.values()):
                raise ValueError("the chip has not so much shared memory.")


def first_error(models: list[nn.Module], task: Task, x: Tensor, y: Tensor) -> float:
    """The gradient error of the first of several models that are trained at once."""
    if len(models) == 1:
        return gradient_error(models[0], task, x, y)
    params, losses_of = together(models, task, x, y)
    wanted = [params[name] for name, param in models[0].named_parameters() if param.requires_grad]
    found = torch.autograd.grad(losses_of(params).sum(), wanted, allow_unused=True)
    firsts = [
        torch.zeros_like(param) if grad is None else grad[0]
        for param, grad in zip(trained(models[0]), found, strict=True)
    ]
    return worst_error(firsts, models[0], task, x, y)


def profile(step: Step) -> dict[str, Any]:
    """What kernels of a step take, in seconds, by what they are for; and how many there are for all else.

    Nothing, where the driver does not let us look.
    """
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()
    totals: dict[str, float] = dict.fromkeys((*KINDS.values(), "rest"), 0.0)
    launches = 0
    for event in seen.key_averages():
        kind = KINDS.get(event.key, "rest")
        totals[kind] += event.self_device_time_total / 1e6 / CALLS
        launches += event.count if kind == "rest" and event.self_device_time_total else 0
    return {**totals, "launches": round(launches / CALLS)} if any(totals.values()) else {}


def _has_loops(name: str) -> bool:
    with contextlib.suppress(Unfit):  # what reads no sequences
        return bool(recurrent_layers(build(name, make_task(name), torch.device("cpu"))))
    return False
