"""Memory cell: two neurons that keep one bit.

B batch, T time; the two neurons stand in the last dimension.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel
from nnarena.nn.recurrent import Recurrent

# Trained: the published start, which solves the task already, and the range of a random one. The ranges bound the
# Euler factor |1 − h · conductance| by 1 (two Euler steps, no input), so that a fresh cell does not blow up.
TRAINED = {
    "step_size": (1.5573331, (0.5, 1.5)),
    "leakage": (0.4505964, (0.1, 0.6)),
    "recurrent_conductance": (1.0334609, (0.1, 1.0)),
    "recurrent_mean": (0.07879465, (0.0, 0.5)),
    "recurrent_target": (1.4378392, (0.5, 2.0)),
    "inhibitory_conductance": (1.3365093, (0.1, 1.0)),
    "inhibitory_mean": (0.06618887, (0.0, 0.5)),
    "input_conductance": (0.07915332, (0.1, 1.0)),
    "input_target": (1.5931877, (0.5, 2.0)),
}
FIXED = {
    "capacitance": 1.0,
    "resting_potential": 0.0,
    "recurrent_slope": 100.0,
    "inhibitory_slope": 100.0,
    "inhibitory_target": 0.0,
    "input_mean": 0.5,
    "input_slope": 100.0,
}


class Constants(NamedTuple):
    leakage: Tensor
    resting_potential: Tensor
    recurrent: tuple[Tensor, Tensor, Tensor, Tensor]  # conductance, mean, slope, target
    inhibitory: tuple[Tensor, Tensor, Tensor, Tensor]
    input_target: Tensor
    discretization: int


class MemoryCell(Recurrent):
    """Two liquid time-constant neurons, each exciting itself and inhibiting the other: the one that is up stays up.

        C dv_a/dt = g (r − v_a) + i(x_a) (e_i − v_a) + r(v_a) (e_r − v_a) + n(v_b) (e_n − v_a)
        C dv_b/dt = the same with a and b exchanged
        i(x) = w_i σ(s_i (x − m_i)),   r and n likewise

    i input, r recurrent, n inhibitory synapse; all of them are shared by the two neurons. A step is `discretization`
    explicit Euler steps of size Δt · step_size / discretization, both neurons at once. Nine scalars are trained (step
    size, g, w_i, e_i, w_r, m_r, e_r, w_n, m_n); C = 1, r = e_n = 0, m_i = 0.5 and the slopes of 100 are buffers.

    Shapes: input and output (B, T, 2); state (B, 2), which starts at (0, 1).

    `init` is "published", which starts *at a solution* of the cell problem, or "random": evenly drawn, step size in
    0.5…1.5, g in 0.1…0.6, conductances w in 0.1…1, means m in 0…0.5, targets e in 0.5…2.

    Reference: the published arena. Differs: elapsed time, where it is given, scales the step; a random start.
    """

    continuous = True

    def __init__(
        self,
        *,
        init: Literal["published", "random"] = "published",
        discretization: int = 2,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if init not in ("published", "random"):
            raise ValueError(f"init is 'published' or 'random', not {init!r}.")
        if discretization < 1:
            raise ValueError(f"discretization must be at least 1, not {discretization}.")
        super().__init__(2, 2, batch_first=batch_first, backend=backend)
        self.init, self.discretization = init, discretization
        for name in TRAINED:
            self.register_parameter(name, nn.Parameter(torch.empty((), device=device, dtype=dtype)))
        for name, value in FIXED.items():
            self.register_buffer(name, torch.tensor(value, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                published, (low, high) = TRAINED[name]
                if self.init == "random":
                    parameter.uniform_(low, high)
                else:
                    parameter.fill_(published)

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return torch.stack([like.new_zeros(batch), like.new_ones(batch)], -1)

    def constants(self) -> Constants:
        return Constants(
            leakage=self._scalar("leakage"),
            resting_potential=self._scalar("resting_potential"),
            recurrent=self._synapse("recurrent"),
            inhibitory=self._synapse("inhibitory"),
            input_target=self._scalar("input_target"),
            discretization=self.discretization,
        )

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> tuple[Tensor, Tensor]:
        """The conductance of the inputs, (B, T, 2), and the size of an Euler step over the capacitance, (B, T, 1)."""
        spans = x.new_ones(x.shape[:2]) if timespans is None else timespans.to(x.dtype)
        rate = self._scalar("step_size") / (self._scalar("capacitance") * constants.discretization)
        return _opened(self._synapse("input"), x), (spans * rate).unsqueeze(-1)

    @staticmethod
    def step(constants: Constants, u: tuple[Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        from_input, h = u
        for _ in range(constants.discretization):
            recurrent = _opened(constants.recurrent, state)
            inhibitory = _opened(constants.inhibitory, state.flip(-1))
            current = constants.leakage * (constants.resting_potential - state)
            current = current + from_input * (constants.input_target - state)
            current = current + recurrent * (constants.recurrent[-1] - state)
            current = current + inhibitory * (constants.inhibitory[-1] - state)
            state = state + h * current
        return state, state

    def _scalar(self, name: str) -> Tensor:
        return getattr(self, name)

    def _synapse(self, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        conductance, mean, slope, target = (
            self._scalar(f"{kind}_{part}") for part in ("conductance", "mean", "slope", "target")
        )
        return conductance, mean, slope, target

    def extra_repr(self) -> str:
        return f"init={self.init!r}, discretization={self.discretization}"


def _opened(synapse: tuple[Tensor, Tensor, Tensor, Tensor], before: Tensor) -> Tensor:
    """The conductance of a synapse when the neuron before it has this potential."""
    conductance, mean, slope, _ = synapse
    return conductance * torch.sigmoid(slope * (before - mean))


@model("memory_cell", reference="the published arena")
def memory_cell(spec: TaskSpec, *, init: Literal["published", "random"] = "published") -> nn.Module:
    """Memory cell: two neurons that excite themselves and inhibit each other hold one bit, with nine parameters.

        C dv_a/dt = g (r − v_a) + i(x_a) (e_i − v_a) + r(v_a) (e_r − v_a) + n(v_b) (e_n − v_a)
        C dv_b/dt = the same with a and b exchanged

    i, r and n are the conductances of an input, a recurrent and an inhibitory synapse, w σ(s (v − m)). Two explicit
    Euler steps from one input to the next. The published start solves the cell problem before any training.

    Options:
        init: the published start, or a random one, which asks whether the cell can be learned
    """
    fits = len(spec.input_shape) == 2 and spec.input_size == 2
    if not (fits and spec.output_size == 2 and spec.per_step and spec.target == "values"):
        raise Unfit("it reads two lines and answers with two values at every step, and nothing else.")
    return SequenceModel(MemoryCell(init=init), spec, features=0)
