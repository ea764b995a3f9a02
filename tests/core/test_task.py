"""Loss, metrics and trivial baselines, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from nnarena.core.spec import Samples, TaskSpec
from nnarena.core.task import Task


def make(target, output_size, shape=(3, 2), per_step=False) -> Task:
    task = Task()
    task.spec = TaskSpec(input_shape=shape, output_size=output_size, target=target, per_step=per_step)
    return task


def test_values_are_scored_by_the_mean_squared_error():
    score = make("values", 2).score(torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1.0, 0.0], [3.0, 4.0]]))
    assert {name: value.item() for name, value in score.items()} == {"mse": (4 + 1) / 4}


def test_classes_are_scored_by_cross_entropy_first_and_accuracy_last():
    logits = torch.tensor([[0.0, math.log(3)], [math.log(4), 0.0], [0.0, math.log(9)]])
    score = make("class", 2).score(logits, torch.tensor([1, 1, 1]))
    by_hand = -(math.log(3 / 4) + math.log(1 / 5) + math.log(9 / 10)) / 3
    assert list(score) == ["cross_entropy", "accuracy"]
    assert score["cross_entropy"].item() == pytest.approx(by_hand, rel=1e-6)
    assert score["accuracy"].item() == pytest.approx(2 / 3)
    assert make("class", 2).loss(logits, torch.tensor([1, 1, 1])).item() == pytest.approx(by_hand, rel=1e-6)


def test_the_majority_class_of_the_training_part_is_counted_on_the_test_part():
    train = Samples(np.zeros((10, 3, 2), np.float32), np.array([0, 1, 1, 1, 1, 1, 2, 2, 2, 2]))
    test = Samples(np.zeros((4, 3, 2), np.float32), np.array([1, 1, 2, 0]))
    (scores,) = make("class", 3).baselines(train, test).values()
    assert scores["accuracy"] == 0.5
    assert scores["cross_entropy"] == pytest.approx(-(2 * math.log(0.5) + math.log(0.4) + math.log(0.1)) / 4, rel=1e-5)


def test_a_class_that_training_never_saw_costs_much_but_not_infinitely():
    train = Samples(np.zeros((2, 3, 2), np.float32), np.array([0, 0]))
    test = Samples(np.zeros((1, 3, 2), np.float32), np.array([1]))
    assert 20 < make("class", 2).baselines(train, test)["majority class"]["cross_entropy"] < 40


def test_the_mean_of_the_training_part_and_the_last_frame():
    train = Samples(np.zeros((2, 3, 2), np.float32), np.array([[0, 2], [2, 4]], np.float32))
    inputs = np.zeros((1, 3, 2), np.float32)
    inputs[0, -1] = [5, 3]
    test = Samples(inputs, np.array([[3, 3]], np.float32))
    assert make("values", 2).baselines(train, test) == {"mean": {"mse": 2.0}, "last frame": {"mse": 2.0}}


def test_no_last_frame_where_it_is_not_like_the_target():
    train = Samples(np.zeros((2, 3, 2), np.float32), np.array([[0.0], [2.0]], np.float32))
    assert list(make("values", 1).baselines(train, train)) == ["mean"]


def test_the_mean_of_every_step_where_every_step_counts():
    targets = np.array([[[0.0], [1.0], [4.0]], [[2.0], [1.0], [0.0]]], np.float32)
    train = Samples(np.zeros((2, 3, 1), np.float32), targets)
    task = make("values", 1, shape=(3, 1), per_step=True)
    assert task.baselines(train, train) == {"mean": {"mse": pytest.approx((1 + 1 + 0 + 0 + 4 + 4) / 6)}}


def test_a_task_without_samples_says_so():
    with pytest.raises(NotImplementedError):
        Task().samples(np.random.default_rng(0))
