"""Control by the command: a study of agents from its plan to its report, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnarena.bench import control

TASK = "pendulum[steps=40,warm_up=20,episodes=2,critic_size=8,buffer=100,frames=2]"
REQUEST = ("-t", TASK, "-m", "mlp[hidden_size=8]", "--epochs", "2", "--batch-size", "8", "--jobs", "1", "--out", "out")


def test_agents_go_from_plan_to_report(arena):
    plan = json.loads(arena("run", *REQUEST, "--plan", "--json").out)
    assert plan["trials"] == 1 and plan["cells"][0]["seconds_per_epoch"] > 0 and not plan["obstacles"]
    printed = arena("run", *REQUEST)
    assert printed.code == 0, printed.err
    (row,) = json.loads(arena("report", "out", "--format", "json").out)["rows"]
    assert row["test"]["return"]["mean"] == -row["test"]["cost"]["mean"] < 0
    assert row["training"]["reward_per_step"]["mean"] < 0
    assert "random actions" in arena("report", "out", "--format", "md").out
    assert "training.reward_per_step.mean" in arena("report", "out", "--format", "csv").out
    assert "1 done" in arena("status", "out").out
    trial = next(Path("out/trials").glob("*/*/*/*"))
    assert arena("rerun", "out", trial.name).code == 0


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("pendulum[steps=100,envs=3]", "must be a multiple of envs=3"),
        ("pendulum[burn_in=2]", "add carry=true"),
        ("mine_too.py:Cart", "Soft actor-critic needs continuous actions"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(arena, own, task, text):
    (own / "mine_too.py").write_text(
        "from nnarena.tasks.control import Control\n\n\nclass Cart(Control):\n"
        "    environment, observations, actions, packages = 'CartPole-v1', 4, 1, ('gymnasium',)\n"
    )
    printed = arena("run", "-t", task, "-m", "mlp", "--out", "out")
    assert printed.code == 2 and text in printed.err and not (own / "out").exists()


def test_a_package_that_is_missing_is_named_with_its_extra(arena, own, monkeypatch):
    monkeypatch.setattr("nnarena.rl.envs.importlib.util.find_spec", lambda name, *rest: None)
    printed = arena("run", "-t", "hopper", "-m", "mlp", "--out", "out")
    assert printed.code == 2 and "pip install 'nnarena[control]'" in printed.err and not (own / "out").exists()


def test_ours_is_measured_where_the_peer_is_missing(arena, monkeypatch):
    monkeypatch.setattr(control, "PEER", "no_such_package")
    monkeypatch.setattr(control, "STEPS", 3)
    monkeypatch.setattr(control, "EPISODES", 1)
    command = (
        "bench",
        "control",
        "-t",
        "pendulum",
        "--cpu",
        "--rounds",
        "1",
        "--learn",
        "110",
        "--seeds",
        "1",
        "--json",
    )
    content = json.loads(arena(*command).out)
    ours, theirs = content["rows"]
    assert ours["steps_per_second"] > 0 and len(ours["returns"]) == 1 and -2000 < ours["returns"][0] < 0
    assert theirs["note"].startswith("skipped") and content["task"] == "pendulum"


def test_a_task_without_an_agent_cannot_be_measured(arena):
    printed = arena("bench", "control", "-t", "hoper")
    assert printed.code == 2 and "did you mean 'hopper'" in printed.err
