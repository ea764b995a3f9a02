"""The schedule against the rules of Keras, written down a second time from their documentation."""

from __future__ import annotations

import json
import math

import pytest
import torch
from engine_helpers import Stop, assert_same, bits, curve, make, run, run_together
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.protocol import Protocol
from nnarena.engine.schedule import Schedule


class EarlyStopping:
    """Keras: stop when the quantity has not improved by more than min_delta for `patience` epochs."""

    def __init__(self, patience: int, min_delta: float) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best, self.wait, self.stopped = math.inf, 0, False

    def on_epoch_end(self, loss: float) -> None:
        if self.best - loss > self.min_delta:
            self.best = loss
            self.wait = 0
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.stopped = True


class ReduceLROnPlateau:
    """Keras, without cooldown and without a floor."""

    def __init__(self, patience: int, min_delta: float, factor: float, lr: float) -> None:
        self.patience, self.min_delta, self.factor, self.lr = patience, min_delta, factor, lr
        self.best, self.wait = math.inf, 0

    def on_epoch_end(self, loss: float) -> None:
        if self.best - loss > self.min_delta:
            self.best = loss
            self.wait = 0
            return
        self.wait += 1
        if self.wait >= self.patience:
            self.lr = self.lr * self.factor
            self.wait = 0


class ModelCheckpoint:
    """Keras: save_best_only, any improvement counts."""

    def __init__(self) -> None:
        self.best, self.epoch = math.inf, 0

    def on_epoch_end(self, loss: float, epoch: int) -> None:
        if loss < self.best:
            self.best, self.epoch = loss, epoch


# Multiples of 2⁻⁶ with a min_delta of 2⁻⁵, so that "exactly min_delta" happens and no rounding blurs it.
losses = st.lists(st.integers(0, 24).map(lambda value: value / 64) | st.floats(0, 1), min_size=1, max_size=60)
protocols = st.builds(
    Protocol,
    epochs=st.integers(1, 60),
    stop_patience=st.integers(1, 7),
    plateau_patience=st.integers(1, 5),
    min_delta=st.sampled_from([0.0, 1 / 32]),
    plateau_factor=st.sampled_from([0.1, 0.5]),
)


@given(losses, protocols, st.none() | st.integers(0, 60))
def test_it_does_what_keras_does_also_when_it_is_put_aside_and_taken_up(losses, protocol, pause):
    stop = EarlyStopping(protocol.stop_patience, protocol.min_delta)
    plateau = ReduceLROnPlateau(protocol.plateau_patience, protocol.min_delta, protocol.plateau_factor, 1.0)
    checkpoint = ModelCheckpoint()
    schedule, lr = Schedule(protocol), 1.0
    for epoch, loss in enumerate(losses, 1):
        if pause == epoch:
            state = json.loads(json.dumps(schedule.state()))
            schedule = Schedule(protocol)
            schedule.restore(state)
        stop.on_epoch_end(loss)
        plateau.on_epoch_end(loss)
        checkpoint.on_epoch_end(loss, epoch)
        schedule.see(loss)
        lr = lr * schedule.factor
        assert lr == plateau.lr
        assert (schedule.best_epoch, schedule.best_loss) == (checkpoint.epoch, checkpoint.best)
        assert schedule.improved == (checkpoint.epoch == epoch)
        assert schedule.finished == (stop.stopped or epoch == protocol.epochs)
        if schedule.finished:
            return
    assert schedule.epoch == len(losses)


def follow(losses, **settings) -> Schedule:
    schedule = Schedule(Protocol(**settings))
    for loss in losses:
        assert not schedule.finished
        schedule.see(loss)
    return schedule


def test_no_progress_at_all_ends_after_one_and_five_epochs_with_two_reductions():
    schedule, reductions = Schedule(Protocol()), []
    while not schedule.finished:
        schedule.see(1.0)
        reductions.append(schedule.factor < 1)
    assert reductions == [False, False, True, False, True, False]
    assert schedule.best_epoch == 1


def test_small_improvements_are_kept_but_do_not_count_as_progress():
    schedule = follow([1 - 1e-5 * epoch for epoch in range(6)])
    assert schedule.finished and schedule.best_epoch == 6 and schedule.improved


def test_slow_but_sure_progress_counts_against_the_best_not_the_last():
    schedule = follow([1 - 0.6e-4 * epoch for epoch in range(100)])
    assert not schedule.finished


@pytest.mark.parametrize("loss", [1.0, 2.0])
def test_a_tie_keeps_the_earlier_epoch(loss):
    assert follow([1.0, loss]).best_epoch == 1


# ------------------------------------------------------------------------------------------ steps, and the last epoch


@given(
    milestones=st.sets(st.integers(1, 12), min_size=1, max_size=3).map(sorted),
    factor=st.sampled_from([0.1, 0.5]),
    losses=st.lists(st.floats(0, 10), min_size=12, max_size=12),
)
def test_milestones_are_those_of_torch(milestones, factor, losses):
    from torch import nn
    from torch.optim import SGD
    from torch.optim.lr_scheduler import MultiStepLR

    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.3)
    theirs = MultiStepLR(optimizer, milestones, factor)
    schedule = Schedule(
        Protocol(epochs=12, stop_patience=12, schedule="steps", milestones=tuple(milestones), step_factor=factor)
    )
    lr = 0.3
    for loss in losses:
        schedule.see(loss)
        lr *= schedule.factor
        optimizer.step()
        theirs.step()
        assert lr == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
    assert schedule.finished and schedule.epoch == 12


def test_the_last_epoch_counts_where_none_is_chosen():
    schedule = Schedule(Protocol(epochs=3, select="last"))
    for epoch, loss in enumerate([1.0, 2.0, 1.5], start=1):
        schedule.see(loss)
        assert schedule.improved and schedule.best_epoch == epoch
    assert schedule.finished


# -------------------------------------------------------------------- schedules that change after every epoch


def rates(epochs=8, **settings):
    """The learning rate of every epoch, as members apply it."""
    schedule = Schedule(Protocol.of({"epochs": epochs, "stop_patience": epochs} | settings))
    lr = schedule.factor
    found = []
    for epoch in range(epochs):
        found.append(lr)
        schedule.see(1.0 / (epoch + 1))
        lr *= schedule.factor
    return found


def test_exponential_cosine_and_warm_up_are_torchs():
    torch_schedulers = torch.optim.lr_scheduler

    def theirs(make, epochs=8):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 1.0)
        scheduler = make(optimizer)
        found = []
        for _ in range(epochs):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return found

    assert rates(schedule="exponential", lr_decay=0.8) == pytest.approx(
        theirs(lambda optimizer: torch_schedulers.ExponentialLR(optimizer, 0.8))
    )
    assert rates(schedule="cosine") == pytest.approx(
        theirs(lambda optimizer: torch_schedulers.CosineAnnealingLR(optimizer, 8))
    )
    assert rates(warmup=3) == pytest.approx(theirs(lambda optimizer: torch_schedulers.LinearLR(optimizer, 1 / 4, 1, 3)))


def test_what_follows_a_warm_up_counts_from_its_end():
    assert rates(schedule="exponential", lr_decay=0.5, warmup=1, epochs=4) == pytest.approx([0.5, 1, 0.5, 0.25])
    assert rates(schedule="cosine", warmup=2, epochs=4) == pytest.approx([1 / 3, 2 / 3, 1, 0.5])


def test_without_these_the_rate_stays_exactly():
    assert rates() == [1.0] * 8


SMOOTH = [
    {"schedule": "cosine"},
    {"schedule": "exponential", "lr_decay": 0.6, "warmup": 2},
    {"warmup": 2, "plateau_patience": 1, "min_delta": 0.02},
]


@pytest.mark.parametrize("settings", SMOOTH)
def test_trials_follow_it_together_alone_and_continued(settings, tmp_path):
    trials = [make(":Small", seed=seed, epochs=5, optimizer="momentum", **settings) for seed in range(2)]
    run_together(trials, tmp_path / "one")
    for place, trial in enumerate(trials):
        run(trial, tmp_path / "each" / str(place))
        assert_same(tmp_path / "each" / str(place), tmp_path / "one" / str(place))
    with pytest.raises(Stop):
        run(trials[0], tmp_path / "parts", stop_after=2)
    run(trials[0], tmp_path / "parts")
    assert bits(tmp_path / "parts") == bits(tmp_path / "each" / "0")
    found = [line["lr"] for line in curve(tmp_path / "parts")]
    if "min_delta" not in settings:
        assert found == pytest.approx([0.01 * rate for rate in rates(5, **settings)])
    else:
        assert found[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01]) or min(found[1:]) < found[0]
