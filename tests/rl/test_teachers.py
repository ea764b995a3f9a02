"""Teachers: kept with their score, found again, refused when damaged or when they have not learned."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from rl_helpers import RULES, imitate, keep

from nnarena.core.errors import DataError
from nnarena.core.files import locked
from nnarena.data.folder import stored_file
from nnarena.rl import teachers
from nnarena.rl.dqn import QNetwork, Settings, Trained, greedy_score
from nnarena.rl.environments import find
from nnarena.rl.teachers import SETTINGS, TeacherFailed, get_teacher, teacher_name

TINY = Settings(steps=64, enough=500.0, warm_up=16, look=32, trials=2, hidden_size=8)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def untrainable(monkeypatch):
    monkeypatch.setattr(teachers, "train", lambda *given: pytest.fail("it must not be trained"))


def a_network(name="cartpole"):
    torch.manual_seed(0)
    return QNetwork(find(name), SETTINGS[name].hidden_size, SETTINGS[name].layers)


def test_what_was_kept_is_found_again(untrainable):
    trained = imitate("cartpole", RULES["cartpole"])
    assert trained.score > 475
    place = keep("cartpole", trained)
    teacher = get_teacher("cartpole")
    assert teacher.score == trained.score and teacher.environment == find("cartpole")
    for ours, theirs in zip(teacher.network.state_dict().values(), trained.network.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    states = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.testing.assert_array_equal(teacher.policy(states), trained.network.policy()(states))
    note = json.loads(stored_file(place).with_suffix(".json").read_text())
    assert note["environment"] == "CartPole-v1" and note["score"] == trained.score and note["wanted"] == 475
    assert note["settings"]["gamma"] == 0.99 and note["episodes"] == 100


def test_one_is_trained_where_none_is_and_only_once(monkeypatch):
    """A real one, with a goal that it can reach in a moment."""
    monkeypatch.setitem(SETTINGS, "cartpole", TINY)
    monkeypatch.setitem(teachers.find.__globals__["ENVIRONMENTS"], "cartpole", replace(find("cartpole"), solved=5.0))
    lines: list[str] = []
    first = get_teacher("cartpole", 3, lines.append)
    assert "none is here yet, training one, at most 64 steps" in lines[0]
    assert f"{first.score:.1f} over 100 greedy episodes after 64 steps" in lines[-1]
    assert greedy_score(first.environment, first.network, 5, 20) >= 5
    monkeypatch.setattr(teachers, "train", lambda *given: pytest.fail("it must not be trained again"))
    lines.clear()
    assert get_teacher("cartpole", 3, lines.append).score == first.score and lines == []


def test_one_that_did_not_learn_is_refused_with_its_score_and_not_trained_again(monkeypatch, folder):
    monkeypatch.setitem(SETTINGS, "cartpole", TINY)
    with pytest.raises(TeacherFailed) as refused:
        get_teacher("cartpole")
    text = str(refused.value)
    assert text.startswith("The teacher for CartPole-v1 did not learn: it scored ")
    assert "over 100 greedy episodes, and 475 is wanted" in text and "[teacher=1]" in text and str(folder) in text
    monkeypatch.setattr(teachers, "train", lambda *given: pytest.fail("it must not be trained again"))
    with pytest.raises(TeacherFailed) as again:
        get_teacher("cartpole")
    assert str(again.value) == text


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)


def rewrite(path, **changes):
    with np.load(path) as found:
        arrays = dict(found) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


DAMAGE = {
    "cut short": cut_short,
    "a flipped byte": flip,
    "empty": lambda path: path.write_bytes(b""),
    "something else": lambda path: path.write_text("not an archive"),
    "no score": lambda path: rewrite(path, score=None),
    "another shape": lambda path: rewrite(path, **{"network.body.0.weight": np.zeros((3, 4), np.float32)}),
    "not finite": lambda path: rewrite(path, score=np.array(np.nan)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_refused_and_trained_again(damage, monkeypatch):
    path = stored_file(keep("cartpole", Trained(a_network(), 499.0, 1, 1.0)))
    assert get_teacher("cartpole").score == 499
    DAMAGE[damage](path)
    lines: list[str] = []
    monkeypatch.setattr(teachers, "train", lambda *given: Trained(a_network(), 488.0, 2, 1.0))
    assert get_teacher("cartpole", 0, lines.append).score == 488
    assert lines[0].startswith(str(path)) and lines[0].endswith("The teacher is trained again.")
    lines.clear()
    assert get_teacher("cartpole", 0, lines.append).score == 488 and lines == [], "and is whole from then on"


def test_other_settings_and_seeds_are_other_teachers(monkeypatch):
    names = [teacher_name("cartpole", 0), teacher_name("cartpole", 1), teacher_name("acrobot", 0)]
    monkeypatch.setitem(SETTINGS, "cartpole", replace(SETTINGS["cartpole"], lr=2e-3))
    names.append(teacher_name("cartpole", 0))
    monkeypatch.setattr(teachers, "VERSION", 2)
    names.append(teacher_name("cartpole", 0))
    assert len(set(names)) == 5


def test_a_training_that_breaks_leaves_nothing(monkeypatch):
    def breaks(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(teachers, "train", breaks)
    with pytest.raises(KeyboardInterrupt):
        get_teacher("cartpole")
    assert not stored_file(teacher_name("cartpole", 0)).exists()
    monkeypatch.setattr(teachers, "train", lambda *given: Trained(a_network(), 480.0, 1, 1.0))
    assert get_teacher("cartpole").score == 480


def test_who_comes_second_waits_and_does_not_train(untrainable):
    path = stored_file(teacher_name("cartpole", 0))
    lines: list[str] = []

    def hear(text):
        lines.append(text)
        keep("cartpole", Trained(a_network(), 490.0, 1, 1.0))
        done.set()

    done = threading.Event()
    with locked(path.parent, 1.0, "busy"):
        found: list[float] = []
        second = threading.Thread(target=lambda: found.append(get_teacher("cartpole", 0, hear).score))
        second.start()
        assert done.wait(20)
    second.join(20)
    assert found == [490] and lines == ["Teacher for CartPole-v1: another process is training it, waiting."]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="NNARENA_DATA names another folder"):
        get_teacher("cartpole")
