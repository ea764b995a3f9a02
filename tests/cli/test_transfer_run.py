"""Transfer learning as people type it: from one store to another, which is then moved away; and what goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import nnarena
from nnarena.api import make_study
from nnarena.core.errors import ArenaError
from nnarena.engine.tensors import load
from nnarena.results.folder import CHECKPOINT, MODEL, RESULT, START
from nnarena.results.store import Store

SMALL = ("--samples", "320", "--batch-size", "16", "--epochs", "2", "--jobs", "1")


def lstm(*options: str) -> str:
    return f"lstm[{','.join(('hidden_size=6', *options))}]"


@pytest.fixture
def trial(arena, own: Path) -> str:
    """A trial's id in the store `first`, finished."""
    assert arena("run", "-t", "add[length=4]", "-m", lstm(), *SMALL, "--out", "first").code == 0
    return next(Store.open(own / "first").folders()).path.name


def run(arena, *models: str, out: str = "second", seeds: int = 1):
    return arena("run", "-t", "add[length=6]", "-m", ",".join(models), *SMALL, "--seeds", seeds, "--out", out)


def test_beside_one_from_scratch_and_after_the_first_store_was_moved(arena, own, trial):
    models = lstm(), lstm(f"start=first/{trial[:6]}", "freeze=body")
    assert run(arena, *models).code == 0
    rows = json.loads(arena("report", "second", "--format", "json").out)["rows"]
    assert {row["model"]: row["parameters"] for row in rows}.keys() >= {lstm()}
    assert sorted(row["parameters"] for row in rows) == [7, 223]
    (kept,) = own.glob(f"second/trials/*/*start*/*/*/{START}")
    assert load(kept)[0].keys() == load(kept.parent / MODEL)[0].keys()
    shutil.move(own / "first", own / "elsewhere")
    (kept.parent / RESULT).unlink()  # as if it had been stopped
    again = run(arena, *models, seeds=2)
    assert again.code == 0 and "3 trials" not in again.out
    assert arena("status", "second").out.startswith("arena: 4 trials: 4 done")
    assert not list(own.glob(f"second/trials/**/{CHECKPOINT}"))
    rerun = arena("rerun", "second", kept.parent.name)
    assert rerun.code == 0 and "The same" in rerun.out
    # From its new place it is the same trial, under another name.
    assert run(arena, lstm(f"start=elsewhere/{trial}", "freeze=body"), out="third").code == 0
    assert [path.parent.name for path in own.glob(f"third/trials/**/{START}")] == [kept.parent.name]


@pytest.mark.slow
def test_workers_start_with_the_same_weights(arena, own, trial):
    model = lstm(f"start=first/{trial}")
    assert run(arena, model, seeds=2, out="here").code == 0
    several = arena("run", "-t", "add[length=6]", "-m", model, *SMALL[:-1], "2", "--seeds", "2", "--out", "workers")
    assert several.code == 0
    weights = [
        sorted(path.read_bytes() for path in own.glob(f"{out}/trials/**/{MODEL}")) for out in ("here", "workers")
    ]
    assert weights[0] == weights[1] and len(weights[0]) == 2


def test_a_plan_knows_what_is_trained(arena, own, trial):
    plan = arena(
        "run", "-t", "add[length=6]", "-m", lstm(f"start=first/{trial}", "freeze=body"), *SMALL, "--plan", "--json"
    )
    assert plan.code == 0 and json.loads(plan.out)["cells"][0]["parameters"] == 7
    text = arena("run", "-t", "add[length=6]", "-m", lstm(), *SMALL, "--plan").out
    assert "1 trial, 0 done" in text
    assert not (own / "runs").exists()


def wrong(trial: str) -> dict[str, tuple[str, str]]:
    start = f"start=first/{trial}"
    return {
        "no store": (lstm(f"start=nowhere/{trial}"), f"start=nowhere/{trial}: there is no such trial"),
        "no trial": (lstm("start=first/zzz"), "first has no trial 'zzz'"),
        "which trial": (lstm("start=first"), f"start=first: which trial of it? As in first/{trial}."),
        "other weights": (lstm(f"start='first/{trial}@000000000000'"), "its weights are "),
        "architecture": (
            "transformer[d_model=4," + start + "]",
            f"start=first/{trial} (lstm[hidden_size=6] on add[length=4]): it has ",
        ),
        "shape": (f"lstm[hidden_size=5,{start}]", "has the shape (24, 2) in the weights, and (20, 2) in it"),
        "pattern": (lstm(start, "freeze='('"), "freeze takes body or a pattern of names"),
        "nothing frozen": (lstm(start, "freeze=conv"), "freeze='conv' is in no parameter's name"),
        "all frozen": (lstm(start, "freeze='.'"), "nothing is left to train"),
    }


@pytest.mark.parametrize("case", wrong(""))
def test_one_sentence_and_nothing_is_written(case, arena, own, trial):
    model, sentence = wrong(trial)[case]
    before = sorted(own.rglob("*"))
    printed = run(arena, model)
    assert printed.code == 2 and sentence in printed.err and "Traceback" not in printed.err and not printed.out
    assert len(printed.err.strip().splitlines()) == 1
    assert sorted(own.rglob("*")) == before


def test_a_trial_that_is_not_finished_or_has_no_weights(arena, own, trial):
    folder = Store.open(own / "first").find(trial).path
    result = (folder / RESULT).read_text()
    (folder / RESULT).unlink()
    assert f"the trial {trial} is not finished" in run(arena, lstm(f"start=first/{trial}")).err
    (folder / RESULT).write_text(result.replace('"done"', '"failed"'))
    (folder / MODEL).unlink()
    assert "has no weights to start with; it ended as 'failed'" in run(arena, lstm(f"start=first/{trial}")).err
    assert not (own / "second").exists()


@pytest.mark.parametrize("length", [0, 4, 100, 1000])
def test_weights_that_are_cut_short_are_told(length, arena, own, trial):
    path = Store.open(own / "first").find(trial).path / MODEL
    path.write_bytes(path.read_bytes()[:length])
    printed = run(arena, lstm(f"start=first/{trial}"))
    assert printed.code == 2 and printed.err.rstrip().endswith("model.safetensors is damaged: it is cut short.")
    assert not (own / "second").exists()


def test_status_lists_the_ids_that_a_start_takes(arena, own, trial):
    assert trial not in arena("status", "first").out
    line = arena("status", "first", "--trials").out.splitlines()[1]
    assert line.startswith(f"  {trial}  add[length=4] lstm[hidden_size=6] adam seed 0: test mse ")
    (done,) = json.loads(arena("status", "first", "--trials", "--json").out)["done"]
    assert done["id"] == trial and done["test"]["mse"] > 0


def test_a_model_is_built_with_what_a_trial_learned(own, trial):
    net = nnarena.build("lstm", task="add", hidden_size=6, start=f"first/{trial}", freeze="body")
    learned = load(Store.open(own / "first").find(trial).path / MODEL)[0]
    assert all(torch.equal(tensor, learned[name]) for name, tensor in net.named_parameters())
    assert [name for name, param in net.named_parameters() if param.requires_grad] == ["head.weight", "head.bias"]
    with pytest.raises(ArenaError, match="there is no such trial"):
        nnarena.build("lstm", task="add", start="nowhere/abc")


def test_the_trial_that_the_documentation_starts_with_is_the_one_of_its_command():
    text = (Path(__file__).resolve().parents[2] / "docs" / "transfer.md").read_text(encoding="utf-8")
    settings = {"epochs": 30, "batch_size": 32}
    study = make_study(None, ["digits_image[size=16]"], ["control_vgg[maps=16,init=he]"], settings=settings)
    (first,) = study.trials()
    assert f"start=runs/digits/{first.id[:6]}]" in text
