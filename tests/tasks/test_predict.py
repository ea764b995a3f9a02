"""Predicting an agent: windows inside of episodes, labels of the last state, episodes that are never shared."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnarena.core.components import catalogue, find
from nnarena.core.errors import ArenaError, BadOption, DataError
from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study, find_study
from nnarena.engine.splits import split
from nnarena.launch.run import check_study, run_study
from nnarena.rl import teachers
from nnarena.rl.dqn import Settings
from nnarena.rl.environments import play
from nnarena.rl.teachers import SETTINGS, get_teacher
from nnarena.tasks.predict import check_varied

sys.path.append(str(Path(__file__).parents[1] / "rl"))
from rl_helpers import RULES, imitate, keep

NAMES = ("predict_acrobot", "predict_cartpole", "predict_mountaincar")


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """A folder with two true teachers, made in a moment."""
    folder = tmp_path_factory.mktemp("agents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNARENA_DATA", str(folder))
        for name, rule in RULES.items():
            keep(name, imitate(name, rule))
    return folder


@pytest.fixture
def here(agents, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(agents))


def make(name="mountaincar", seed=0, **options):
    component = catalogue("task")[f"predict_{name}"]
    task = component.load()(**component.resolve({"samples": 500} | options))
    return task.samples(np.random.default_rng(seed))


@pytest.mark.parametrize("name", RULES)
def test_a_window_is_a_piece_of_one_episode_and_its_label_what_was_done_at_its_end(name, here):
    samples, length = make(name, length=7), 7
    teacher = get_teacher(name)
    first = int(np.random.default_rng(0).integers(2**30))
    episodes = play(teacher.environment, teacher.policy, range(first, first + 32))
    wanted = {"inputs": [], "targets": [], "series": []}
    learning = True
    for number, episode in enumerate(episodes):
        for start in range(len(episode.actions) - length + 1):
            wanted["inputs"].append(episode.states[start : start + length])
            wanted["targets"].append(episode.actions[start + length - 1])
            wanted["series"].append(number)
            if learning and len(wanted["inputs"]) == 400:  # what is left of this episode belongs to nobody
                learning = False
                break
        if len(wanted["inputs"]) >= 500:
            break
    for part, values in wanted.items():
        found = getattr(samples, part)
        if part == "series":
            values = np.unique(np.array(values), return_inverse=True)[1]
        np.testing.assert_array_equal(found, np.array(values)[:500], err_msg=part)
    assert samples.inputs.dtype == np.float32 and samples.targets.dtype == np.int64
    np.testing.assert_array_equal(samples.set_aside, np.arange(500) >= 400)


@pytest.mark.parametrize("name", RULES)
def test_the_last_state_alone_tells_the_teacher_what_the_label_says(name, here):
    samples = make(name)
    np.testing.assert_array_equal(get_teacher(name).policy(samples.inputs[:, -1].copy()), samples.targets)
    assert not np.array_equal(get_teacher(name).policy(samples.inputs[:, -2].copy()), samples.targets), "no lag"


def test_neighbouring_states_of_a_window_follow_from_each_other(here):
    """A position is the one before plus the new velocity, but at the wall: no window holds a jump to a new start."""
    x = make("mountaincar", samples=2000).inputs.astype(np.float64)
    jump = np.abs(x[:, 1:, 0] - x[:, :-1, 0] - x[:, 1:, 1])
    assert jump[x[:, 1:, 0] > -1.19].max() < 1e-6 and jump.max() < 0.07


def test_episodes_are_never_shared_by_test_validation_and_training(here):
    samples = make("mountaincar", samples=3000)
    parts = split(3000, samples.series, Protocol(batch_size=32), np.random.default_rng(0), samples.set_aside)
    owners = [set(samples.series[part]) for part in (parts.test, parts.validation, parts.train)]
    assert all(owners) and not owners[0] & owners[1] and not owners[0] & owners[2] and not owners[1] & owners[2]
    assert sorted(parts.test) == list(range(2400, 3000)) and len(parts.validation) == 224
    starts = {
        tuple(samples.inputs[np.flatnonzero(samples.series == number)[0], 0]) for number in np.unique(samples.series)
    }
    assert len(starts) == len(np.unique(samples.series)), "and every episode has a start of its own"


def test_the_seed_decides_the_episodes(here):
    one, same, other = make(seed=0), make(seed=0), make(seed=1)
    np.testing.assert_array_equal(one.inputs, same.inputs)
    assert not np.array_equal(one.inputs[:, 0], other.inputs[:, 0])


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_as_large_as_its_environment(name):
    gymnasium = pytest.importorskip("gymnasium")
    task = catalogue("task")[name].load()()
    made = gymnasium.make(task.world.name)
    assert task.spec.input_shape == (10, *made.observation_space.shape) and task.spec.output_size == made.action_space.n
    made.close()
    assert all(option.doc for option in find("task", name).options)


def test_a_specification_needs_no_gymnasium_but_a_study_does(monkeypatch, tmp_path):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in NAMES:
        task = catalogue("task")[name].load()()
        with pytest.raises(DataError, match=r'pip install "nnarena\[control\]"'):
            task.check()
    with pytest.raises(DataError, match=r"nnarena\[control\]"):
        check_study(find_study("control-prediction"))


def test_a_check_trains_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    monkeypatch.setattr(teachers, "train", lambda *given: pytest.fail("it must not be trained"))
    check_study(find_study("control-prediction"))
    assert list(tmp_path.iterdir()) == []


def test_a_constant_policy_is_refused_whatever_it_scored(monkeypatch, tmp_path):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path))
    lazy = imitate("mountaincar", lambda states: np.ones(len(states), np.int64), steps=60)
    keep("mountaincar", replace(lazy, score=-100.0))
    with pytest.raises(ArenaError, match=r"MountainCar-v0 does the same thing \(action 1\) in 100.0 % of all states"):
        make("mountaincar")
    check_varied("x", np.array([0] * 99 + [1]))
    with pytest.raises(ArenaError, match="nothing to predict"):
        check_varied("x", np.array([0] * 199 + [1]))


def test_windows_that_no_episode_can_fill(here):
    with pytest.raises(BadOption, match=r"too few episodes are as long as length=201; .* the longest has 1\d\d states"):
        make("mountaincar", length=201)


@pytest.mark.parametrize("options", [{"samples": 0}, {"length": 0}, {"teacher": -1}])
def test_wrong_options(options):
    with pytest.raises(BadOption, match=f"'{next(iter(options))}'"):
        make(**options)


def study(**settings):
    grid = Grid(*(tuple(parse_choices([part])) for part in ("predict_cartpole", "gru[hidden_size=8]", "adam")))
    protocol = Protocol.of({"samples": 1200, "batch_size": 32, "epochs": 2, "lr": 0.01} | settings)
    return Study("tests", (grid,), protocol=protocol)


def test_a_study_on_it_beats_the_majority(here, tmp_path):
    outcome = run_study(study(), tmp_path / "out", device="cpu", jobs=1)
    (row,) = (folder.result() for folder in outcome.store.folders())
    assert outcome.counts == {"done": 1}
    assert row["test"]["accuracy"] > row["baselines"]["majority class"]["accuracy"] + 0.1


def test_a_teacher_that_did_not_learn_is_a_failed_row_that_says_what_it_scored(monkeypatch, tmp_path):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "data"))
    tiny = Settings(steps=64, enough=500.0, warm_up=16, look=32, trials=2, hidden_size=8)
    monkeypatch.setitem(SETTINGS, "cartpole", tiny)
    # Another number of samples than above: those are still in memory.
    outcome = run_study(study(samples=1280), tmp_path / "out", device="cpu", jobs=1)
    (row,) = (folder.result() for folder in outcome.store.folders())
    assert outcome.counts == {"failed": 1} and row["status"] == "failed" and row["test"] == {}
    assert row["error"].startswith("The teacher for CartPole-v1 did not learn: it scored ")
    assert "475 is wanted" in row["error"]


def test_the_published_figures_belong_to_rows_of_the_study():
    from nnarena.core.components import PACKAGE
    from nnarena.report.published import figures_of, obstacle, read_figures

    whole = find_study("control-prediction")
    figures = read_figures(PACKAGE / "studies" / whole.published)
    trials = whole.trials()
    assert len(trials) == 3 * 3 * 5
    for trial in trials:
        assert [figure.metric for figure in figures_of(figures, *trial.cell)] == ["accuracy"]
        assert obstacle(whole, whole, str(trial.task), str(trial.optimizer)) == ""
        assert trial.options["optimizer"]["lr"] == 3e-4 and trial.options["optimizer"]["weight_decay"] == 1e-4
