"""A checkpoint holds all that training changes: what continues from it gives the same bits."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from engine_helpers import CPU, make

from nnarena.core.components import catalogue
from nnarena.core.errors import StoreError
from nnarena.core.protocol import Protocol
from nnarena.engine.checkpoint import load_checkpoint, pack_optimizer, save_checkpoint, unpack_optimizer
from nnarena.engine.prepare import prepare
from nnarena.engine.schedule import Schedule
from nnarena.engine.step import train_step
from nnarena.engine.tensors import load, save

# Every optimizer as it is, and with the options that make it remember more.
OPTIMIZERS = [
    *sorted(catalogue("optimizer")),
    "sgd[momentum=0.9,nesterov=true]",
    "adam[amsgrad=true,weight_decay=0.1,betas=(0.5,0.75)]",
    "adamw[amsgrad=true]",
    "rmsprop[momentum=0.5,centered=true]",
    "adagrad[lr_decay=0.1,initial_accumulator_value=0.5]",
]


def arena(optimizer="adam", model="lstm[hidden_size=6]"):
    return prepare(make(model, optimizer=optimizer), CPU)


def train(made, steps, start=0):
    made.model.train()
    for step in range(start, start + steps):
        torch.manual_seed(step)
        index = (torch.arange(16) + 16 * step) % 256
        train_step(made.model, made.task, made.state, *made.parts["train"].batch(index))


def same(one, other) -> bool:
    return all(torch.equal(tensor, other.weights()[name]) for name, tensor in one.weights().items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_taken_apart_and_put_together_goes_on_as_before(optimizer, tmp_path):
    one, other = arena(optimizer), arena(optimizer)
    train(one, 5)
    one.state.optimizer.param_groups[0]["lr"] *= 0.1
    tensors, numbers = pack_optimizer(one.state.optimizer)
    save(tmp_path / "x", tensors)
    with torch.no_grad():
        for name, param in one.state.params.items():
            other.state.params[name].copy_(param)
    unpack_optimizer(other.state.optimizer, load(tmp_path / "x")[0], json.loads(json.dumps(numbers)))
    before, after = one.state.optimizer.state_dict(), other.state.optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert [type(v) for v in after["param_groups"][0].values()] == [type(v) for v in before["param_groups"][0].values()]
    assert after["state"].keys() == before["state"].keys()
    train(one, 5, start=5)
    train(other, 5, start=5)
    assert same(one.state, other.state)


def test_how_another_device_computed_is_not_taken_over():
    """A GPU's optimizer counts on the GPU; its checkpoint must go on here."""
    one, other = arena(), arena()
    train(one, 2)
    tensors, numbers = pack_optimizer(one.state.optimizer)
    numbers["groups"][0] |= {"capturable": True, "fused": True, "foreach": False, "lr": 0.5}
    unpack_optimizer(other.state.optimizer, tensors, numbers)
    (group,) = other.state.optimizer.param_groups
    assert (group["capturable"], group["fused"], group["foreach"], group["lr"]) == (False, None, None, 0.5)
    train(other, 1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["gru[hidden_size=4]", ":noisy"])
def test_training_goes_on_from_a_file_with_the_same_bits(model, optimizer, tmp_path):
    one, schedule = arena(optimizer, model), Schedule(Protocol())
    train(one, 4)
    best = {name: tensor.detach().clone() for name, tensor in one.state.weights().items()}
    for loss in (1.0, 0.5, 0.5):
        schedule.see(loss)
    save_checkpoint(tmp_path / "c", one.state, best, schedule)
    other, resumed = arena(optimizer, model), Schedule(Protocol())
    their_best = load_checkpoint(tmp_path / "c", other.state, resumed)
    assert same(one.state, other.state)
    assert resumed.state() == schedule.state()
    assert their_best.keys() == best.keys() and all(torch.equal(best[name], their_best[name]) for name in best)
    train(one, 4, start=4)
    train(other, 4, start=4)
    assert same(one.state, other.state)
    assert all(torch.equal(best[name], their_best[name]) for name in best), "the best must not follow the training"


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    one, other = arena(model="lstm[hidden_size=6]"), arena(model="lstm[hidden_size=7]")
    save_checkpoint(tmp_path / "c", one.state, {}, Schedule(Protocol()))
    before = copy.deepcopy(other.state)
    with pytest.raises(StoreError, match="does not belong to this trial"):
        load_checkpoint(tmp_path / "c", other.state, Schedule(Protocol()))
    assert same(other.state, before)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"optimizer": "{}", "schedule": "{}"},
        {"optimizer": "{", "schedule": "{}"},
        {"optimizer": '{"state": {}, "groups": []}', "schedule": "{}"},
        {"optimizer": "[]", "schedule": "3"},
    ],
)
def test_a_checkpoint_that_lacks_something_is_refused_and_changes_nothing(metadata, tmp_path):
    one, other = arena(), arena()
    train(one, 2)
    save(tmp_path / "c", {f"now/{name}": tensor for name, tensor in one.state.weights().items()}, metadata)
    before, schedule = copy.deepcopy(other.state), Schedule(Protocol())
    with pytest.raises(StoreError):
        load_checkpoint(tmp_path / "c", other.state, schedule)
    assert same(other.state, before), "the trial starts again from its beginning, not from somewhere else"
    assert schedule.state() == Schedule(Protocol()).state()
