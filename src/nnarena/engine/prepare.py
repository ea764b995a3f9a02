"""A trial made ready: data, split, model and optimizer, all on the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nnarena.core.components import Component
from nnarena.core.errors import ArenaError, Unfit
from nnarena.core.options import Value
from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.core.trial import Trial
from nnarena.engine.graph import all_at_once, make_recordable
from nnarena.engine.hold import hold_back
from nnarena.engine.regime import Regime, check_regime, check_weights, regime_of, wrong_labels
from nnarena.engine.splits import Split, split
from nnarena.engine.start import set_start
from nnarena.engine.step import Data, State, image_layout, multiply_in
from nnarena.engine.transfer import begin, find_weights

Log = Callable[[str], None]
PARTS = ("train", "validation", "test")


def silent(text: str) -> None:
    """Nobody is told."""


@dataclass
class Ready:
    """Everything that training needs, and nothing trained yet."""

    task: Task
    model: nn.Module
    state: State
    samples: Samples
    split: Split
    parts: dict[str, Data]
    parameters: int
    regime: Regime = field(default_factory=Regime)


def prepare(trial: Trial, device: torch.device, weights: Path | None = None, log: Log = silent) -> Ready:
    """Data, split, model and optimizer of a trial. Rivals with the same seed get the same data and split.

    `weights` are those that it starts with, where they are those of another trial.
    """
    task: Task = trial.components["task"].load()(**trial.options["task"])
    samples = _samples(trial.components["task"], tuple(trial.options["task"].items()), trial.axis("data"))
    if trial.protocol.samples is not None:
        samples = samples.first(trial.protocol.samples)
    rng = np.random.default_rng(trial.axis("split"))
    parts = split(len(samples), samples.series, trial.protocol, rng, samples.set_aside)
    return make_ready(trial, task, *changed_training(trial, task.spec, samples, parts), device, weights, log)


def changed_training(trial: Trial, spec: TaskSpec, samples: Samples, parts: Split) -> tuple[Samples, Split]:
    """Wrong labels among the training samples, and a part of these drawn again and again, if the protocol says so."""
    protocol = trial.protocol
    if protocol.label_noise:
        rng = np.random.default_rng(trial.axis("label_noise"))
        samples = replace(
            samples, targets=wrong_labels(samples.targets, parts.train, protocol.label_noise, spec.output_size, rng)
        )
    if protocol.bagging:
        rng = np.random.default_rng(trial.axis("bagging"))
        parts = replace(parts, train=rng.choice(parts.train, len(parts.train)))
    return samples, parts


def make_ready(
    trial: Trial,
    task: Task,
    samples: Samples,
    parts: Split,
    device: torch.device,
    weights: Path | None = None,
    log: Log = silent,
) -> Ready:
    """Model and optimizer of a trial, and some samples as they were split, all on the device."""
    model = multiply_in(trial.protocol.precision, build_model(trial, task, weights, log), device)
    state = make_state(trial, model, device)
    layout = image_layout(model, trial.protocol.precision, device)
    noise = trial.common("model").get("input_noise", 0.0)
    return Ready(
        task=task,
        model=model.to(device),
        state=state,
        samples=samples,
        split=parts,
        parts={
            name: _on_device(task, samples, getattr(parts, name), device, layout, noise if name == "train" else 0.0)
            for name in PARTS
        },
        parameters=sum(param.numel() for param in state.params.values()),
        regime=regime_of(trial),
    )


@functools.lru_cache(maxsize=1)
def _samples(component: Component, options: tuple[tuple[str, Value], ...], seed: int) -> Samples:
    """A task's data, kept for the next trial: rivals with the same seed come one after another."""
    return component.load()(**dict(options)).samples(np.random.default_rng(seed))


def make_state(trial: Trial, model: nn.Module, device: torch.device) -> State:
    """What is trained, what is not (buffers and frozen parameters), and the optimizer of the former."""
    named = dict(model.named_parameters())
    params = {name: p.detach().to(device).requires_grad_() for name, p in named.items() if p.requires_grad}
    fixed = {name: p.detach().to(device) for name, p in named.items() if not p.requires_grad}
    buffers = {name: buffer.to(device) for name, buffer in model.named_buffers()}
    return State(params, fixed | buffers, make_optimizer(trial, params, device))


def make_optimizer(
    trial: Trial,
    params: Mapping[str, Tensor],
    device: torch.device,
    population_dims: int = 0,
    own_rates: bool = True,
    **more: Value,
) -> Optimizer:
    """The trial's optimizer of some tensors; `more` takes the place of its options.

    Some have learning rates of their own if it says so, unless the tensors are none of the model's (`own_rates`).
    So many first dimensions of the tensors count members as `population_dims` says.
    """
    component = trial.components["optimizer"]
    options = {**component.own(trial.options["optimizer"]), **more}
    groups = with_own_rates(params, trial.common("optimizer").get("lr_of", "") if own_rates else "")
    optimizer = make_recordable(component.load()(groups, **options), device)
    if device.type == "cuda":
        all_at_once(optimizer)
    if population_dims and hasattr(optimizer, "population_dims"):
        optimizer.population_dims = population_dims  # type: ignore[attr-defined]
    return hold_back(optimizer, trial.common("model") | trial.common("optimizer"), population_dims)


def with_own_rates(params: Mapping[str, Tensor], rates: str) -> list[Any]:
    """The parameters; in groups where some have a learning rate of their own, as in attention:0.1+head:0.01."""
    if not rates:
        return list(params.values())
    groups: dict[str, dict[str, Any]] = {"": {"params": []}}
    for item in rates.split("+"):
        part, _, rate = item.partition(":")
        try:
            groups[part] = {"params": [], "lr": float(rate)}
        except ValueError:
            part = ""
        if not part or not groups[part]["lr"] > 0:
            raise ArenaError(f"lr_of is a part of names and a learning rate, as in attention:0.1, not {item!r}.")
    for name, param in params.items():
        groups[next((part for part in groups if part and part in name), "")]["params"].append(param)
    idle = [part for part, group in groups.items() if part and not group["params"]]
    if idle:
        names = ", ".join(dict.fromkeys(name.partition(".")[0] for name in params))
        raise ArenaError(f"lr_of: no parameter has {idle[0]!r} in its name; they begin with {names}.")
    return [group for group in groups.values() if group["params"]]


def build_model(trial: Trial, task: Task, weights: Path | None = None, log: Log = silent) -> nn.Module:
    """The competitor with its start values, which depend on the study, the task and the seed.

    If it starts with the weights of another trial, they are read from `weights`, else from where that trial lies.
    """
    check_regime(trial, task)
    component, options = trial.components["model"], trial.options["model"]
    settings = trial.common("model")
    init = settings.get("init")
    wider = replace(task.spec, output_size=task.spec.output_size + 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.axis("start"))
        try:
            model = component.load()(task.spec, **component.own(options))
            if init is not None:
                set_start(model, init, trial.axis("init"))
            build_wider = partial(component.load(), wider, **component.own(options))
            said = begin(model, settings, weights or find_weights(trial), build_wider)
            check_weights(model, settings)
        except Exception as error:
            text = error if isinstance(error, ArenaError) else f"{type(error).__name__}: {error}"
            raise Unfit(f"{trial.model.label} does not fit {trial.task.label}: {text}") from error
    if said:
        log(f"{'/'.join(trial.cell)}: {said}.")
    return model


def _on_device(
    task: Task,
    samples: Samples,
    index: np.ndarray,
    device: torch.device,
    layout: torch.memory_format,
    input_noise: float,
) -> Data:
    arrays = [samples.inputs, *([] if samples.timespans is None else [samples.timespans])]
    inputs = tuple(torch.from_numpy(np.ascontiguousarray(array[index])).to(device) for array in arrays)
    targets = torch.from_numpy(np.ascontiguousarray(samples.targets[index])).to(device)
    return Data(inputs, targets, task, layout, input_noise)
