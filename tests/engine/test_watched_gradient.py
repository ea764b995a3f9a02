"""The mean gradient of the first layer's weights, epoch by epoch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from engine_helpers import CPU, Stop, assert_same, bits, curve, make, run, run_together
from torch import nn

from nnarena.core.errors import ArenaError
from nnarena.engine.fit import check_fit
from nnarena.engine.members import Member
from nnarena.engine.prepare import prepare
from nnarena.engine.stack import make_trainer
from nnarena.engine.trainer import first_weight
from nnarena.results.folder import MODEL, TrialFolder

WATCHED = {"training", "gradients"}
IMAGES = {"task": "digits_image[size=4]", "samples": 320, "epochs": 2, "watch_gradient": True}


def watched(path):
    return [line["training"] for line in curve(path)]


def by_hand(trial, epochs):
    """The same epochs by a plain loop with torch's own backward: both means of every epoch."""
    ready = prepare(trial, CPU)
    model = copy.deepcopy(ready.model).train()
    model.load_state_dict(ready.state.weights())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    weight = next(param for param in model.parameters() if param.ndim > 1)
    found = []
    for epoch in range(epochs):
        order = np.random.default_rng(trial.axis("order", epoch)).permutation(len(ready.parts["train"]))
        gradients = []
        for index in torch.from_numpy(order.reshape(-1, 16)):
            inputs, targets = ready.parts["train"].batch(index)
            optimizer.zero_grad()
            ready.task.loss(model(*inputs), targets).backward()
            gradients.append(weight.grad.double().clone())
            optimizer.step()
        sizes = [float(gradient.abs().mean()) for gradient in gradients]
        found.append({"gradient": sum(sizes) / len(sizes), "last_gradient": float(gradients[-1].mean())})
    return found


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("lstm[hidden_size=6]", {"watch_gradient": True, "epochs": 2}),
        ("attention_wise[heads=2,layers=1]", IMAGES),
        ("control_vgg", IMAGES | {"task": "digits_image"}),
    ],
)
def test_it_is_what_backward_finds(model, more, tmp_path):
    trial = make(model, **more)
    result = run(trial, tmp_path)
    for line, theirs in zip(watched(tmp_path), by_hand(trial, 2), strict=True):
        assert line == pytest.approx(theirs, rel=1e-4, abs=1e-9)
        assert 0 < abs(line["last_gradient"]) < line["gradient"]
    first, last = curve(tmp_path)
    wanted = {"loss": last["loss"], "loss_sum": 16 * last["loss"], **last["training"]}
    assert result["training"] == wanted | {"first_gradient": next(iter(first["gradients"].values()))}


@pytest.mark.parametrize(("model", "more"), [(":Small", {}), ("attention_wise[heads=2,layers=1]", IMAGES)])
def test_a_population_is_its_trials(model, more, tmp_path):
    trials = [make(model, seed=seed, **{"watch_gradient": True} | more) for seed in range(3)]
    logs: list[str] = []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))
        lines = [watched(tmp_path / way / str(place)) for way in ("together", "alone")]
        for one, other in zip(*lines, strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-8)


def test_members_that_come_from_different_epochs_keep_their_own(tmp_path):
    trials = [make(":Small", seed=seed, watch_gradient=True) for seed in range(3)]
    with pytest.raises(Stop):
        run(trials[1], tmp_path / "together" / "1", stop_after=2)
    run_together(trials, tmp_path / "together")
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "alone" / str(place))
        for one, other in zip(*(watched(tmp_path / way / str(place)) for way in ("together", "alone")), strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-8)


@pytest.mark.parametrize("stop", [1, 3])
def test_stopped_and_continued_is_the_same(stop, tmp_path):
    trial = make(watch_gradient=True)
    run(trial, tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial, tmp_path / "stopped", stop_after=stop)
    run(trial, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_watching_changes_nothing(tmp_path):
    plain, watching = run(make(), tmp_path / "plain"), run(make(watch_gradient=True), tmp_path / "watching")
    lines = [{key: value for key, value in line.items() if key not in WATCHED} for line in curve(tmp_path / "watching")]
    assert lines == curve(tmp_path / "plain")
    assert (tmp_path / "plain" / MODEL).read_bytes() == (tmp_path / "watching" / MODEL).read_bytes()
    assert plain["training"] == {} and watching["training"]


def test_a_step_looks_at_no_number(tmp_path, monkeypatch):
    """What a CUDA graph records may not be asked for: no tensor becomes a number within a step."""
    members = [
        Member(make(":Small", seed=seed, watch_gradient=True), TrialFolder(tmp_path), CPU, True) for seed in (0, 1)
    ]
    for member in members:
        member.prepare(print)
    for count in (1, 2):
        trainer = make_trainer(members[0].trial, members[:count], CPU, print)
        trainer._step()  # the optimizer makes its state

        def refuse(*_):
            raise AssertionError("the host looked at a number")

        with monkeypatch.context() as patched:
            for name in ("item", "__float__", "__bool__", "__int__", "cpu", "tolist"):
                patched.setattr(torch.Tensor, name, refuse)
            trainer._gradients()


def test_a_weight_that_no_gradient_reaches_has_none(tmp_path):
    run(make(":Idle", watch_gradient=True, epochs=1), tmp_path)
    assert watched(tmp_path) == [{"gradient": 0.0, "last_gradient": 0.0}]


def test_the_first_layer_is_the_first_that_has_a_matrix_or_a_kernel():
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3))
    assert first_weight(dict(net.named_parameters())) == "1.weight"
    assert first_weight(dict(nn.BatchNorm1d(3).named_parameters())) == "weight", "where there is none, the first of all"


def test_what_learns_from_what_it_does_cannot_be_watched():
    trial = make("mlp", task="pendulum", watch_gradient=True)
    with pytest.raises(ArenaError, match="watch_gradient: the steps of pendulum are its own"):
        check_fit(trial)
