"""What drives every recurrent cell over time.

B batch, T time, F input features, H hidden units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

State = Tensor | tuple[Tensor, ...]


class Recurrent(nn.Module):
    """A recurrent layer: calls like `torch.nn.LSTM` (input, state → output, state), batch first.

    A subclass is a *cell*, three pure functions that say what happens, and when it can be known:

        constants()                        what depends on the parameters only: once a call
        project(constants, x_BTF)          what depends on the input only: once for all steps
        step(constants, u_t, state)        what recurs: (state, output) of one step; no side effects, no
                                           control flow that looks at numbers

    and `initial_state`. Where torch has a kernel for the whole loop, `native` calls it: the numbers are the same.

    Shapes: input (B, T, F), or (T, B, F) with `batch_first=False`; output (B, T, H); each part of the state (B, H).
    """

    continuous = False  # whether `timespans`, the time since the step before, means something to the cell

    def __init__(self, input_size: int, hidden_size: int, *, batch_first: bool = True, backend: str = "auto") -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if backend not in ("auto", "native", "eager"):
            raise ValueError(f"backend is 'auto', 'native' or 'eager', not {backend!r}.")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = batch_first
        self.backend = backend

    def initial_state(self, batch: int, like: Tensor) -> State:
        """The state before the first step, on the device and in the type of `like`."""
        raise NotImplementedError

    def constants(self) -> Any:
        raise NotImplementedError

    def project(self, constants: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def step(constants: Any, u: Tensor, state: Any) -> tuple[Any, Tensor]:
        raise NotImplementedError

    def native(self, x: Tensor, state: Any) -> tuple[Tensor, State] | None:
        """The whole loop in torch's own kernel; None where there is none."""
        return None

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            layout = "(batch, time, " if self.batch_first else "(time, batch, "
            raise ValueError(f"{type(self).__name__} reads {layout}{self.input_size}), not {tuple(x.shape)}.")
        if not self.batch_first:
            x = x.transpose(0, 1)
        if state is None:
            state = self.initial_state(x.shape[0], x)
        self._check_state(state, x)
        done = self.native(x, state) if self.backend != "eager" else None
        output, state = done or self._eager(x, state)
        return (output if self.batch_first else output.transpose(0, 1)), state

    def _eager(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The definition: one step after the other."""
        constants = self.constants()
        outputs = []
        for u in self.project(constants, x).unbind(1):
            state, output = self.step(constants, u, state)
            outputs.append(output)
        return torch.stack(outputs, 1), state

    def _check_state(self, state: State, x: Tensor) -> None:
        parts, wanted = _parts(state), _parts(self.initial_state(x.shape[0], x))
        if [part.shape for part in parts] != [part.shape for part in wanted]:
            given = ", ".join(str(tuple(part.shape)) for part in parts)
            shapes = ", ".join(str(tuple(part.shape)) for part in wanted)
            raise ValueError(f"{type(self).__name__} wants a state of {shapes} for this input, not {given}.")

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


def _parts(state: State) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def one_chunk(weights: list[Tensor]) -> list[Tensor]:
    """The same weights as neighbours in memory, which is how cuDNN wants them; gradients flow through."""
    if not weights[0].is_cuda:
        return weights
    flat = torch.cat([weight.reshape(-1) for weight in weights])
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
