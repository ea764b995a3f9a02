"""Unitary NCP: its parts in a row, and a state that can be handed on."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from nnarena.nn.ltc import LTC
from nnarena.nn.unitary_ncp import UnitaryNCP
from nnarena.nn.unitary_rnn import UnitaryRNN


def make(**options) -> UnitaryNCP:
    torch.manual_seed(0)
    return UnitaryNCP(3, 2, hidden_size=6, capacity=2, units=5, unfolds=2, dtype=torch.float64, **options)


def sequences(batch: int = 4, steps: int = 7) -> torch.Tensor:
    return torch.randn(batch, steps, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_the_circuit_senses_the_real_part_step_by_step() -> None:
    layer, x = make(), sequences()
    output, ((re, im), potentials) = layer(x)
    h, v = layer.memory.initial_state(len(x), x), layer.circuit.initial_state(len(x), x)
    for t in range(x.shape[1]):
        real, h = layer.memory(x[:, t : t + 1], h)
        shown, v = layer.circuit(real, v)
        torch.testing.assert_close(shown[:, 0], output[:, t])
        torch.testing.assert_close(real[:, 0], h[0])
    torch.testing.assert_close((h[0], h[1], v), (re, im, potentials))
    assert isinstance(layer.memory, UnitaryRNN) and isinstance(layer.circuit, LTC)


def test_command_neurons_do_not_listen_to_each_other() -> None:
    wiring = make().circuit.wiring
    command = [place for place, name in enumerate(wiring.layers) if name == "command"]
    assert len(command) == 2
    assert not wiring.adjacency[command][:, command].any()


def test_two_pieces_are_the_whole_and_the_future_does_not_leak() -> None:
    layer, x = make(), sequences()
    whole, _ = layer(x)
    first, state = layer(x[:, :3])
    second, _ = layer(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    torch.testing.assert_close(layer(x.transpose(0, 1).contiguous().transpose(0, 1))[0], whole)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(layer(changed)[0][:, :4], whole[:, :4])
    assert not torch.allclose(layer(changed)[0][:, 4:], whole[:, 4:])


def test_time_first_is_the_same() -> None:
    x = sequences()
    torch.testing.assert_close(make(batch_first=False)(x.transpose(0, 1))[0].transpose(0, 1), make()(x)[0])


def test_gradients_are_right() -> None:
    layer, x = make(), sequences(2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda inputs: layer(inputs)[0], (x,))


def test_it_copies_and_pickles() -> None:
    layer, x = make(), sequences()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x)[0], layer(x)[0])
    other = make(wiring_seed=3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x)[0], layer(x)[0])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"units": 3}, "units must be at least 4"), ({"hidden_size": 7}, "must be even"), ({"capacity": 8}, "capacity")],
)
def test_sizes_that_cannot_work_are_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        UnitaryNCP(3, 2, **{"hidden_size": 6, "capacity": 2, **options})
