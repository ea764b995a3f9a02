"""An epoch is its steps and the mean of their losses, however it is driven."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_helpers import CPU, make

from nnarena.engine.members import Member
from nnarena.engine.step import evaluate, train_step
from nnarena.engine.trainer import Alone, OutOfTime
from nnarena.results.folder import TrialFolder


def member(tmp_path, **more) -> Member:
    made = Member(make(**more), TrialFolder(tmp_path), CPU, exclusive=True)
    made.prepare(print)
    return made


def test_an_epoch_is_its_steps_and_the_mean_of_their_losses(tmp_path):
    one, other = member(tmp_path), member(tmp_path)
    trainer, order = Alone(one, 16, CPU, print), one.order()
    (mean,) = trainer.train([order])
    ready = other.ready
    ready.model.train()
    losses = [
        train_step(ready.model, ready.task, ready.state, *ready.parts["train"].batch(index)).item() for index in order
    ]
    assert mean == pytest.approx(np.mean(losses), rel=1e-12)
    assert all(torch.equal(param, ready.state.params[name]) for name, param in trainer.state(0).params.items())
    assert trainer.validate() == [
        evaluate(ready.model, ready.task, ready.state.weights(), ready.parts["validation"], 16)
    ]


def test_the_next_epoch_starts_at_the_first_sample_again(tmp_path):
    one, other = member(tmp_path), member(tmp_path)
    trainer = Alone(one, 16, CPU, print)
    for _ in range(2):
        trainer.train([one.order()])
    for index in [*other.order(), *other.order()]:
        train_step(
            other.ready.model.train(),
            other.ready.task,
            other.ready.state,
            *other.ready.parts["train"].batch(index),
        )
    assert all(torch.equal(param, other.ready.state.params[name]) for name, param in trainer.state(0).params.items())


def test_a_deadline_ends_an_epoch(tmp_path):
    made = member(tmp_path)
    with pytest.raises(OutOfTime):
        Alone(made, 16, CPU, print).train([made.order()], deadline=0.0)


def test_a_blended_learning_rate_is_the_optimizers(tmp_path):
    """What a GPU does, where the rate of the start is recorded for good."""
    trainers = []
    for blends in (True, False):
        made = member(tmp_path)
        trainer = Alone(made, 16, CPU, print, blends=blends)
        for factor in (1.0, 0.1, 0.1):
            made.ready.state.optimizer.param_groups[0]["lr"] *= factor
            trainer.train([made.order()])
        assert made.lr == pytest.approx(1e-4), "the checkpoint must hold what is in force"
        trainers.append(trainer)
    for name, param in trainers[0].state(0).params.items():
        torch.testing.assert_close(param, trainers[1].state(0).params[name], rtol=1e-5, atol=1e-6)
    start = member(tmp_path).ready.state
    assert not any(torch.equal(param, start.params[name]) for name, param in trainers[0].state(0).params.items())
