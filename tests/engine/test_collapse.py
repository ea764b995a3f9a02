"""A model that gives everything the same class, or almost everything, is flagged; one that does not is not."""

from __future__ import annotations

import json

import pytest
import torch
from engine_helpers import CPU, bits, make, run, run_together
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.spec import TaskSpec
from nnarena.engine.collapse import Answers
from nnarena.engine.prepare import prepare
from nnarena.engine.tensors import load
from nnarena.results.folder import MODEL, RESULT

IMAGES = {"task": "digits_image", "samples": 1600, "batch_size": 32, "epochs": 2, "select": "last"}
# Such a step leaves every unit of the control network dead: nothing but the last bias speaks.
DEAD = {"model": "control_vgg[maps=4]", "lr": 1.0}
# Such a step leaves almost every unit dead: a few images get another answer.
ALMOST = {"model": "attention_wise", "lr": 0.3, "samples": 960, "epochs": 4, "seed": 1}
HEALTHY = {"model": "attention_wise", "lr": 0.01}


def answers_of(trial, path):
    """The classes that the stored weights answer on the test."""
    ready = prepare(trial, CPU)
    ready.model.load_state_dict(load(path / MODEL)[0])
    inputs, _ = ready.parts["test"].batch(torch.arange(len(ready.parts["test"])))
    with torch.no_grad():
        return ready.model.eval()(*inputs).argmax(-1)


@pytest.mark.parametrize(
    ("more", "classes", "collapsed"),
    [(DEAD, 1, True), (ALMOST, 2, True), (HEALTHY, 10, False)],
    ids=["dead", "almost", "healthy"],
)
def test_a_trial_says_whether_its_model_collapsed(more, classes, collapsed, tmp_path):
    trial = make(**IMAGES | more)
    result = run(trial, tmp_path)
    assert len(answers_of(trial, tmp_path).unique()) == classes, "this test shows nothing"
    assert result["collapsed"] is collapsed
    assert json.loads((tmp_path / RESULT).read_text())["collapsed"] is collapsed
    assert result["status"] == "done", "it is no failure, and no number is missing"
    baseline = result["baselines"]["majority class"]
    assert (result["test"]["accuracy"] > 2 * baseline["accuracy"]) is not collapsed
    if collapsed:
        assert result["test"]["cross_entropy"] > 0.99 * baseline["cross_entropy"]


def test_in_a_population_each_member_has_its_own_answer(tmp_path):
    trials = [make(**IMAGES | DEAD | {"model": "attention_wise[heads=1,norm=true]", "lr": lr}) for lr in (0.01, 10)]
    together = run_together(trials, tmp_path / "together")
    alone = [run(trial, tmp_path / "alone" / str(place)) for place, trial in enumerate(trials)]
    for place, (one, other) in enumerate(zip(together, alone, strict=True)):
        one_class = len(answers_of(trials[place], tmp_path / "together" / str(place)).unique()) == 1
        assert one["collapsed"] is other["collapsed"] is one_class
    assert [result["collapsed"] for result in together] == [False, True]


def test_values_cannot_collapse(tmp_path):
    assert run(make(epochs=1), tmp_path)["collapsed"] is None
    assert bits(tmp_path)["result"]["collapsed"] is None


def seen(*batches, classes=3, target="class"):
    answers = Answers(TaskSpec(input_shape=(2, 2), output_size=classes, target=target))
    for batch in batches:
        answers.see(torch.nn.functional.one_hot(torch.tensor(batch), classes).float())
    return answers


TRUTH = [0, 1] * 10  # ten of twenty are not of the most frequent class


@pytest.mark.parametrize(
    ("batches", "targets", "collapsed"),
    [
        (([2] * 12, [2] * 8), TRUTH, True),
        (([2] * 12, [2] * 7 + [1]), TRUTH, True),
        (([2] * 12, [2] * 6 + [1, 1]), TRUTH, False),
        (([1] + [2] * 11, [2] * 7 + [0]), TRUTH, False),
        (([[2, 2]] * 9 + [[2, 1]],), [[0, 1]] * 10, True),
        (([[2, 2]] * 8 + [[2, 0], [2, 1]],), [[0, 1]] * 10, False),
        (([0] * 20,), [0] * 19 + [1], True),
        (([0] * 19 + [1],), [0] * 19 + [1], False),
        (([1, 1],), [1, 1], None),
        ((), TRUTH, None),
    ],
    ids=[
        *("one class", "a tenth", "more than a tenth", "in several batches", "a tenth of steps", "more of steps"),
        *("the rare one missed", "the rare one found", "all there is", "nothing"),
    ],
)
def test_it_departs_at_most_a_tenth_as_often_as_the_truth(batches, targets, collapsed):
    assert seen(*batches).have_collapsed(torch.tensor(targets)) is collapsed


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 1, 2]), st.integers(0, 2)), min_size=2, max_size=60))
def test_what_has_collapsed_is_near_the_best_constant_answer(pairs):
    answers, targets = (torch.tensor(column) for column in zip(*pairs, strict=True))
    best = float(targets.bincount().max()) / len(pairs)
    if seen(answers.tolist()).have_collapsed(targets):
        assert float((answers == targets).float().mean()) <= best + (1 - best) / 10 + 1e-6
    if len(targets.unique()) > 1:
        assert seen([0] * len(pairs)).have_collapsed(targets) is True
        assert seen(targets.tolist()).have_collapsed(targets) is False


def test_numbers_are_no_classes():
    assert seen([0] * 20, target="values").have_collapsed(torch.rand(20)) is None
    assert seen([0] * 20, classes=1).have_collapsed(torch.tensor(TRUTH)) is None
