"""The figures of one model with one batch: gradients through time and depth, activations, weights.

B samples, T steps. Norms of gradients are those of a sample's own loss L_b, averaged over the samples, so that they do
not depend on how many there are; that of a sequence of tokens is the sum over them in units of their mean number. Who
writes tokens is told as much of the target as in training. All is computed in float64, where a gradient that has shrunk
by 10⁶⁰ is still a number; a model that insists on float32, as one does that makes tensors of its own, is left in it.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from nnarena.core.spec import PADDING
from nnarena.core.task import Task
from nnarena.diagnose.jacobian import LARGEST, stretching
from nnarena.diagnose.record import Layer, Record

NOISE = 0  # the seed of dropout, the same before and after training
Inputs = tuple[Tensor, ...]


def measure(model: nn.Module, task: Task, inputs: Inputs, targets: Tensor) -> dict[str, Any]:
    """What `nnarena diagnose --json` has under "before" and "after". The model is left as it is.

    It computes as in training: batch norms by this batch, dropout by one fixed seed.
    """
    try:
        record, inputs, loss = _loss(model, task, inputs, targets, torch.float64)
    except RuntimeError:
        record, inputs, loss = _loss(model, task, inputs, targets, torch.float32)
    x = inputs[0]
    named = {name: param for name, param in record.model.named_parameters() if param.requires_grad}
    gradient = _Gradients(loss, [x, *_handed(record), *_outputs(record), *named.values()])
    return {
        "precision": str(loss.dtype).removeprefix("torch."),
        "loss": float(loss.detach()),
        "flow": [*_input_flow(record, x, task, gradient), *_state_flow(record, len(x), gradient)],
        "jacobian": [found for loop in record.loops if (found := stretching(loop)) is not None],
        "too_large": [loop.name for loop in record.loops if loop.states[0].shape[1] > LARGEST],
        "layers": [_layer(layer, len(x), gradient) for layer in record.layers],
        "parameters": [_parameter(name, param, gradient) for name, param in named.items()],
    }


def _loss(
    model: nn.Module, task: Task, inputs: Inputs, targets: Tensor, dtype: torch.dtype
) -> tuple[Record, Inputs, Tensor]:
    """The loss of a copy of the model in this type, all on the way to it, and the inputs as they went in."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().cpu().to(dtype) if tensor.is_floating_point() else tensor.cpu()

    record = Record(copy.deepcopy(model).to("cpu", dtype).train())
    inputs = tuple(map(cast, inputs))
    if inputs[0].is_floating_point():
        inputs = (inputs[0].clone().requires_grad_(), *inputs[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(NOISE)
        with record.watching():
            loss = task.teach(record.model, inputs, cast(targets))
    return record, inputs, loss


class _Gradients:
    """∂L/∂ of many tensors, from one backward pass; zeros where L does not depend on one."""

    def __init__(self, loss: Tensor, tensors: list[Tensor]) -> None:
        asked = list({id(tensor): tensor for tensor in tensors if tensor.requires_grad}.values())
        found = torch.autograd.grad(loss, asked, allow_unused=True)
        self.of = {id(tensor): grad for tensor, grad in zip(asked, found, strict=True) if grad is not None}

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.of.get(id(tensor), torch.zeros_like(tensor))


def _handed(record: Record) -> list[Tensor]:
    return [part for loop in record.loops for parts in loop.handed for part in parts]


def _outputs(record: Record) -> list[Tensor]:
    return [output for layer in record.layers for output in layer.outputs]


def _norm(grads: list[Tensor], samples: int) -> float:
    """The mean over rows of ‖∂L_b/∂·‖: the loss is a mean over samples, so a sample's own is so many times that."""
    rows = torch.cat([grad.reshape(len(grad), -1) for grad in grads], 1)
    return samples * float(rows.norm(dim=1).mean())


def _input_flow(record: Record, x: Tensor, task: Task, gradient: _Gradients) -> list[dict[str, Any]]:
    """∂L/∂x_t; of what stands for x_t first, where inputs are symbols. Padding is no input."""
    if task.spec.vocabulary:
        there = x != PADDING
    elif len(task.spec.input_shape) == 2:
        there = torch.ones(x.shape[:2], dtype=torch.bool)
    else:
        return []
    name, read = ("input", x) if x.is_floating_point() else _stand_in(record, x)
    if read is None:
        return []
    steps = zip(gradient(read).unbind(1), there.unbind(1), strict=True)
    norms = [_norm([step[real]], len(x)) for step, real in steps if real.any()]
    return [_flow(name, "input", norms)]


def _stand_in(record: Record, x: Tensor) -> tuple[str, Tensor | None]:
    """The first layer that makes numbers of every symbol, and these numbers (B, T, …)."""
    for layer in record.layers:
        if layer.outputs[0].dim() > 2 and layer.outputs[0].shape[:2] == x.shape[:2]:
            return layer.name, layer.outputs[0]
    return "", None


def _state_flow(record: Record, samples: int, gradient: _Gradients) -> list[dict[str, Any]]:
    return [
        _flow(loop.name, "state", [_norm([gradient(part) for part in parts], samples) for parts in loop.handed])
        for loop in record.loops
    ]


def _flow(name: str, what: str, by_step: list[float]) -> dict[str, Any]:
    """`norms[k]` is that of k steps before the last.

    `ratio` is the first step's to the last's, and `factor` what each step makes of it on average: its T−1st root.
    """
    norms = by_step[::-1]
    ratio = norms[-1] / norms[0] if norms[0] > 0 else math.nan
    factor = ratio ** (1 / (len(norms) - 1)) if len(norms) > 1 else math.nan
    return {"name": name, "of": what, "norms": norms, "ratio": ratio, "factor": factor}


def _layer(layer: Layer, samples: int, gradient: _Gradients) -> dict[str, Any]:
    numbers = torch.cat([output.detach().flatten() for output in layer.outputs])
    grads = [gradient(output) for output in layer.outputs]
    alike = len({len(grad) for grad in grads}) == 1
    norm = _norm(grads, samples) if alike else math.sqrt(sum(_norm([grad], samples) ** 2 for grad in grads))
    return {
        "name": layer.name,
        "kind": layer.kind,
        **_statistics(numbers),
        "dead": layer.dead(),
        "saturated": layer.saturated / layer.squashed if layer.squashed else None,
        "gradient": norm,
    }


def _parameter(name: str, param: Tensor, gradient: _Gradients) -> dict[str, Any]:
    """The gradient of the mean loss, as an optimizer gets it, and how long it is beside the weights."""
    norm, size = float(gradient(param).norm()), float(param.detach().norm())
    statistics = _statistics(param.detach().flatten())
    relative = norm / size if size else math.nan
    return {"name": name, "shape": list(param.shape), **statistics, "gradient": norm, "relative": relative}


def _statistics(numbers: Tensor) -> dict[str, float]:
    return {
        "mean": float(numbers.mean()),
        "std": float(numbers.std(unbiased=False)),
        "low": float(numbers.min()),
        "high": float(numbers.max()),
    }
