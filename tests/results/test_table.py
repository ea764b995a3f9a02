"""The table is never the truth: it follows the folders, and comes back when it is gone."""

from __future__ import annotations

import json
import os
import time

import polars as pl
import pytest
from results_helpers import finish, study

from nnarena.core.errors import StoreError
from nnarena.results.folder import RESULT
from nnarena.results.store import TABLE, Store


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store.create(tmp_path, study(tasks="add,memory", seeds=2))
    for number, trial in enumerate(made.study.trials()):
        scores = {"mse": number / 10} if trial.task.ref == "add" else {"cross_entropy": 1.0, "accuracy": number / 10}
        finish(made, trial, test=scores, baselines={"mean": {"mse": 0.17}}, parameters=7, epochs=3)
    return made


def test_one_row_a_trial_with_every_metric(store):
    table = store.table()
    assert len(table) == 8 and "changed" not in table.columns
    assert {"test.mse", "test.cross_entropy", "test.accuracy", "validation.mse", "baseline.mean.mse"} <= set(
        table.columns
    )
    for row, trial in zip(table.iter_rows(named=True), sorted_trials(store), strict=True):
        assert (row["id"], row["path"], row["seed"]) == (trial.id, trial.path, trial.seed)
        assert (row["task"], row["model"], row["optimizer"]) == trial.cell
        assert json.loads(row["options"])["task"] == dict(trial.options["task"])
        assert (row["test.mse"] is None) == (trial.task.ref == "memory")
    assert pl.read_parquet(store.folder / TABLE).drop("changed").equals(table)


def sorted_trials(store):
    return sorted(store.study.trials(), key=lambda trial: (*trial.cell, trial.seed))


def test_it_comes_back_when_it_is_deleted(store):
    table = store.table()
    (store.folder / TABLE).unlink()
    assert store.table().equals(table)
    assert (store.folder / TABLE).exists()


def test_it_comes_back_when_it_is_damaged(store):
    table = store.table()
    raw = (store.folder / TABLE).read_bytes()
    other = pl.DataFrame({"path": ["x"], "something": [1]})
    for length in {0, 1, 4, len(raw) // 3, len(raw) // 2, len(raw) - 9, len(raw) - 1}:
        (store.folder / TABLE).write_bytes(raw[:length])
        assert store.table().equals(table), f"cut to {length} of {len(raw)} bytes"
    (store.folder / TABLE).write_bytes(b"not a table at all")
    assert store.table().equals(table)
    other.write_parquet(store.folder / TABLE)
    assert store.table().equals(table)
    assert pl.read_parquet(store.folder / TABLE).drop("changed").equals(table)


def test_it_follows_what_is_new_changed_and_gone(store):
    store.table()
    first, second, *_, last = sorted_trials(store)
    finish(store, first, test={"mse": 42.0, "mae": 1.5})
    store.trial_folder(second).forget()
    table = store.table()
    assert len(table) == 7 and second.id not in table["id"]
    row = table.filter(pl.col("id") == first.id).row(0, named=True)
    assert (row["test.mse"], row["test.mae"]) == (42.0, 1.5)
    assert table.filter(pl.col("id") == last.id)["test.mae"].to_list() == [None]
    finish(store, second)
    assert len(store.table()) == 8


def test_only_what_is_new_is_read(store, monkeypatch):
    from nnarena.results import table as module

    store.table()
    read = []
    original = module.read_json
    monkeypatch.setattr(module, "read_json", lambda path: (read.append(path), original(path))[1])
    store.table()
    assert read == []
    trial = store.study.trials()[3]
    finish(store, trial, test={"mse": 9.0})
    store.table()
    assert read == [store.trial_folder(trial).path / RESULT]


def test_failures_are_rows_too(store):
    trial = store.study.trials()[0]
    finish(store, trial, status="failed", error="it [broke]", test={}, validation={}, parameters=None)
    row = store.table().filter(pl.col("id") == trial.id).row(0, named=True)
    assert (row["status"], row["error"], row["parameters"], row["test.mse"]) == ("failed", "it [broke]", None, None)


def test_numbers_that_were_not_finite_are_empty(store):
    trial = store.study.trials()[0]
    finish(store, trial, status="diverged", test={"mse": float("nan")})
    assert store.table().filter(pl.col("id") == trial.id)["test.mse"].to_list() == [None]


def test_trials_that_run_and_strange_files_are_no_rows(store):
    (store.folder / "trials" / "add" / "lstm" / "adam" / "running12345").mkdir()
    (store.folder / "trials" / "note.txt").write_text("x")
    (store.folder / "trials" / "add" / "lstm" / "adam" / "note.txt").write_text("x")
    assert len(store.table()) == 8
    assert len(list(store.folders())) == 9


def test_a_damaged_result_is_a_sentence_that_names_it(store):
    path = store.trial_folder(store.study.trials()[0]).path / RESULT
    path.write_text("{")
    with pytest.raises(StoreError, match=r"result\.json is damaged"):
        store.table()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written_can_be_looked_at(store):
    store.folder.chmod(0o555)
    try:
        assert len(store.table()) == 8
    finally:
        store.folder.chmod(0o755)


@pytest.mark.slow
def test_twenty_thousand_trials_take_seconds(tmp_path):
    store = Store.create(tmp_path, study(seeds=10_000))
    trials = store.study.trials()
    for trial in trials:
        folder = store.trial_folder(trial).path
        folder.mkdir(parents=True)
        (folder / RESULT).write_text(
            json.dumps({"task": "add", "model": "x", "seed": trial.seed, "test": {"mse": 0.5}})
        )
    began = time.perf_counter()
    assert len(store.table()) == 20_000
    first = time.perf_counter() - began
    began = time.perf_counter()
    assert len(store.table()) == 20_000
    again = time.perf_counter() - began
    assert first < 20 and again < 3, f"{first:.1f} s, then {again:.1f} s"
