"""What a study would cost: jobs and populations count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from launch_helpers import GRU, LSTM, small

from nnarena.api import make_study
from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study
from nnarena.engine import fit
from nnarena.launch import plan, run
from nnarena.launch.plan import make_plan
from nnarena.launch.run import run_study


@pytest.fixture
def timed(monkeypatch):
    """A step of any population takes a second: an epoch of 16 steps, and validation, a little more than 16."""
    sizes = []
    monkeypatch.setattr(fit, "seconds_per_step", lambda trials, device: sizes.append(len(trials)) or 1.0)
    return sizes


@pytest.mark.parametrize(
    ("jobs", "population", "sizes", "paid", "at_once"),
    [(1, None, [1, 1], 6, 1), (1, 3, [3, 3], 2, 1), (2, 3, [3, 3], 1, 2), (9, 2, [2, 2], 1, 4), (4, 1, [1, 1], 1.5, 4)],
)
def test_a_population_is_paid_once_and_jobs_share_the_work(timed, tmp_path, jobs, population, sizes, paid, at_once):
    study = small(LSTM, GRU, seeds=3)
    made = make_plan(study, tmp_path / "store", "cpu", jobs, population)
    epoch = made["cells"][0]["seconds_per_epoch"]
    assert timed == sizes and 16 < epoch < 17
    assert made["jobs"] == at_once
    assert made["seconds_left"] == pytest.approx(paid * 4 * epoch)


def test_a_population_of_two_cells_is_paid_once(timed, tmp_path):
    grid = Grid(*map(tuple, map(parse_choices, (["add[length=4]"], [LSTM], ["adam[lr=[0.1,0.01]]"]))))
    study = Study("tests", (grid,), seeds=2, protocol=Protocol.of({"samples": 320, "batch_size": 16, "epochs": 4}))
    made = make_plan(study, tmp_path / "store", "cpu", 1, 4)
    assert timed == [4, 4] and made["seconds_left"] == pytest.approx(4 * made["cells"][0]["seconds_per_epoch"])


@pytest.mark.parametrize(("there", "jobs", "parts"), [(True, None, 2), (True, 1, 1), (False, 2, 1), (False, None, 1)])
def test_on_a_gpu_jobs_help_only_where_processes_can_share_it(monkeypatch, timed, tmp_path, there, jobs, parts):
    for module in (plan, run):
        monkeypatch.setattr(module, "find_mps", lambda: "a daemon" if there else None)
    monkeypatch.setattr(run, "cores", lambda: 16)
    monkeypatch.setattr(plan, "pick_device", torch.device)
    made = make_plan(small(LSTM, GRU, seeds=3), tmp_path / "store", "cuda", jobs)
    assert timed == [3, 3], "all seeds as one"
    assert made["seconds_left"] == pytest.approx(2 * 4 * made["cells"][0]["seconds_per_epoch"] / parts)


def test_what_is_done_costs_nothing_and_says_what_the_rest_will(timed, tmp_path):
    run_study(small(LSTM, epochs=2), tmp_path, device="cpu", jobs=1)
    made = make_plan(small(LSTM, seeds=2, epochs=2), tmp_path, "cpu", 1)
    (cell,) = made["cells"]
    assert not timed and (cell["trials"], cell["done"]) == (2, 1)
    assert cell["seconds_left"] == pytest.approx(2 * cell["seconds_per_epoch"])


def test_an_epoch_has_as_many_steps_as_the_data_where_the_task_does_not_say(timed, tmp_path, monkeypatch):
    """All 1,797 digits: 1,437 of them to learn from, 180 to look at; then with 597 set aside for the test."""
    study = make_study(None, ["digits_image"], ["resnet18"], settings={"batch_size": 30})
    whole = make_plan(study, tmp_path / "store", "cpu", 1)["cells"][0]["seconds_per_epoch"]
    assert whole == pytest.approx((1437.6 + 179.7 / 3) / 30)
    task = study.trials()[0].components["task"].load()
    plain = task.samples

    def with_a_test(self, rng):
        return replace(plain(self, rng), set_aside=np.arange(1797) >= 1200)

    monkeypatch.setattr(task, "samples", with_a_test)
    rest = make_plan(study, tmp_path / "store", "cpu", 1)["cells"][0]["seconds_per_epoch"]
    assert rest == pytest.approx((1080 + 120 / 3) / 30)
