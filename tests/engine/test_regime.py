"""Regularisers in training: each does what its equation says, the same alone, together and continued."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_helpers import CPU, Stop, assert_same, bits, curve, make, run, run_together

from nnarena.core.errors import ArenaError, Unfit
from nnarena.core.task import Task
from nnarena.engine.fit import check_fit, seconds_per_step
from nnarena.engine.hold import hold_back
from nnarena.engine.prepare import prepare
from nnarena.engine.regime import Regime, shaken_inputs, wrong_labels
from nnarena.engine.step import State, compute_gradients
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL

DIGITS = {"task": "digits", "model": "deep_mlp[hidden_size=8,layers=2,activation=tanh]", "epochs": 2}
EACH = [
    {"l1": 1e-3},
    {"l2": 1e-2},
    {"input_noise": 0.3},
    {"weight_noise": 0.05},
    {"label_smoothing": 0.2},
    {"label_noise": 0.3},
    {"bagging": True},
    {"same_data": True},
    {"full_batch": True},
    {"dropout": 0.3},
]
KEYS = torch.tensor([5, 2**62 + 11, 77])


# ----------------------------------------------------------------------------------------- the equations


def test_penalties_are_the_gradient_of_what_they_are_said_to_add():
    torch.manual_seed(0)
    W, b = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)
    b.requires_grad_()
    x = torch.randn(5, 4, dtype=torch.float64)
    loss = (x @ W.T + b).square().mean()
    whole = loss + 0.1 * W.abs().sum() + 0.3 / 2 * W.square().sum()
    wanted = torch.autograd.grad(whole, (W, b), retain_graph=True)
    W.grad, b.grad = torch.autograd.grad(loss, (W, b))
    before = [W.detach().clone(), b.detach().clone()]
    hold_back(torch.optim.SGD([W, b], 1.0), {"l1": 0.1, "l2": 0.3}).step()
    for old, param, gradient in zip(before, (W, b), wanted, strict=True):
        torch.testing.assert_close(old - param.detach(), gradient)


def test_l2_is_sgds_weight_decay_of_the_matrices():
    W = [torch.nn.Parameter(torch.arange(6.0).view(2, 3)) for _ in range(2)]
    for param in W:
        param.grad = torch.ones(2, 3)
    hold_back(torch.optim.SGD([W[0]], 0.1), {"l2": 0.5}).step()
    torch.optim.SGD([W[1]], 0.1, weight_decay=0.5).step()
    torch.testing.assert_close(W[0], W[1])


def test_clipping_comes_after_the_penalties():
    W = torch.nn.Parameter(torch.full((2, 2), 100.0))
    W.grad = torch.zeros(2, 2)
    hold_back(torch.optim.SGD([W], 1.0), {"l2": 1.0, "clip_norm": 1.0}).step()
    assert float((100 - W.detach()).norm()) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_smoothed_labels_are_torchs(share):
    torch.manual_seed(0)
    task = Task()
    task.spec = prepare(make(**DIGITS), CPU).task.spec
    prediction, target = torch.randn(6, 10, dtype=torch.float64), torch.arange(6)
    wanted = F.cross_entropy(prediction, target, label_smoothing=share)
    loss = Regime(label_smoothing=share).loss_of(task) or task.loss
    torch.testing.assert_close(loss(prediction, target), wanted)


def test_noise_on_weights_is_another_at_every_step_and_gradients_are_those_of_the_shaken_ones():
    regime = Regime(weight_noise=0.5)
    params = {"W": torch.zeros(200, 300, dtype=torch.float64), "b": torch.zeros(300), "V": torch.zeros(300, 200)}
    noisy = regime.shaken(params, KEYS[:1], torch.tensor([3]))
    assert noisy.keys() == {"W", "V"}, "a bias gets none"
    assert float(noisy["W"].std()) == pytest.approx(0.5, rel=0.02) and abs(float(noisy["W"].mean())) < 0.01
    assert not torch.equal(noisy["W"].flatten().float(), noisy["V"].flatten())
    assert not torch.equal(noisy["W"], regime.shaken(params, KEYS[:1], torch.tensor([4]))["W"])
    assert not torch.equal(noisy["W"], regime.shaken(params, KEYS[1:2], torch.tensor([3]))["W"])

    ready = prepare(make(**DIGITS), CPU)
    inputs, targets = ready.parts["train"].batch(torch.arange(16))
    shaken = regime.shaken(ready.state.params, KEYS[:1], torch.tensor([0]))
    loss = compute_gradients(ready.model, ready.task, ready.state, inputs, targets, shaken=shaken)
    there = State({n: shaken.get(n, p).detach().requires_grad_() for n, p in ready.state.params.items()}, {}, None)  # type: ignore[arg-type]
    assert float(compute_gradients(ready.model, ready.task, there, inputs, targets)) == float(loss)
    for name, param in ready.state.params.items():
        assert torch.equal(param.grad, there.params[name].grad)


def test_members_get_the_noise_that_they_would_get_alone():
    regime, step = Regime(weight_noise=0.5), torch.tensor([2])
    params = {"b": torch.zeros(4), "W": torch.zeros(4, 6)}
    together = regime.shaken({n: p.expand(3, *p.shape) for n, p in params.items()}, KEYS, step, population_dims=1)
    for member, key in enumerate(KEYS):
        assert torch.equal(together["W"][member], regime.shaken(params, key[None], step)["W"])


def test_noise_on_inputs_depends_on_sample_and_key_and_leaves_the_elapsed_time_alone():
    x, spans = torch.zeros(400, 10, 9), torch.ones(400, 10)
    noisy, same = shaken_inputs((x, spans), torch.arange(400), KEYS[:1], 0.2)
    assert same is spans and float(noisy.std()) == pytest.approx(0.2, rel=0.02)
    again = shaken_inputs((x[:2],), torch.tensor([7, 3]), KEYS[:1], 0.2)[0]
    assert torch.equal(again, noisy[[7, 3]])
    assert not torch.equal(shaken_inputs((x,), torch.arange(400), KEYS[1:2], 0.2)[0], noisy)
    with pytest.raises(ArenaError, match="input_noise is for inputs that are numbers"):
        shaken_inputs((torch.zeros(2, 3, dtype=torch.int64),), torch.arange(2), KEYS[:1], 0.2)


def test_validation_and_test_see_no_noise():
    plain, noisy = prepare(make(**DIGITS), CPU), prepare(make(**DIGITS, input_noise=0.5), CPU)
    for part in ("validation", "test"):
        assert noisy.parts[part].input_noise == 0
        assert torch.equal(
            noisy.parts[part].batch(torch.arange(4))[0][0], plain.parts[part].batch(torch.arange(4))[0][0]
        )
    assert not torch.equal(
        noisy.parts["train"].batch(torch.arange(4), KEYS[:1])[0][0], plain.parts["train"].batch(torch.arange(4))[0][0]
    )


# ------------------------------------------------------------------------------------------------- the data


def test_so_many_training_labels_are_wrong_and_no_other():
    targets, train = np.arange(1000) % 10, np.arange(200, 1000)
    noisy = wrong_labels(targets, train, 0.25, 10, np.random.default_rng(0))
    assert (noisy[:200] == targets[:200]).all() and (targets == np.arange(1000) % 10).all()
    assert (noisy[train] != targets[train]).sum() == 200
    shifts = np.bincount((noisy - targets)[noisy != targets] % 10, minlength=10)
    assert shifts[0] == 0 and shifts[1:].min() > 8


def labels(**settings):
    ready = prepare(make(**DIGITS, **settings), CPU)
    return {name: part.targets for name, part in ready.parts.items()}, ready.split


def test_label_noise_is_of_the_training_set_and_fixed_by_the_seed():
    plain, noisy = labels()[0], labels(label_noise=0.5)[0]
    assert torch.equal(plain["test"], noisy["test"]) and torch.equal(plain["validation"], noisy["validation"])
    assert float((plain["train"] != noisy["train"]).double().mean()) == pytest.approx(0.5, abs=0.01)
    assert torch.equal(noisy["train"], labels(label_noise=0.5)[0]["train"])


def test_bagging_draws_with_replacement_from_the_training_samples_by_the_seed():
    plain, bag = labels()[1], labels(bagging=True)[1]
    assert np.array_equal(plain.test, bag.test) and len(bag.train) == len(plain.train)
    assert set(bag.train) < set(plain.train)
    assert 0.57 < len(set(bag.train)) / len(plain.train) < 0.69  # 1 − 1/e
    other = labels(bagging=True, same_data=True, seed=1)[1]
    first = labels(bagging=True, same_data=True)[1]
    assert np.array_equal(first.test, other.test) and not np.array_equal(first.train, other.train)
    assert np.array_equal(labels(same_data=True, seed=1)[1].train, plain.train)


# --------------------------------------------------------------------------------------------- whole trials


@pytest.mark.parametrize("settings", EACH, ids=str)
def test_a_population_is_its_trials_and_a_stopped_one_goes_on(settings, tmp_path):
    trials = [make(**DIGITS, seed=seed, optimizer="momentum", **settings) for seed in range(2)]
    logs: list[str] = []
    run_together(trials, tmp_path / "one", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place))
    with pytest.raises(Stop):
        run(trials[1], tmp_path / "parts", stop_after=1)
    run(trials[1], tmp_path / "parts")
    assert bits(tmp_path / "parts") == bits(tmp_path / "each" / "1")
    run(make(**DIGITS, seed=1, optimizer="momentum"), tmp_path / "plain")
    assert bits(tmp_path / "parts")["weights"] != bits(tmp_path / "plain")["weights"], "it changed nothing"


def test_what_is_watched_is_recorded_and_changes_nothing(tmp_path):
    trials = [make(**DIGITS, seed=seed, watch_training=True, watch_gradient=True) for seed in range(2)]
    together = run_together(trials, tmp_path / "one")
    result = run(trials[1], tmp_path / "each")
    assert_same(tmp_path / "each", tmp_path / "one" / "1")
    run(make(**DIGITS, seed=1), tmp_path / "plain")
    assert bits(tmp_path / "each")["weights"] == bits(tmp_path / "plain")["weights"]
    watched = {"loss", "loss_sum", "gradient", "last_gradient", "first_gradient"}
    assert result["training"].keys() == {"cross_entropy", "accuracy"} | watched
    assert together[1]["training"] == pytest.approx(result["training"], rel=1e-3)
    lines, others = curve(tmp_path / "each"), curve(tmp_path / "one" / "1")
    assert list(lines[0]["gradients"]) == ["layers.0.weight", "layers.2.weight", "layers.4.weight"]
    for line, other in zip(lines, others, strict=True):
        assert other["gradients"] == pytest.approx(line["gradients"], rel=1e-3)
    assert result["training"]["first_gradient"] == lines[0]["gradients"]["layers.0.weight"]
    assert "training" in json.loads((tmp_path / "plain" / "result.json").read_text())


def test_the_length_of_a_gradient_is_the_mean_over_the_steps(tmp_path):
    """With a learning rate of next to nothing the weights stay, and the epoch's mean is that of the batches."""
    trial = make(**DIGITS | {"epochs": 1}, optimizer="sgd", lr=1e-12, watch_gradient=True)
    run(trial, tmp_path)
    ready = prepare(trial, CPU)
    order = np.random.default_rng(trial.axis("order", 0)).permutation(len(ready.parts["train"])).reshape(-1, 16)
    lengths = []
    for rows in torch.from_numpy(order):
        compute_gradients(ready.model.train(), ready.task, ready.state, *ready.parts["train"].batch(rows))
        lengths.append(float(ready.state.params["layers.0.weight"].grad.norm()))
    assert curve(tmp_path)[0]["gradients"]["layers.0.weight"] == pytest.approx(np.mean(lengths), rel=1e-4)


def test_a_full_batch_is_gradient_descent_by_hand(tmp_path):
    """θ ← θ − η ∇ of the mean loss of all 256 training samples, once an epoch."""
    result = run(make(**DIGITS, optimizer="sgd[full_batch=true,lr=0.5]", watch_gradient=True), tmp_path)
    ready = prepare(make(**DIGITS, optimizer="sgd[lr=0.5]"), CPU)
    inputs, targets = ready.parts["train"].batch(torch.arange(256))
    losses = []
    for _ in range(2):
        losses.append(float(compute_gradients(ready.model, ready.task, ready.state, inputs, targets)))
        with torch.no_grad():
            for param in ready.state.params.values():
                param -= 0.5 * param.grad
    assert [line["loss"] for line in curve(tmp_path)] == pytest.approx(losses, rel=1e-5)
    assert result["training"]["loss_sum"] == result["training"]["loss"], "an epoch is one step"
    for name, tensor in load(tmp_path / MODEL)[0].items():
        torch.testing.assert_close(tensor, ready.state.params[name].detach(), rtol=1e-5, atol=1e-6)


def test_the_cost_of_a_full_batch_can_be_foreseen():
    assert seconds_per_step([make(**DIGITS, full_batch=True)], CPU) > 0


TOKENS = {"task": "copy", "model": "encoder_decoder"}


@pytest.mark.parametrize(
    ("trial", "sentence"),
    [
        ({"label_smoothing": 0.1}, r"label_smoothing is for classes, and add\[length=4\] asks for values"),
        ({"task": "copy", "model": "encoder_decoder", "label_smoothing": 0.1}, "classes, and copy asks for tokens"),
        ({"task": "copy", "model": "encoder_decoder", "input_noise": 0.1}, "numbers, and copy gives tokens"),
        ({"task": "surface", "model": "point", "l2": 0.1}, "l2 has nothing to act on: it trains no matrix"),
        ({"model": "gru[freeze='.*weight.*',weight_noise=0.1]"}, "weight_noise has nothing to act on"),
        ({"label_noise": 0.1}, r"label_noise is for classes, and add\[length=4\] asks for values"),
        ({**TOKENS, "label_smoothing": 0.1}, "label_smoothing is for classes, and copy asks for tokens"),
        ({**TOKENS, "input_noise": 0.1}, "input_noise is for inputs that are numbers, and copy gives tokens"),
        ({"task": "pendulum", "model": "mlp", "bagging": True}, "pendulum has no samples, .* leave bagging out"),
        ({"task": "pendulum", "model": "mlp[input_noise=0.1]"}, "pendulum has no samples, .* leave input_noise out"),
        ({"task": "surface", "model": "point", "optimizer": "sgd[full_batch=true]"}, "surface has .* full_batch out"),
    ],
)
def test_what_a_trial_has_no_use_for_is_known_before_anything_runs(trial, sentence):
    with pytest.raises(Unfit, match=sentence):
        check_fit(make(**trial))
