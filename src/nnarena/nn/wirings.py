"""Wirings: which neuron of a circuit listens to which, and with which sign. Numpy only.

U neurons, F inputs. Motor neurons come first, so that the output of a circuit is `state[:, :output_size]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SEED = 22222  # of the published circuits (keras-ncp)
FAIR = (-1, 1)
MOSTLY_EXCITATORY = (-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Wiring:
    """A circuit drawn out: synapse i → j exists where the entry [i, j] is not 0; it excites (+1) or inhibits (−1).

    adjacency       (U, U) between neurons
    sensory         (F, U) from inputs to neurons
    output_size     how many neurons, from the first on, are motor neurons
    layers          the layer of each neuron; "motor" and "hidden" unless told
    """

    adjacency: np.ndarray
    sensory: np.ndarray
    output_size: int
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("adjacency", "sensory"):
            matrix = np.array(getattr(self, name))
            if matrix.ndim != 2 or not np.isin(matrix, (-1, 0, 1)).all():
                raise ValueError(f"{name} is a matrix of -1, 0 and 1.")
            matrix = matrix.astype(np.int8)
            matrix.setflags(write=False)
            object.__setattr__(self, name, matrix)
        if self.adjacency.shape != (self.units, self.units) or self.sensory.shape[1] != self.units:
            shapes = f"{self.adjacency.shape} and {self.sensory.shape}"
            raise ValueError(f"adjacency is (units, units) and sensory (inputs, units), not {shapes}.")
        _check_output(self.units, self.output_size)
        hidden = self.units - self.output_size
        layers = self.layers or ("motor",) * self.output_size + ("hidden",) * hidden
        if len(layers) != self.units:
            raise ValueError(f"layers names each of the {self.units} neurons, not {len(layers)}.")
        object.__setattr__(self, "layers", tuple(layers))

    @property
    def units(self) -> int:
        return len(self.adjacency)

    @property
    def input_size(self) -> int:
        return len(self.sensory)

    @property
    def synapses(self) -> int:
        """How many synapses there are between neurons."""
        return int(np.count_nonzero(self.adjacency))

    @property
    def sensory_synapses(self) -> int:
        """How many synapses come from inputs."""
        return int(np.count_nonzero(self.sensory))

    def layer(self, name: str) -> list[int]:
        """The neurons of one layer."""
        return [neuron for neuron, layer in enumerate(self.layers) if layer == name]


@dataclass(frozen=True)
class FullyConnected:
    """Every neuron listens to every neuron and every input; two synapses in three excite, as in keras-ncp.

    `output_size` None makes every neuron a motor neuron; without `self_connections` no neuron listens to itself.
    """

    units: int
    output_size: int | None = None
    seed: int = SEED
    self_connections: bool = True

    def __post_init__(self) -> None:
        _check_sizes(units=self.units)
        _check_output(self.units, self.output_size)

    def wire(self, input_size: int) -> Wiring:
        _check_sizes(input_size=input_size)
        rng = np.random.default_rng(self.seed)
        adjacency = rng.choice(MOSTLY_EXCITATORY, (self.units, self.units))
        if not self.self_connections:
            np.fill_diagonal(adjacency, 0)
        sensory = rng.choice(MOSTLY_EXCITATORY, (input_size, self.units))
        return Wiring(adjacency, sensory, _or_all(self.output_size, self.units))


@dataclass(frozen=True)
class Random:
    """A share `sparsity` of all possible synapses is missing, at random; two in three of the others excite."""

    units: int
    output_size: int | None = None
    sparsity: float = 0.5
    seed: int = SEED

    def __post_init__(self) -> None:
        _check_sizes(units=self.units)
        _check_output(self.units, self.output_size)
        _check_sparsity(self.sparsity)

    def wire(self, input_size: int) -> Wiring:
        _check_sizes(input_size=input_size)
        rng = np.random.default_rng(self.seed)
        adjacency = self._some(rng, self.units)
        sensory = self._some(rng, input_size)
        return Wiring(adjacency, sensory, _or_all(self.output_size, self.units))

    def _some(self, rng: np.random.Generator, sources: int) -> np.ndarray:
        block = np.zeros(sources * self.units, dtype=int)
        kept = rng.choice(block.size, round(block.size * (1 - self.sparsity)), replace=False)
        block[kept] = rng.choice(MOSTLY_EXCITATORY, kept.size)
        return block.reshape(sources, self.units)


@dataclass(frozen=True)
class NCP:
    """Neural circuit policy: four layers as in the nervous system of a worm, inputs → inter → command → motor.

        inputs → inter      every input has `sensory_fanout` synapses
        inter → command     every inter neuron has `inter_fanout`
        command → command   `recurrent_command_synapses` in all, a neuron's with itself among them
        command → motor     every motor neuron has `motor_fanin`

    Who is connected is drawn at random, and so is the sign, with equal chances. Then no neuron is left out: an inter
    or command neuron that nothing reaches, and a command neuron that reaches no motor neuron, gets as many synapses as
    its layer has on average (rounded down, at least one).

    Reference: Lechner et al. 2020, Neural circuit policies enabling auditable autonomy, Nature Machine Intelligence 2.
    Differs from keras-ncp: the recurrent synapses are all different. There, one can be drawn twice and then counts
    once, so that a circuit has fewer than was asked for.
    """

    inter: int
    command: int
    motor: int
    sensory_fanout: int
    inter_fanout: int
    recurrent_command_synapses: int
    motor_fanin: int
    seed: int = SEED

    def __post_init__(self) -> None:
        _check_sizes(inter=self.inter, command=self.command, motor=self.motor)
        _check_fan("sensory_fanout", self.sensory_fanout, self.inter, "inter")
        _check_fan("inter_fanout", self.inter_fanout, self.command, "command")
        _check_fan("motor_fanin", self.motor_fanin, self.command, "command")
        most = self.command**2
        if not 0 <= self.recurrent_command_synapses <= most:
            raise ValueError(
                f"recurrent_command_synapses is between 0 and {most}, which is all there can be between {self.command} "
                f"command neurons, not {self.recurrent_command_synapses}."
            )

    @property
    def units(self) -> int:
        return self.inter + self.command + self.motor

    @property
    def output_size(self) -> int:
        return self.motor

    def wire(self, input_size: int) -> Wiring:
        _check_sizes(input_size=input_size)
        rng = np.random.default_rng(self.seed)
        layers = ("motor",) * self.motor + ("command",) * self.command + ("inter",) * self.inter
        motor = slice(0, self.motor)
        command = slice(self.motor, self.motor + self.command)
        inter = slice(self.motor + self.command, self.units)
        adjacency = np.zeros((self.units, self.units), dtype=int)
        sensory = np.zeros((input_size, self.units), dtype=int)
        sensory[:, inter] = _fan(rng, input_size, self.inter, self.sensory_fanout)
        adjacency[inter, command] = _fan(rng, self.inter, self.command, self.inter_fanout)
        adjacency[command, command] = self._recurrent(rng)
        # Fan-in is fan-out read backwards.
        adjacency[command, motor] = _fan(rng, self.motor, self.command, self.motor_fanin).T
        return Wiring(adjacency, sensory, self.motor, layers)

    def _recurrent(self, rng: np.random.Generator) -> np.ndarray:
        block = np.zeros(self.command**2, dtype=int)
        drawn = rng.choice(block.size, self.recurrent_command_synapses, replace=False)
        block[drawn] = rng.choice(FAIR, drawn.size)
        return block.reshape(self.command, self.command)


@dataclass(frozen=True)
class AutoNCP:
    """A neural circuit policy from two sizes: of what is not motor, 40 % is command and the rest is inter.

    Fan-outs and fan-ins are the share `1 − sparsity` of the layer they reach into, at least 1; recurrent command
    synapses are twice that share of the command neurons. The proportions are those of ncps.
    """

    units: int
    output_size: int
    sparsity: float = 0.5
    seed: int = SEED

    def __post_init__(self) -> None:
        _check_sizes(units=self.units, output_size=self.output_size)
        _check_sparsity(self.sparsity)
        if self.output_size > self.units - 2:
            raise ValueError(
                f"{self.output_size} motor neurons need at least {self.output_size + 2} units, an inter and a command "
                f"neuron among them, not {self.units}."
            )

    @property
    def ncp(self) -> NCP:
        """The same with every size said."""
        inner, dense = self.units - self.output_size, 1 - self.sparsity
        command = max(int(0.4 * inner), 1)
        inter = inner - command
        fan = max(int(command * dense), 1)
        recurrent = min(max(int(2 * command * dense), 1), command**2)
        return NCP(inter, command, self.output_size, max(int(inter * dense), 1), fan, recurrent, fan, self.seed)

    def wire(self, input_size: int) -> Wiring:
        return self.ncp.wire(input_size)


Maker = FullyConnected | Random | NCP | AutoNCP


def _fan(rng: np.random.Generator, sources: int, targets: int, fanout: int) -> np.ndarray:
    """Signed synapses (sources, targets): `fanout` from every source, then the mean fan-in to every target left out."""
    block = np.zeros((sources, targets), dtype=int)
    for source in range(sources):
        block[source, rng.choice(targets, fanout, replace=False)] = rng.choice(FAIR, fanout)
    fanin = max(sources * fanout // targets, 1)
    for target in np.flatnonzero(~block.any(axis=0)):
        block[rng.choice(sources, fanin, replace=False), target] = rng.choice(FAIR, fanin)
    return block


def _or_all(output_size: int | None, units: int) -> int:
    return units if output_size is None else output_size


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}.")


def _check_output(units: int, output_size: int | None) -> None:
    if output_size is not None and not 1 <= output_size <= units:
        raise ValueError(f"output_size is between 1 and the {units} units, not {output_size}.")


def _check_sparsity(sparsity: float) -> None:
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is the share of missing synapses, at least 0 and below 1, not {sparsity}.")


def _check_fan(name: str, fan: int, there: int, layer: str) -> None:
    if not 1 <= fan <= there:
        raise ValueError(f"{name} is between 1 and the {there} {layer} neurons, not {fan}.")
