"""Wirings keep their rules at every size, and the seed alone decides what is drawn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnarena.nn.wirings import NCP, AutoNCP, FullyConnected, Random, Wiring

few = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32)
inputs = st.integers(1, 12)


@st.composite
def ncps(draw) -> NCP:
    inter, command, motor = (draw(st.integers(1, 12)) for _ in range(3))
    return NCP(
        inter=inter,
        command=command,
        motor=motor,
        sensory_fanout=draw(st.integers(1, inter)),
        inter_fanout=draw(st.integers(1, command)),
        recurrent_command_synapses=draw(st.integers(0, command**2)),
        motor_fanin=draw(st.integers(1, command)),
        seed=draw(seeds),
    )


def keeps_its_fan(block: np.ndarray, fanout: int) -> None:
    """Every row has at least `fanout`, nobody is left out, and what is above it repairs columns nobody drew."""
    sources, targets = block.shape
    exists = block != 0
    assert (exists.sum(1) >= fanout).all()
    assert (exists.sum(0) >= 1).all()
    repaired = exists.sum() - sources * fanout
    mean = max(sources * fanout // targets, 1)
    assert repaired % mean == 0 and repaired // mean <= targets
    if (exists.sum(0) > mean).all():
        assert repaired == 0


@few
@given(ncps(), inputs)
def test_a_circuit_policy_has_four_layers_and_leaves_nobody_out(ncp, input_size):
    wiring = ncp.wire(input_size)
    motor, command, inter = (wiring.layer(name) for name in ("motor", "command", "inter"))
    assert [*motor, *command, *inter] == list(range(ncp.units)) == list(range(wiring.units))
    assert (len(motor), len(command), len(inter)) == (ncp.motor, ncp.command, ncp.inter)
    assert wiring.output_size == ncp.output_size == ncp.motor and wiring.input_size == input_size
    a, sensory = wiring.adjacency, wiring.sensory
    keeps_its_fan(sensory[:, inter], ncp.sensory_fanout)
    keeps_its_fan(a[np.ix_(inter, command)], ncp.inter_fanout)
    keeps_its_fan(a[np.ix_(command, motor)].T, ncp.motor_fanin)
    assert np.count_nonzero(a[np.ix_(command, command)]) == ncp.recurrent_command_synapses
    allowed = [a[np.ix_(*pair)] for pair in ((inter, command), (command, command), (command, motor))]
    assert wiring.synapses == sum(np.count_nonzero(block) for block in allowed)
    assert wiring.sensory_synapses == np.count_nonzero(sensory[:, inter])


def test_the_published_circuit_is_as_sparse_as_its_rules_say():
    wiring = NCP(9, 7, 17, 2, 2, 14, 2).wire(17)
    assert wiring.units == 33
    assert wiring.sensory_synapses >= 34 and wiring.synapses >= 18 + 14 + 34
    assert wiring.sensory_synapses + wiring.synapses < 0.1 * 33 * (33 + 17)


@few
@given(st.integers(3, 40), st.integers(1, 12), st.floats(0, 0.99), seeds, inputs)
def test_the_automatic_circuit_uses_all_its_units(units, output_size, sparsity, seed, input_size):
    if output_size > units - 2:
        with pytest.raises(ValueError, match=f"{output_size} motor neurons need at least {output_size + 2} units"):
            AutoNCP(units, output_size, sparsity, seed)
        return
    auto = AutoNCP(units, output_size, sparsity, seed)
    wiring = auto.wire(input_size)
    assert (wiring.units, wiring.output_size, wiring.input_size) == (units, output_size, input_size)
    assert np.array_equal(wiring.adjacency, auto.ncp.wire(input_size).adjacency)
    assert wiring.adjacency.any(1)[output_size:].all()  # everyone but motor neurons speaks to someone


@few
@given(st.integers(1, 12), st.floats(0, 0.99), seeds, inputs)
def test_random_has_the_share_of_synapses_it_was_asked_for(units, sparsity, seed, input_size):
    wiring = Random(units, 1, sparsity, seed).wire(input_size)
    assert wiring.synapses == round(units**2 * (1 - sparsity))
    assert wiring.sensory_synapses == round(units * input_size * (1 - sparsity))


@pytest.mark.parametrize("self_connections", [True, False])
def test_fully_connected_has_all_synapses_but_perhaps_those_to_oneself(self_connections):
    wiring = FullyConnected(6, 2, seed=1, self_connections=self_connections).wire(3)
    assert wiring.sensory_synapses == 18
    assert np.array_equal(wiring.adjacency == 0, np.zeros((6, 6)) if self_connections else np.eye(6))
    assert wiring.layers == ("motor",) * 2 + ("hidden",) * 4
    assert FullyConnected(6).wire(3).output_size == 6


def test_signs_are_fair_in_circuits_and_mostly_excite_elsewhere():
    circuit = NCP(60, 60, 60, 30, 30, 1800, 30, seed=3).wire(60)
    signs = circuit.adjacency[circuit.adjacency != 0]
    assert abs(signs.mean()) < 0.05
    for maker in (FullyConnected(80), Random(80)):
        signs = maker.wire(3).adjacency
        assert abs(signs[signs != 0].mean() - 1 / 3) < 0.05


MAKERS = [FullyConnected(9, 2), Random(9, 2, 0.4), NCP(5, 4, 2, 2, 2, 5, 2), AutoNCP(12, 3)]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: type(maker).__name__)
def test_the_seed_alone_decides(maker):
    one, same = maker.wire(4), maker.wire(4)
    other = dataclasses.replace(maker, seed=1).wire(4)
    for name in ("adjacency", "sensory"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
        with pytest.raises(ValueError, match="read-only"):
            getattr(one, name)[0, 0] = 1
    with pytest.raises(ValueError, match="input_size must be at least 1, not 0"):
        maker.wire(0)


GOOD = {
    "inter": 4,
    "command": 3,
    "motor": 2,
    "sensory_fanout": 2,
    "inter_fanout": 2,
    "recurrent_command_synapses": 4,
    "motor_fanin": 2,
}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"inter": 0}, "inter must be at least 1, not 0"),
        ({"motor": -1}, "motor must be at least 1, not -1"),
        ({"sensory_fanout": 5}, "sensory_fanout is between 1 and the 4 inter neurons, not 5"),
        ({"inter_fanout": 4}, "inter_fanout is between 1 and the 3 command neurons, not 4"),
        ({"motor_fanin": 0}, "motor_fanin is between 1 and the 3 command neurons, not 0"),
        ({"recurrent_command_synapses": 10}, "between 0 and 9, .* between 3 command neurons, not 10"),
        ({"recurrent_command_synapses": -1}, "between 0 and 9"),
    ],
)
def test_a_circuit_that_cannot_be_is_refused(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        NCP(**GOOD | wrong)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FullyConnected(0), "units must be at least 1, not 0"),
        (lambda: FullyConnected(3, 4), "output_size is between 1 and the 3 units, not 4"),
        (lambda: Random(3, 0), "output_size is between 1 and the 3 units, not 0"),
        (lambda: Random(3, 1, 1.0), "at least 0 and below 1, not 1.0"),
        (lambda: AutoNCP(8, 2, -0.1), "at least 0 and below 1, not -0.1"),
        (lambda: AutoNCP(8, 0), "output_size must be at least 1, not 0"),
        (lambda: Wiring(np.ones((2, 3)), np.ones((1, 2)), 1), r"not \(2, 3\) and \(1, 2\)"),
        (lambda: Wiring(np.ones((2, 2)), np.ones((1, 3)), 1), r"not \(2, 2\) and \(1, 3\)"),
        (lambda: Wiring(np.full((2, 2), 0.5), np.ones((1, 2)), 1), "adjacency is a matrix of -1, 0 and 1"),
        (lambda: Wiring(np.ones((2, 2)), np.ones(2), 1), "sensory is a matrix of -1, 0 and 1"),
        (lambda: Wiring(np.ones((2, 2)), np.ones((1, 2)), 3), "output_size is between 1 and the 2 units, not 3"),
        (lambda: Wiring(np.ones((2, 2)), np.ones((1, 2)), 1, ("motor",)), "each of the 2 neurons, not 1"),
    ],
)
def test_wrong_sizes_are_sentences(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
