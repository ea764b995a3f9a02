"""What one forward pass of a model leaves behind: the states of its recurrent layers, the outputs of all others.

B samples, T steps, D numbers of a state. Recurrent layers, ours and torch's, are driven step by step, whatever their
backend: the numbers are the same, and every state can be asked for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from nnarena.diagnose.torch_loops import forward_by
from nnarena.kernels.compiler.trace import repeated
from nnarena.kernels.recurrence import computed, eager
from nnarena.nn.recurrent import Recurrent

SATURATED = 0.05  # of its steepest slope: flatter than that, a sigmoid or tanh is saturated
SAME = 1e-6  # of the largest number of a layer: a unit that varies less is constant


@dataclass
class Loop:
    """One run of a recurrent layer over time; it may take several calls, each going on where the last one ended.

    start, end the state before the first step, and after the last one
    handed     what each step hands on, as (B, D): its state, and its output where that is not a part of the state
    """

    name: str
    step: Callable[..., Any]
    constants: Any
    projected: tuple[Tensor, ...]
    several: bool
    start: Any
    end: Any = None
    states: list[Tensor] = field(default_factory=list)
    handed: list[list[Tensor]] = field(default_factory=list)

    def goes_on_with(self, state: Any) -> bool:
        """Whether this state is, and does not only equal, the one that was left."""
        left, given = pytree.tree_leaves(self.end), pytree.tree_leaves(state)
        return len(left) == len(given) and all(mine is other for mine, other in zip(left, given, strict=True))

    def input(self, step: int, sample: int) -> Any:
        """What the step reads, for one sample: (1, …), or several such."""
        rows = [part[:, step] for part in self.projected]
        rows = [row[sample : sample + 1] if len(row) > 1 else row for row in rows]
        return tuple(rows) if self.several else rows[0]

    def state(self, step: int, sample: int) -> Tensor:
        """(D) before the step."""
        return (self.states[step - 1] if step else flatten(self.start))[sample].detach()

    def unflatten(self, flat: Tensor) -> Any:
        """(B, D) as the cell knows it."""
        return unflatten(flat, self.start)


def flatten(state: Any) -> Tensor:
    """All parts of a state side by side, (B, D)."""
    return torch.cat([part.flatten(1) for part in pytree.tree_leaves(state)], 1)


def unflatten(flat: Tensor, like: Any) -> Any:
    parts, structure = pytree.tree_flatten(like)
    split = flat.split([part[0].numel() for part in parts], 1)
    parts = [piece.reshape(len(flat), *part.shape[1:]) for piece, part in zip(split, parts, strict=True)]
    return pytree.tree_unflatten(parts, structure)


@dataclass
class Layer:
    """One module: the numbers of its outputs, those that squash, and the outputs themselves for their gradients."""

    name: str
    module: nn.Module
    outputs: list[Tensor] = field(default_factory=list)
    squashed: int = 0
    saturated: int = 0
    rectified: dict[int, Tensor] = field(default_factory=dict)  # number of units: the largest value of each

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def dead(self) -> float | None:
        """The share of units that say the same to every sample: ReLUs that are never on, else constant outputs."""
        if self.rectified:
            return float(torch.cat([most == 0 for most in self.rectified.values()]).double().mean())
        if not self.outputs or self.outputs[0].dim() < 2:
            return None
        rows = torch.cat([by_unit(output.detach()) for output in self.outputs])
        spread = rows.amax(0) - rows.amin(0)
        return float((spread <= SAME * rows.abs().amax()).double().mean())


def by_unit(x: Tensor) -> Tensor:
    """(rows, units): a unit is a channel of an image, else the last axis."""
    return (x.movedim(1, -1) if x.dim() == 4 else x).flatten(0, -2)


class Squashing(TorchDispatchMode):
    """Sees every sigmoid, tanh and ReLU, wherever it is computed, and counts it for the module that runs."""

    def __init__(self, running: list[Layer]) -> None:
        super().__init__()
        self.running = running

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.running and isinstance(out, Tensor):
            kind = func._schema.name.removeprefix("aten::").removesuffix("_")
            if kind in ("sigmoid", "tanh"):
                slope = 4 * out * (1 - out) if kind == "sigmoid" else 1 - out * out
                self.running[-1].squashed += out.numel()
                self.running[-1].saturated += int((slope < SATURATED).sum())
            elif kind == "relu" and out.dim() > 1:
                most, known = by_unit(out).amax(0), self.running[-1].rectified
                known[len(most)] = torch.maximum(most, known.get(len(most), most))
        return out


class Record:
    """All loops and layers of one forward pass, in the order in which they ran."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.loops: list[Loop] = []
        self._layers: dict[str, Layer] = {}
        self._done: dict[str, Layer] = {}
        self._running: list[Layer] = []

    @property
    def layers(self) -> list[Layer]:
        """Those that compute something themselves, not by their parts; in the order in which they were done first."""
        return [layer for layer in self._done.values() if _acts(layer)]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, a call of the model is recorded."""
        with ExitStack() as held:
            for name, module in _outside_of_cells(self.model):
                if isinstance(module, Recurrent):
                    drive = partial(self._drive, name, module)
                    held.enter_context(_set(module, backend="eager", drive=drive))
                elif isinstance(module, nn.RNNBase):
                    forward = forward_by(partial(self._step_by_step, name), module)
                    held.enter_context(_set(module, forward=forward))
                for hook in (
                    module.register_forward_pre_hook(partial(self._begin, name)),
                    module.register_forward_hook(self._end),
                ):
                    held.callback(hook.remove)
            held.enter_context(Squashing(self._running))
            yield

    def _begin(self, name: str, module: nn.Module, inputs: Any) -> None:
        self._running.append(self._layers.setdefault(name, Layer(name, module)))

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        layer = self._running.pop()
        first = output[0] if type(output) is tuple and output else output
        if not isinstance(first, Tensor) or not first.is_floating_point() or _passed_on(first, inputs):
            return None
        layer.outputs.append(first)
        self._done.setdefault(layer.name, layer)
        # A copy goes on, so that whoever changes it in place does not change what is recorded.
        return (first.clone(), *output[1:]) if type(output) is tuple else first.clone()

    def _drive(
        self,
        name: str,
        layer: Recurrent,
        step: Any,
        constants: Any,
        projected: Any,
        state: Any,
        last: bool = False,
        apart: bool = True,
    ) -> tuple[Tensor, Any]:
        taken, projected = repeated(step, layer.repeats), computed(projected)
        if step is not type(layer).step:  # in an order of its own, as attention reads: no state to be taken apart
            output, end = eager(taken, constants, projected, state)
        else:
            output, end = self._hand_on(name, taken, constants, projected, state)
        return output[:, -1:] if last else output, end

    def _step_by_step(self, name: str, step: Any, x: Tensor, start: Any) -> tuple[Tensor, Any]:
        return self._hand_on(name, step, None, x, start)

    def _hand_on(self, name: str, taken: Any, constants: Any, projected: Any, state: Any) -> tuple[Tensor, Any]:
        """The loop, in which every state goes on as one tensor of its own, so that it can be asked for its gradient."""
        loop = self._loop(name, taken, constants, projected, state)

        def handing(constants: Any, u: Any, state: Any) -> tuple[Any, Tensor]:
            after, output = taken(constants, u, state)
            flat = flatten(after)
            own = unflatten(flat, after)
            loop.states.append(flat)
            for part, mine in zip(pytree.tree_leaves(after), pytree.tree_leaves(own), strict=True):
                if output is part:
                    loop.handed.append([flat])
                    return own, mine
            loop.handed.append([flat, output])
            return own, output

        output, loop.end = eager(handing, constants, projected, state)
        return output, loop.end

    def _loop(self, name: str, taken: Any, constants: Any, projected: Any, state: Any) -> Loop:
        """The layer's last run, if it goes on from there as a writer's does, token by token; else a new one."""
        several = isinstance(projected, tuple)
        parts = projected if several else (projected,)
        runs = [loop for loop in self.loops if loop.name.partition(" ")[0] == name]
        if runs and runs[-1].goes_on_with(state):
            runs[-1].projected = tuple(torch.cat(pair, 1) for pair in zip(runs[-1].projected, parts, strict=True))
            return runs[-1]
        called = f"{name} ({len(runs) + 1})" if runs else name
        self.loops.append(Loop(called, taken, constants, parts, several, state))
        return self.loops[-1]


def _outside_of_cells(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module that has a name, but for what is inside of recurrent layers: these are taken as a whole."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        if isinstance(module, Recurrent):
            inside.update(id(part) for part in module.modules())
        yield name or "model", module


@contextmanager
def _set(module: nn.Module, **attributes: Any) -> Iterator[None]:
    """The module with other attributes for a while."""
    before = {name: vars(module)[name] for name in attributes if name in vars(module)}
    for name, value in attributes.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name in attributes:
            if name in before:
                setattr(module, name, before[name])
            else:
                delattr(module, name)


def _acts(layer: Layer) -> bool:
    module = layer.module
    whole = isinstance(module, Recurrent) or not any(True for _ in module.children())
    return whole or bool(module._parameters) or bool(layer.squashed or layer.rectified)


def _passed_on(output: Tensor, inputs: Any) -> bool:
    """Whether a module only hands on what it was given, as a flattening does, or a dropout that is off."""
    given = [part for part in pytree.tree_leaves(inputs) if isinstance(part, Tensor)]
    changed = any(part._version for part in given)
    return any(part.data_ptr() == output.data_ptr() for part in given) and not changed
