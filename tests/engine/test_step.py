"""One step of training is a function of its arguments; evaluation is a mean over everything."""

from __future__ import annotations

import copy

import own_nets
import pytest
import torch
from engine_helpers import COMPETITORS, make
from torch import nn

from nnarena.core.components import catalogue
from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task
from nnarena.engine.prepare import prepare
from nnarena.engine.step import Data, State, evaluate, train_step

SPEC = TaskSpec(input_shape=(5, 2), output_size=3, target="class")


def task() -> Task:
    made = Task()
    made.spec = SPEC
    return made


def state_of(model: nn.Module, optimizer: str = "adam") -> State:
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    component = catalogue("optimizer")[optimizer]
    return State(params, buffers, component.load()(params.values(), **component.resolve({})))


def data(count=24, seed=0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        (torch.randn(count, *SPEC.input_shape, generator=generator),),
        torch.randint(3, (count,), generator=generator),
    )


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "noisy":
        return own_nets.noisy(SPEC).train()
    return catalogue("model")[name].load()(SPEC)


def same(one: State, other: State) -> bool:
    return all(torch.equal(tensor, other.weights()[name]) for name, tensor in one.weights().items())


@pytest.mark.parametrize("optimizer", sorted(catalogue("optimizer")))
@pytest.mark.parametrize("model", [*COMPETITORS, "noisy"])
def test_the_same_state_and_batch_give_the_same_bits_whatever_ran_between(model, optimizer):
    net, state, samples = build(model), None, data()
    state = state_of(net, optimizer)
    for step in range(3):
        train_step(net, task(), state, *samples.batch(torch.arange(8) + 8 * step))
    twin = copy.deepcopy(state)
    assert twin.optimizer.param_groups[0]["params"][0] is next(iter(twin.params.values()))
    torch.manual_seed(5)
    loss = train_step(net, task(), state, *samples.batch(torch.arange(8)))
    stranger = state_of(net, optimizer)
    for step in range(4):
        train_step(net, task(), stranger, *data(seed=9).batch(torch.arange(6) + step))
    evaluate(net, task(), stranger.weights(), data(seed=3), 8)
    net.train()
    torch.manual_seed(5)
    assert torch.equal(loss, train_step(net, task(), twin, *samples.batch(torch.arange(8))))
    assert same(state, twin)
    assert not same(state, stranger)


@pytest.mark.parametrize("model", ["lstm", "noisy"])
def test_the_modules_own_numbers_are_neither_read_nor_written(model):
    net = build(model)
    state, reference = state_of(net), state_of(net)
    torch.manual_seed(1)
    expected = train_step(net, task(), reference, *data().batch(torch.arange(8)))
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
    torch.manual_seed(1)
    assert torch.equal(train_step(net, task(), state, *data().batch(torch.arange(8))), expected)
    assert same(state, reference)
    assert all(bool(tensor.isnan().all()) for tensor in net.parameters())
    assert all(bool((tensor.isnan() | (tensor == -1)).all()) for tensor in net.buffers())


def test_a_step_is_what_plain_torch_does():
    net = build("lstm")
    plain = copy.deepcopy(net)
    optimizer = torch.optim.Adam(plain.parameters())
    state, samples = state_of(net), data()
    for step in range(5):
        inputs, targets = samples.batch(torch.arange(8) + step)
        loss = train_step(net, task(), state, inputs, targets)
        optimizer.zero_grad()
        theirs = nn.functional.cross_entropy(plain(*inputs), targets)
        theirs.backward()
        optimizer.step()
        assert torch.equal(loss, theirs.detach())
    assert all(torch.equal(state.params[name], p) for name, p in plain.named_parameters())


def test_running_statistics_are_plain_torchs():
    net = build("noisy")
    plain, state = copy.deepcopy(net), state_of(net)
    optimizer = torch.optim.Adam(plain.parameters())
    for step in range(4):
        inputs, targets = data().batch(torch.arange(8) + step)
        torch.manual_seed(step)
        train_step(net, task(), state, inputs, targets)
        torch.manual_seed(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(*inputs), targets).backward()
        optimizer.step()
    assert {name for name, _ in plain.named_buffers()} == state.buffers.keys() and state.buffers
    assert all(torch.equal(state.weights()[name], tensor) for name, tensor in plain.state_dict().items())


def test_a_buffer_that_becomes_a_new_tensor_is_kept():
    net = own_nets.Reassigns(2, 3)
    plain, state = copy.deepcopy(net), state_of(net)
    for step in range(3):
        inputs, targets = data().batch(torch.arange(8) + step)
        train_step(net, task(), state, inputs, targets)
        plain(*inputs)
    assert torch.equal(state.buffers["mean"], plain.mean)


def test_one_matrix_in_two_places_stays_one():
    net = own_nets.Tied(2, 3)
    plain, state = copy.deepcopy(net), state_of(net)
    assert [name for name in state.params if "weight" in name] == ["one.weight", "mix.weight"]
    optimizer = torch.optim.Adam(plain.parameters())
    for step in range(3):
        inputs, targets = data().batch(torch.arange(8) + step)
        train_step(net, task(), state, inputs, targets)
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(*inputs), targets).backward()
        optimizer.step()
    assert all(torch.equal(state.params[name], p) for name, p in plain.named_parameters())


def test_what_is_frozen_is_neither_trained_nor_counted():
    arena = prepare(make(":Frozen"), torch.device("cpu"))
    before = {name: tensor.clone() for name, tensor in arena.state.weights().items()}
    assert arena.parameters == 3 + 1
    for index in torch.arange(len(arena.parts["train"])).reshape(-1, 16):
        train_step(arena.model, arena.task, arena.state, *arena.parts["train"].batch(index))
    after = arena.state.weights()
    assert before.keys() == after.keys() and "fixed.weight" in after, "the checkpoint must hold it"
    assert torch.equal(before["fixed.weight"], after["fixed.weight"])
    assert not torch.equal(before["mix.weight"], after["mix.weight"])


@pytest.mark.parametrize("batch", [1, 4, 7, 8, 24, 100])
def test_evaluation_in_batches_is_the_mean_over_everything(batch):
    net = build("noisy")
    state, samples = state_of(net), data()
    scores = evaluate(net, task(), state.weights(), samples, batch)
    plain = build("noisy").double().eval()
    with torch.no_grad():
        logits = plain(samples.inputs[0].double())
    by_hand = -torch.log_softmax(logits, 1)[torch.arange(24), samples.targets].mean()
    assert list(scores) == ["cross_entropy", "accuracy"]
    assert scores["cross_entropy"] == pytest.approx(by_hand.item(), rel=1e-5)
    assert scores["accuracy"] == pytest.approx((logits.argmax(1) == samples.targets).double().mean().item())


def test_evaluation_changes_nothing():
    net = build("noisy")
    state = state_of(net)
    before = copy.deepcopy(state)
    evaluate(net, task(), state.weights(), data(), 8)
    assert same(state, before)
