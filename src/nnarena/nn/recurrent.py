"""What drives every recurrent cell over time.

B batch, T time, F input features, H hidden units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nnarena.kernels import recurrence
from nnarena.kernels.linear import Projection

State = Tensor | tuple[Tensor, ...]
Projected = Tensor | Projection | tuple[Tensor | Projection, ...]


class Recurrent(nn.Module):
    """A recurrent layer: calls like `torch.nn.LSTM` (input, state → output, state), batch first.

    A subclass is a *cell*, four pure functions that say what happens, and when it can be known:

        constants()                            what depends on the parameters only: once a call
        project(constants, x_BTF, spans_BT)    what depends on the input only: once for all steps; a tensor
                                               (B, T, …) or several; `Projection(x, W, b)`, which is x Wᵀ + b, may
                                               be left to the loop where that is faster
        step(constants, u_t, state)            what recurs: (state, output) of one step; no side effects, no
                                               control flow that looks at numbers
        finish(constants, x_BTF, outputs)      what nothing recurs on: once for the outputs of all steps

    and `initial_state`. A cell that solves an equation in several equal steps between two inputs makes `step` one of
    them, and says how many there are in `repeats`: the output of the last counts. Where torch has a kernel for the
    whole loop, `native` calls it: the numbers are the same.

    Shapes: input (B, T, F), or (T, B, F) with `batch_first=False`; output (B, T, H); each part of the state (B, …).
    `timespans` (B, T), the time since the step before, is for cells whose time is continuous; without it, it is 1.
    """

    continuous = False  # whether `timespans` means something to the cell
    repeats = 1  # how often a step is taken with one input

    def __init__(self, input_size: int, hidden_size: int, *, batch_first: bool = True, backend: str = "auto") -> None:
        super().__init__()
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, not {size}.")
        if backend not in recurrence.BACKENDS:
            *others, last = map(repr, recurrence.BACKENDS)
            raise ValueError(f"backend is {', '.join(others)} or {last}, not {backend!r}.")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.batch_first = batch_first
        self.backend = backend

    def initial_state(self, batch: int, like: Tensor) -> State:
        """The state before the first step, on the device and in the type of `like`."""
        raise NotImplementedError

    def constants(self) -> Any:
        raise NotImplementedError

    def project(self, constants: Any, x: Tensor, timespans: Tensor | None) -> Projected:
        return x

    @staticmethod
    def step(constants: Any, u: Any, state: Any) -> tuple[Any, Tensor]:
        raise NotImplementedError

    def finish(self, constants: Any, x: Tensor, outputs: Tensor) -> Tensor:
        return outputs

    def native(self, x: Tensor, state: Any) -> tuple[Tensor, State] | None:
        """The whole loop in torch's own kernel; None where there is none."""
        return None

    def forward(self, x: Tensor, state: State | None = None, timespans: Tensor | None = None) -> tuple[Tensor, State]:
        x, state, timespans = self.ready(x, state, timespans)
        done = self.native(x, state) if self._takes_native(x) else None
        output, state = done or self._loop(x, state, timespans)
        return (output if self.batch_first else output.transpose(0, 1)), state

    def final(self, x: Tensor, state: State | None = None, timespans: Tensor | None = None) -> Tensor:
        """The output of the last step alone, (B, …): that of a call, without the work that only the others need.

        A layer with hooks is called, so that they see what they expect.
        """
        if type(self).forward is not Recurrent.forward or self._forward_hooks or self._forward_pre_hooks:
            output = self(x, state, timespans)[0]
            return output[:, -1] if self.batch_first else output[-1]
        x, state, timespans = self.ready(x, state, timespans)
        done = self.native(x, state) if self._takes_native(x) else None
        output, _ = done or self._loop(x, state, timespans, last=True)
        return output[:, -1]

    def ready(self, x: Tensor, state: State | None, timespans: Tensor | None) -> tuple[Tensor, State, Tensor | None]:
        """What a call is given, found to fit: batch first, and with a state."""
        if x.dim() != 3 or x.shape[-1] != self.input_size:
            layout = "(batch, time, " if self.batch_first else "(time, batch, "
            raise ValueError(f"{type(self).__name__} reads {layout}{self.input_size}), not {tuple(x.shape)}.")
        if timespans is not None:
            self._check_timespans(timespans, x)
        if not self.batch_first:
            x = x.transpose(0, 1)
            timespans = None if timespans is None else timespans.transpose(0, 1)
        if state is None:
            return x, self.initial_state(x.shape[0], x), timespans
        self._check_state(state, x)
        return x, state, timespans

    def _takes_native(self, x: Tensor) -> bool:
        """torch's kernels cannot be mapped over a population, and are slower on a CPU than what is compiled for it."""
        faster = recurrence.is_mapped() or recurrence.compiling_pays(x)
        return self.backend == "native" or (self.backend == "auto" and not faster)

    def _loop(self, x: Tensor, state: State, timespans: Tensor | None, last: bool = False) -> tuple[Tensor, State]:
        constants = self.constants()
        projected = self.project(constants, x, timespans)
        outputs, state = self.drive(self.step, constants, projected, state, last)
        return self.finish(constants, x[:, -1:] if last else x, outputs), state

    def drive(
        self, step: Any, constants: Any, projected: Any, state: Any, last: bool = False, apart: bool = True
    ) -> tuple[Tensor, Any]:
        """Any step over all inputs, by this layer's backend: outputs (B, T, …), or the last, and the last state.

        A step that computes samples together, not `apart`, is slower.
        """
        return recurrence.run(step, constants, projected, state, self.backend, self.repeats, last, apart)

    def _check_timespans(self, timespans: Tensor, x: Tensor) -> None:
        name = type(self).__name__
        if not self.continuous:
            raise ValueError(f"{name} counts steps, not time: it takes no timespans.")
        if timespans.shape != x.shape[:2]:
            raise ValueError(
                f"{name} wants timespans {tuple(x.shape[:2])} for this input, not {tuple(timespans.shape)}."
            )
        # Looking at the numbers would make a GPU wait, and a compiler stop.
        seen = timespans.device.type == "cpu" and not torch.compiler.is_compiling() and not recurrence.is_mapped()
        if seen and bool((timespans < 0).any()):
            raise ValueError(f"timespans must not be negative; the least is {float(timespans.min())}.")

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
