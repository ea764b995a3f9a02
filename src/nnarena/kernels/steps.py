"""A loop that is one launch of a few kernels after another: what cannot be one kernel, or is too large for one.

`torch.compile` makes a handful of kernels of a step, and of its vector-Jacobian product, for all samples and seeds at
once. A training step then is thousands of launches, which a CUDA graph replays in a few microseconds each. The way
forward keeps the states between the steps, and the way back computes the rest again.

S seeds, B batch, T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from nnarena.core.errors import first_line
from nnarena.kernels.compiler.trace import CannotCompile, FlatStep, Signature

Tensors = list[Tensor]


class Steps:
    """`step` over time, forward and backward, with tensors as `passes.Kernels` has them."""

    def __init__(self, step: FlatStep, signature: Signature) -> None:
        self.step, self.signature = step, signature
        self.counts = (len(signature.constants), len(signature.inputs), len(signature.state))
        self.kept = [f"hist{part}" for part in range(self.counts[2])]
        self.made: dict[Any, Any] = {}  # shapes and device: both functions, or why there are none

    def forward(self, tensors: Sequence[Tensor], training: bool, last: bool = False) -> dict[str, Tensor]:
        constants, inputs, state = self._sorted(tensors)
        take, _ = self._compiled(constants, inputs, state, training)
        outputs: Tensors = []
        history: list[Tensors] = []
        for u in zip(*inputs, strict=True):
            history.append(state)
            *state, output = take(constants, list(u), state)
            outputs.append(output)
        memory = {"output": torch.stack(outputs[-1:] if last else outputs, 2)} | {
            f"end{part}": end for part, end in enumerate(state)
        }
        if training:
            parts = zip(self.kept, zip(*history, strict=True), strict=True)
            memory |= {name: torch.stack(states, 2) for name, states in parts}
        return memory

    def output(self, memory: dict[str, Tensor], last: bool = False) -> Tensor:
        return memory["output"]

    def ends(self, memory: dict[str, Tensor]) -> Tensors:
        return [memory[f"end{part}"] for part in range(self.counts[2])]

    def backward(
        self, tensors: Sequence[Tensor], kept: Sequence[Tensor], pull: Tensor, ends: Sequence[Tensor]
    ) -> list[Tensor | None]:
        constants, inputs, state = self._sorted(tensors)
        _, back = self._compiled(constants, inputs, state, True)
        history, (pulls,) = _by_step(kept), _by_step([pull])
        if len(pulls) < len(inputs[0]):
            pulls = torch.cat([pulls.new_zeros(len(inputs[0]) - 1, *pulls.shape[1:]), pulls])
        sums = [torch.zeros_like(constants[place]) for place in self._learned()]
        slopes: list[Tensors] = []
        before = [end.contiguous() for end in ends]
        for t in reversed(range(len(pulls))):
            given = [u[t] for u in inputs], [part[t] for part in history]
            found = back(constants, *given, [*before, pulls[t]], sums)
            sums, found = found[: len(sums)], found[len(sums) :]
            before, slope = found[: self.counts[2]], found[self.counts[2] :]
            slopes.append(slope)
        gradients: list[Tensor | None] = [None] * (self.counts[0] + self.counts[1])
        for place, total in zip(self._learned(), sums, strict=True):
            gradients[place] = total
        for place, parts in zip(self._driven(), zip(*reversed(slopes), strict=True), strict=True):
            gradients[self.counts[0] + place] = torch.stack(parts, 2)
        return [*gradients, *before]

    def _sorted(self, tensors: Sequence[Tensor]) -> tuple[Tensors, Tensors, Tensors]:
        """Constants, inputs with the steps in front, and the state at the start."""
        constants, inputs, _ = self.counts
        plain = [tensor.detach() for tensor in tensors]
        state = [part.contiguous() for part in plain[constants + inputs :]]
        return [part.contiguous() for part in plain[:constants]], _by_step(plain[constants:][:inputs]), state

    def _learned(self) -> list[int]:
        return [place for place, yes in enumerate(self.signature.learned) if yes]

    def _driven(self) -> list[int]:
        return [place for place, yes in enumerate(self.signature.driven) if yes]

    def _compiled(self, constants: Tensors, inputs: Tensors, state: Tensors, training: bool) -> tuple[Any, Any]:
        """A step, and the way back through one, for these shapes. CannotCompile if torch cannot."""
        first = [u[0] for u in inputs]
        shapes = tuple((tuple(part.shape), part.dtype) for part in [*constants, *first, *state])
        key = (shapes, state[0].device, training)
        if key not in self.made:
            try:
                self.made[key] = self._compile(constants, first, state, training)
            except Exception as error:
                self.made[key] = CannotCompile(f"torch.compile cannot: {type(error).__name__}: {first_line(error)}")
        if isinstance(self.made[key], CannotCompile):
            raise self.made[key]
        return self.made[key]

    def _compile(self, constants: Tensors, inputs: Tensors, state: Tensors, training: bool) -> tuple[Any, Any]:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            take = compile_for(lambda c, u, s: self._take(c, u, s), constants, inputs, state)
            results = take(constants, inputs, state)
            if not training:
                return take, None
            # memory of their own: a tracer takes an output that is a part of the state for the same tensor
            pulls = [torch.zeros_like(part) for part in results]
            sums = [torch.zeros_like(constants[place]) for place in self._learned()]
            back = compile_for(lambda c, u, s, p, t: self._back(c, u, s, p, t), constants, inputs, state, pulls, sums)
            back(constants, inputs, state, pulls, sums)
            return take, back

    def _take(self, constants: Tensors, inputs: Tensors, state: Tensors) -> Tensors:
        """A step of all seeds: the new state, and the output."""
        new, output = torch.vmap(self.step)(constants, inputs, state)
        return [*new, output]

    def _back(self, constants: Tensors, inputs: Tensors, state: Tensors, pulls: Tensors, sums: Tensors) -> Tensors:
        """Gradients of the learned constants added to those so far, of the state, and of the inputs that need one."""
        learned, driven = self._learned(), self._driven()

        def forward(some: Tensors, more: Tensors, state: Tensors) -> Tensors:
            all_constants, all_inputs = list(constants), list(inputs)
            for place, tensor in zip(learned, some, strict=True):
                all_constants[place] = tensor
            for place, tensor in zip(driven, more, strict=True):
                all_inputs[place] = tensor
            return self._take(all_constants, all_inputs, state)

        chosen = [constants[place] for place in learned], [inputs[place] for place in driven]
        _, pull, *_ = torch.func.vjp(forward, *chosen, state)
        of_constants, of_inputs, of_state = pull(pulls)
        return [*(total + part for total, part in zip(sums, of_constants, strict=True)), *of_state, *of_inputs]


def _by_step(tensors: Sequence[Tensor]) -> Tensors:
    """(S, B, T, …) with the steps in front, each in one piece of memory."""
    return [tensor.movedim(2, 0).contiguous() for tensor in tensors]


def compile_for(function: Callable[..., Tensors], *example: Tensors) -> Callable[..., Tensors]:
    """Machine code of a function of lists of tensors, for tensors like these."""
    graph = make_fx(function, tracing_mode="fake")(*example)
    return torch.compile(graph, fullgraph=True, dynamic=False)  # type: ignore[return-value]
