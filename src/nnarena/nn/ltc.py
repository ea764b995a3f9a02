"""LTC: neurons with a liquid time constant, and the neural circuit policies made of them.

B batch, T time, F inputs, U neurons, M motor neurons, K most synapses any neuron listens to.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.nn.head import SequenceModel
from nnarena.nn.linear import linear
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.wirings import NCP, FullyConnected, Maker, Wiring

# Start values are drawn evenly between these, as in keras-ncp.
RANGES = {
    "leak": (0.001, 1.0),
    "rest": (-0.2, 0.2),
    "capacitance": (0.4, 0.6),
    "weight": (0.001, 1.0),
    "slope": (3.0, 8.0),
    "mean": (0.3, 0.8),
}
# What must not be negative: capacitances and conductances.
POSITIVE = ("leak", "capacitance", "weight")
TABLES = ("slope", "mean", "weight", "target")  # what a synapse has


# Up to so many entries, the matrices that say who listens to whom are written out: a product with a few zeros is faster
# than picking single numbers.
WRITTEN_OUT = 65_536


class Synapses(NamedTuple):
    """E synapses: each reads one neuron or input, opens, and feeds numerator and denominator of one neuron.

    Either as matrices, or as the numbers of the neurons at both ends.
    """

    offset: Tensor  # (E) −slope · mean
    slope: Tensor  # (sources, E), a column a synapse, or (E)
    weights: Tensor  # (E, 2U) weight · target, and weight, or (2, E)
    ends: tuple[Tensor, Tensor] | None  # (E), (E) if there are no matrices


class Constants(NamedTuple):
    synapses: Synapses
    sensory: Synapses
    base: Tensor  # (2, U) what the leak adds to numerator and denominator in a unit of time
    capacitance: Tensor  # (U)
    input_map: tuple[Tensor, Tensor]
    output_map: tuple[Tensor, Tensor]


class LTC(Recurrent):
    """Liquid time-constant network: leaky neurons whose synapses open with the potential of the neuron before.

        C_j dv_j/dt = g_j (r_j − v_j) + Σ_i a_ij (e_ij − v_j),   a_ij = w_ij σ(s_ij (v_i − m_ij))

    The sum runs over all neurons and all inputs i that the wiring connects to j. Every step takes `unfolds`
    semi-implicit (fused) Euler steps of size h = Δt / unfolds, a_ij held still in each, so none can overshoot:

        v_j ← (C_j v_j + h (g_j r_j + Σ_i a_ij e_ij)) / (C_j + h (g_j + Σ_i a_ij + ε))

    Inputs enter as w x + b with a w and a b for each; outputs are the motor neurons, the first M, as w v + b likewise.

    Shapes: input (B, T, F), output (B, T, M), state (B, U), which starts at 0. `wiring` is a `Wiring`, a maker of one
    (`NCP(…)`, `AutoNCP(…)`, …), or a number of fully connected neurons. Parameters of synapses that do not exist are
    there and count, as published, and receive no gradient. The wiring is in the `state_dict`.

    Reference: Hasani et al. 2021, Liquid time-constant networks, AAAI; the published cell is keras-ncp's, now ncps.
    Differs from it: numerator and denominator are multiplied by h, the same number that stays finite at Δt = 0, where
    the state stays what it is; only synapses that exist are computed; timespans are one a sample and step.

    C, g and w must not be negative. Published code clips them after each step of the optimizer, which a layer cannot
    ask of every optimizer. `positive` says what is done instead:
        "clip"      max(·, 0) wherever they are used (ε for C). Their gradient passes, except one that would push a
                    value further below the bound: it stays near, and comes back as soon as the data want it.
        "softplus"  log(1 + exp(·)): smooth, never quite 0; the start values are taken back through it, so that both
                    begin alike (ncps does not take them back).
    """

    continuous = True
    sources: Tensor
    targets: Tensor
    sensory_sources: Tensor
    sensory_targets: Tensor

    def __init__(
        self,
        input_size: int,
        wiring: Wiring | Maker | int,
        *,
        unfolds: int = 6,
        positive: Literal["clip", "softplus"] = "clip",
        epsilon: float = 1e-8,
        batch_first: bool = True,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(wiring, int):
            wiring = FullyConnected(wiring)
        if not isinstance(wiring, Wiring):
            wiring = wiring.wire(input_size)
        if wiring.input_size != input_size:
            raise ValueError(f"The wiring is for {wiring.input_size} inputs, and input_size is {input_size}.")
        if unfolds < 1:
            raise ValueError(f"unfolds must be at least 1, not {unfolds}.")
        if positive not in ("clip", "softplus"):
            raise ValueError(f"positive is 'clip' or 'softplus', not {positive!r}.")
        super().__init__(input_size, wiring.output_size, batch_first=batch_first, backend=backend)
        self.wiring, self.units, self.output_size = wiring, wiring.units, wiring.output_size
        self.unfolds, self.positive, self.epsilon = unfolds, positive, epsilon
        self.repeats = unfolds

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        F, U, M = input_size, wiring.units, wiring.output_size
        self.leak, self.rest, self.capacitance = parameter(U), parameter(U), parameter(U)
        self.weight, self.slope, self.mean, self.target = (parameter(U, U) for _ in TABLES)
        self.sensory_weight, self.sensory_slope, self.sensory_mean, self.sensory_target = (
            parameter(F, U) for _ in TABLES
        )
        self.input_weight, self.input_bias = parameter(F), parameter(F)
        self.output_weight, self.output_bias = parameter(M), parameter(M)
        for prefix, adjacency in (("", wiring.adjacency), ("sensory_", wiring.sensory)):
            sources, targets = torch.tensor(adjacency != 0).nonzero(as_tuple=True)
            self.register_buffer(f"{prefix}sources", sources.to(device))
            self.register_buffer(f"{prefix}targets", targets.to(device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                kind = name.removeprefix("sensory_")
                if kind in RANGES:
                    parameter.uniform_(*RANGES[kind])
                    if self.positive == "softplus" and kind in POSITIVE:
                        parameter.copy_(parameter.expm1().log())
            for parameter, adjacency in ((self.target, "adjacency"), (self.sensory_target, "sensory")):
                parameter.copy_(torch.tensor(getattr(self.wiring, adjacency)))
            for linear in ("input", "output"):
                getattr(self, f"{linear}_weight").fill_(1)
                getattr(self, f"{linear}_bias").zero_()

    def initial_state(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.units)

    def constants(self) -> Constants:
        leak, (synapses, sensory) = self._positive(self.leak), self._synapses()
        return Constants(
            synapses=synapses,
            sensory=sensory,
            base=torch.stack([leak * self.rest, leak + self.epsilon]),
            capacitance=self._positive(self.capacitance, self.epsilon),
            input_map=(self.input_weight, self.input_bias),
            output_map=(self.output_weight, self.output_bias),
        )

    def project(self, constants: Constants, x: Tensor, timespans: Tensor | None) -> tuple[Tensor, Tensor]:
        """What leak and inputs add to numerator and denominator in one unfold, (B, T, 2, U), and h, (B, T, 1, 1)."""
        weight, bias = constants.input_map
        h = x.new_full(x.shape[:2], 1 / self.unfolds) if timespans is None else timespans.to(x.dtype) / self.unfolds
        h = h[..., None, None]
        return h * (constants.base + _flow(constants.sensory, x * weight + bias, len(constants.capacitance))), h

    @staticmethod
    def step(constants: Constants, u: tuple[Tensor, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        drive, h = u
        gain, loss = (drive + h * _flow(constants.synapses, state, state.shape[-1])).unbind(-2)
        # the same as (C v + gain) / (C + loss), whose gradients of C would all but cancel each other
        state = state + (gain - loss * state) / (constants.capacitance + loss)
        return state, state

    def finish(self, constants: Constants, x: Tensor, outputs: Tensor) -> Tensor:
        weight, bias = constants.output_map
        return outputs[..., : len(weight)] * weight + bias

    def _synapses(self) -> tuple[Synapses, Synapses]:
        """Those between neurons, and those of the inputs; made together, which is half as much to launch on a GPU."""
        tables = torch.cat([getattr(self, prefix + name) for name in TABLES for prefix in ("", "sensory_")])
        sources = torch.cat([self.sources, self.sensory_sources + self.units])
        targets = torch.cat([self.targets, self.sensory_targets])
        drawn = tables.view(len(TABLES), -1).index_select(1, sources * self.units + targets)
        slope, mean, weight, target = drawn.unbind()
        weight = self._positive(weight)
        counts = len(self.sources), len(self.sensory_sources)
        offsets, slopes, weights = (
            part.split(counts) for part in (-slope * mean, slope, torch.stack([weight * target, weight], 1))
        )
        return (
            self._written_out(offsets[0], slopes[0], weights[0], (self.sources, self.targets), self.units),
            self._written_out(
                offsets[1], slopes[1], weights[1], (self.sensory_sources, self.sensory_targets), self.input_size
            ),
        )

    def _written_out(
        self, offset: Tensor, slope: Tensor, weights: Tensor, ends: tuple[Tensor, Tensor], count: int
    ) -> Synapses:
        """As matrices, unless these would be large; `count` is how many neurons or inputs there are to listen to."""
        sources, targets = ends
        if len(sources) * max(count, 2 * self.units) > WRITTEN_OUT:
            return Synapses(offset, slope, weights.t(), ends)
        numbers = torch.arange(max(count, self.units), device=sources.device)
        matrix = (sources == numbers[:count, None]) * slope  # (sources, E)
        spread = (targets[:, None, None] == numbers[: self.units]) * weights.unsqueeze(2)  # (E, 2, U)
        return Synapses(offset, matrix, spread.flatten(1), None)

    def _positive(self, value: Tensor, floor: float = 0.0) -> Tensor:
        return nn.functional.softplus(value) if self.positive == "softplus" else at_least(value, floor)

    def extra_repr(self) -> str:
        synapses = f"synapses={self.wiring.synapses + self.wiring.sensory_synapses}"
        return f"{self.input_size}, {self.output_size}, units={self.units}, {synapses}, unfolds={self.unfolds}"


def _flow(synapses: Synapses, values: Tensor, units: int) -> Tensor:
    """Σ_i a_ij e_ij and Σ_i a_ij, (…, 2, U), from the values of all sources, (…, sources)."""
    if synapses.ends is None:
        opened = linear(values, synapses.slope.t(), synapses.offset).sigmoid()
        return linear(opened, synapses.weights.t()).unflatten(-1, (2, units))
    sources, targets = synapses.ends
    opened = (values.index_select(-1, sources) * synapses.slope + synapses.offset).sigmoid()
    fed = opened.unsqueeze(-2) * synapses.weights
    return fed.new_zeros(*fed.shape[:-1], units).index_add(-1, targets, fed)


class _AtLeast(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, floor: float) -> Tensor:
        return value.clamp(min=floor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.floor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (value,) = ctx.saved_tensors
        return torch.where(value > ctx.floor, grad, grad.clamp(max=0.0)), None


def at_least(value: Tensor, floor: float) -> Tensor:
    """max(value, floor), whose gradient is blocked only where descent would lead further below the floor."""
    return _AtLeast.apply(value, floor)  # type: ignore[return-value]


@model(
    "neural_circuit_policies",
    reference="Lechner et al. 2020, Neural circuit policies enabling auditable autonomy, Nature Machine Intelligence 2",
)
def neural_circuit_policies(
    spec: TaskSpec,
    *,
    units: int = 16,
    unfolds: int = 6,
    positive: Literal["clip", "softplus"] = "clip",
    wiring_seed: int = 22222,
) -> nn.Module:
    """Neural circuit policy: a sparse circuit of liquid time-constant neurons, wired like a worm's.

        C_j dv_j/dt = g_j (r_j − v_j) + Σ_i w_ij σ(s_ij (v_i − m_ij)) (e_ij − v_j)

    Inputs reach inter neurons, these reach command neurons, which are recurrent and reach one motor neuron for each
    output; the motor neurons are the answer, without a dense layer. Elapsed time, where a task gives it, is the time
    of integration.

    Options:
        units: inter and command neurons, 60 % and 40 %; the published arena has 16; motor neurons come on top
        unfolds: steps of the semi-implicit Euler method between two inputs
        positive: how capacitances and conductances are kept from becoming negative
        wiring_seed: who is connected with whom, and with which sign; the same in every repetition
    """
    inter = math.floor(0.6 * units)
    command = units - inter
    wiring = NCP(
        inter=inter,
        command=command,
        motor=spec.output_size,
        sensory_fanout=2,
        inter_fanout=2,
        recurrent_command_synapses=2 * command,
        motor_fanin=2,
        seed=wiring_seed,
    )
    return SequenceModel(LTC(spec.input_size, wiring, unfolds=unfolds, positive=positive), spec, features=0)
