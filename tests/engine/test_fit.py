"""Whether a model fits a task is known before anything runs."""

from __future__ import annotations

import pytest
import torch
from engine_helpers import CPU, make

from nnarena.core.errors import ArenaError, Unfit
from nnarena.core.spec import TaskSpec
from nnarena.engine import fit
from nnarena.engine.fit import blank_inputs, check_data, check_fit, seconds_per_step
from nnarena.engine.stack import Unstackable, make_trainer


@pytest.mark.parametrize(("model", "count"), [("lstm", 17217), ("gru", 20241), ("transformer", 21889)])
def test_what_fits_is_counted(model, count):
    assert check_fit(make(model, task="add")) == count


def test_only_what_is_trained_is_counted():
    assert check_fit(make(":Frozen")) == 3 + 1


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (":wrong_shape", r"it must give \(2, 1\), but it gave \(2, 4, 2\)"),
        (":Tuple", r"it must give \(2, 1\), but it gave tuple"),
        (":no_parameters", "no_parameters has no parameters, so there is nothing to train"),
        ("transformer[d_model=5]", r"transformer\[d_model=5\] does not fit add\[length=4\]: ValueError: .*even"),
    ],
)
def test_what_does_not_fit_is_a_sentence(model, sentence):
    with pytest.raises(Unfit, match=sentence):
        check_fit(make(model))


def test_who_decodes_one_token_does_not_fit_a_task_of_every_step():
    with pytest.raises(Unfit, match=r"transformer does not fit cell: .* wants an output at every step"):
        check_fit(make("transformer", task="cell"))
    check_fit(make("lstm", task="cell"))


@pytest.mark.parametrize("optimizer", ["adam[betas=(2,2)]", "sgd[nesterov=true]", "adagrad[eps=-1]"])
def test_an_optimizer_that_cannot_be_made_is_a_sentence(optimizer):
    with pytest.raises(ArenaError, match="cannot be made: "):
        check_fit(make(optimizer=optimizer))


def test_looking_changes_neither_the_seed_nor_the_mode_of_anything():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    check_fit(make("lstm"))
    assert torch.equal(torch.rand(3), expected)


def test_too_few_samples_are_known_before_anything_runs():
    check_data(make(samples=160))
    with pytest.raises(ArenaError, match=r"add\[length=4\]: 159 samples are too few"):
        check_data(make(samples=159))


def test_blank_inputs_have_the_tasks_shapes():
    spec = TaskSpec(input_shape=(5, 3), output_size=1, target="values", timespans=True)
    assert [part.shape for part in blank_inputs(spec, 7)] == [(7, 5, 3), (7, 5)]


@pytest.mark.parametrize("task", ["add[length=4]", "memory[length=2]", "cell[length=2]", ":Timed"])
def test_a_step_takes_time(task):
    assert 0 < seconds_per_step([make("lstm", task=task)], CPU) < 10


def test_a_step_of_a_population_is_that_of_one_stacked_model(monkeypatch):
    sizes = []

    def make_and_count(trial, members, *rest, **more):
        sizes.append(len(members))
        return make_trainer(trial, members, *rest, **more)

    monkeypatch.setattr(fit, "make_trainer", make_and_count)
    assert 0 < seconds_per_step([make(":Small", seed=seed) for seed in range(3)], CPU) < 10
    assert sizes == [3]


@pytest.mark.parametrize(("error", "most", "seconds"), [(MemoryError, 2, 5 / 3 * 3 / 2), (Unstackable, 1, 5.0)])
def test_what_does_not_go_as_one_is_measured_in_parts(monkeypatch, error, most, seconds):
    def measure(members, steps, device):
        if len(members) > most:
            raise error
        return 1.0

    monkeypatch.setattr(fit, "_seconds_as_one", measure)
    assert seconds_per_step([make(seed=seed) for seed in range(5)], CPU) == pytest.approx(seconds)
