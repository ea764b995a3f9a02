"""A trial in the middle of its training, as one file: weights, the best weights, optimizer and schedule.

Where the model learns from what it does, all that its learner needs to go on is there too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nnarena.core.errors import StoreError
from nnarena.core.learner import Learner
from nnarena.engine.schedule import Schedule
from nnarena.engine.step import State
from nnarena.engine.tensors import load, save

NOW, BEST, OPTIMIZER, LEARNER = "now/", "best/", "optimizer/", "learner/"
HOW = ("capturable", "foreach", "fused")  # settings of how a device computes; another one may go on its own way


def save_checkpoint(
    path: Path, state: State, best: dict[str, Tensor], schedule: Schedule, learner: Learner | None = None
) -> None:
    tensors = {NOW + name: tensor for name, tensor in state.weights().items()}
    tensors |= {BEST + name: tensor for name, tensor in best.items()}
    optimizer, numbers = pack_optimizer(state.optimizer)
    tensors |= {OPTIMIZER + name: tensor for name, tensor in optimizer.items()}
    metadata = {"optimizer": json.dumps(numbers), "schedule": json.dumps(schedule.state())}
    if learner is not None:
        tensors |= {LEARNER + name: tensor for name, tensor in learner.tensors().items()}
        for name, optimizer in learner.optimizers.items():
            packed, numbers = pack_optimizer(optimizer)
            tensors |= {f"{name}/{key}": tensor for key, tensor in packed.items()}
            metadata[name] = json.dumps(numbers)
    save(path, tensors, metadata)


@torch.no_grad()
def load_checkpoint(path: Path, state: State, schedule: Schedule, learner: Learner | None = None) -> dict[str, Tensor]:
    """Put everything back where it was; returns the best weights. StoreError if the file is of no use."""
    tensors, metadata = load(path)
    weights = state.weights()
    shapes = {NOW + name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: tensor.shape for name, tensor in tensors.items() if name.startswith(NOW)}:
        raise StoreError(f"{path} does not belong to this trial: its tensors have other names or shapes.")
    try:
        progress = json.loads(metadata["schedule"])
        Schedule(schedule.protocol).restore(progress)
        if learner is not None:
            learner.load(_under(LEARNER, tensors))
            for name, optimizer in learner.optimizers.items():
                unpack_optimizer(optimizer, _under(f"{name}/", tensors), json.loads(metadata[name]))
        unpack_optimizer(state.optimizer, _under(OPTIMIZER, tensors), json.loads(metadata["optimizer"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged: {type(error).__name__}: {error}.") from error
    schedule.restore(progress)
    for name, tensor in weights.items():
        tensor.copy_(tensors[NOW + name])
    device = next(iter(weights.values())).device
    return {name: tensor.to(device) for name, tensor in _under(BEST, tensors).items()}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def pack_optimizer(optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """`state_dict` taken apart: tensors by `<parameter>/<name>`, and everything else as JSON."""
    content = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for number, entries in content["state"].items():
        for name, value in entries.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{number}/{name}"] = value
    return tensors, {"state": numbers, "groups": content["param_groups"]}


def unpack_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *numbers["state"].items()]:
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    groups = [{key: _tuples(value) for key, value in group.items()} for group in numbers["groups"]]
    for group, mine in zip(groups, optimizer.param_groups, strict=True):
        group |= {key: mine[key] for key in HOW if key in mine}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _tuples(value: Any) -> Any:
    """JSON has lists only; torch's groups hold `betas` as a tuple and `params` as a list."""
    return tuple(value) if isinstance(value, list) and value and isinstance(value[0], float) else value
