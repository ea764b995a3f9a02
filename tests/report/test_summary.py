from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from report_stores import make_study, trials, write

from nnarena.core.errors import StoreError
from nnarena.core.options import Choice
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, find_study
from nnarena.report.page import build_page
from nnarena.report.summary import summarise
from nnarena.report.tables import render
from nnarena.results.store import Store

ROW = {
    *("task", "model", "optimizer", "trials", "failed", "parameters", "epochs", "seconds_per_epoch"),
    *("test", "published", "command"),
}


def test_the_keys_are_the_contract(arena: Store) -> None:
    summary = summarise(arena)
    assert json.loads(json.dumps(summary)) == summary
    assert {"study", "title", "rows", "baselines", "missing", "failures", "pending", "exclusive_timing"} <= set(summary)
    for row in summary["rows"]:
        assert set(row) == ROW
        assert all(set(score) == {"mean", "std", "low", "high"} for score in row["test"].values())
    assert (summary["study"], summary["title"]) == ("mine", "Who <remembers> longest?")
    assert (summary["missing"], summary["pending"], summary["exclusive_timing"]) == (["dream_net"], 1, True)


def test_rows_are_ranked_by_the_last_metric_in_its_direction(arena: Store) -> None:
    rows = summarise(arena)["rows"]
    assert [(row["task"], row["model"]) for row in rows] == [
        ("digits[rows=8]", "MyCell[depth=2]"),
        ("digits[rows=8]", "lstm"),
        ("digits[rows=8]", "gru_cell"),
        ("add", "gru_cell"),
        ("add", "lstm"),
        ("add", "MyCell[depth=2]"),
    ]
    assert list(rows[0]["test"]) == ["cross_entropy", "accuracy"]


def test_failed_trials_count_but_do_not_enter_the_mean(arena: Store) -> None:
    summary = summarise(arena)
    row = summary["rows"][0]
    assert (row["trials"], row["failed"]) == (3, 1)
    assert row["test"]["accuracy"]["mean"] == pytest.approx(0.955)
    assert row["epochs"] == 11
    failures = {item["status"]: item for item in summary["failures"]}
    assert set(failures) == {"failed", "diverged"}
    assert "</script>" in failures["failed"]["reason"]
    assert failures["diverged"]["reason"] == "the loss became infinite or not a number"
    assert failures["failed"]["path"].startswith("digits[rows=8]/MyCell[depth=2]/adam/")


def test_a_diverged_trial_with_a_checkpoint_is_scored(arena: Store) -> None:
    row = summarise(arena)["rows"][-1]
    assert (row["trials"], row["failed"]) == (2, 1)
    assert row["test"]["mse"]["mean"] == pytest.approx(0.255)


def test_baselines_are_not_rows(arena: Store) -> None:
    assert summarise(arena)["baselines"] == {
        "add": [{"name": "mean", "test": {"mse": 0.17}}],
        "digits[rows=8]": [
            {"name": "majority class", "test": {"cross_entropy": 2.303, "accuracy": pytest.approx(0.1)}}
        ],
    }


def test_published_figures(arena: Store) -> None:
    rows = {(row["task"], row["model"]): row["published"] for row in summarise(arena)["rows"]}
    lstm = rows["digits[rows=8]", "lstm"]
    assert list(lstm) == ["parameters", "epochs", "accuracy"]  # and no seconds: they are of another machine
    assert (lstm["accuracy"]["mean"], lstm["accuracy"]["std"]) == (0.935, 0.006)
    assert lstm["accuracy"]["verdict"] == "reproduced"
    assert lstm["parameters"]["verdict"] == "equal"
    gru = rows["digits[rows=8]", "gru_cell"]
    assert gru["accuracy"]["verdict"] == "not reproduced: worse"
    assert gru["parameters"]["verdict"] == "differs"
    assert rows["digits[rows=8]", "MyCell[depth=2]"] == rows["add", "lstm"] == {}


def test_survivors_do_not_reproduce(arena: Store) -> None:
    trial = next(trial for trial in trials(arena.study) if trial.cell[:2] == ("digits[rows=8]", "lstm"))
    write(arena, trial, status="timeout", test={}, validation={})
    row = next(row for row in summarise(arena)["rows"] if row["model"] == "lstm" and row["published"])
    assert row["published"]["accuracy"]["verdict"] != "reproduced"


def test_a_damaged_published_file_is_named(arena: Store) -> None:
    (arena.folder / "published.csv").write_text("task,model,metric,mean,std,runs\nadd,lstm,mse,much,1,3\n")
    with pytest.raises(StoreError, match=r"published\.csv, line 2"):
        summarise(arena)


def poster(tmp_path: Path, protocol: Protocol) -> Store:
    from dataclasses import replace

    study = replace(
        make_study(["walker[split=published]"], ["gru"], ["adam[eps=1e-7]"], name="poster", seeds=2),
        source="poster",
        published="poster.csv",
        protocol=protocol,
    )
    store = Store.create(tmp_path / "poster", study)
    for trial in trials(study):
        write(store, trial, test={"mse": 1.0 + 0.001 * trial.seed})
    return store


def test_options_of_the_published_task_do_not_hide_its_figures(tmp_path: Path) -> None:
    row = summarise(poster(tmp_path, find_study("poster").protocol))["rows"][0]
    assert {"mse", "parameters", "epochs"} == set(row["published"])
    assert row["published"]["mse"]["verdict"] != "not comparable"
    assert row["command"] == ("nnarena run poster -t 'walker[split=published]' -m gru -o 'adam[eps=1e-07]' --seeds 2")


def test_a_rehearsal_is_not_a_failed_reproduction(tmp_path: Path) -> None:
    row = summarise(poster(tmp_path, Protocol(epochs=1, threads=2)))["rows"][0]
    assert row["published"]["mse"]["verdict"] == "not comparable"
    assert row["published"]["mse"]["why"] == "another protocol: epochs=1"
    assert row["command"].endswith("--seeds 2 --set epochs=1 --set threads=2")


def test_the_page_counts_what_can_be_compared(tmp_path: Path) -> None:
    from nnarena.report.page import build_page

    assert "0 of 1</b>" in build_page(poster(tmp_path / "whole", find_study("poster").protocol))
    assert "published results reproduced" not in build_page(poster(tmp_path / "short", Protocol(epochs=1, threads=2)))


def orthadam(tmp_path: Path, **settings: Any) -> Store:
    """The study's store with two tasks that differ in options only, and three optimizers, one of them in two ways."""
    from dataclasses import replace

    source = find_study("orthadam")
    tasks, optimizers = source.grids[0].tasks[:2], source.grids[0].optimizers[:4]
    study = replace(source.with_(seeds=2, **settings), grids=(Grid(tasks, (Choice("resnet18"),), optimizers),))
    store = Store.create(tmp_path / "orthadam", study)
    for trial in trials(study):
        write(store, trial, test={"cross_entropy": 0.4, "accuracy": 0.86 + 0.01 * trial.seed}, epochs=0)
        for epoch, accuracy in enumerate([0.5, 0.9, 0.86]):
            test = {"cross_entropy": 1 - accuracy, "accuracy": accuracy + 0.01 * trial.seed}
            line = {"epoch": epoch + 1, "loss": 1.0, "validation": test, "lr": 0.1, "seconds": 1.0}
            store.trial_folder(trial).append(line | ({"test": test} if study.protocol.watch_test else {}))
    return store


def test_figures_by_optimizer_and_by_the_options_of_a_task(tmp_path: Path) -> None:
    rows = {(row["task"], row["optimizer"]): row for row in summarise(orthadam(tmp_path))["rows"]}
    crop, plain = "cifar10[augment='pad_crop+flip',normalise=cifar]", "cifar10[normalise=cifar]"
    adamw, plain_adamp, printed = (f"{name}[weight_decay=0.0003]" for name in ("adamw", "adamp", "orthadam"))
    adamp = "adamp[weight_decay=0.0003,amsgrad=true]"
    figures = {key: row["published"].get("accuracy", {}).get("mean") for key, row in rows.items()}
    assert figures == {
        (crop, adamw): 0.8687,
        (crop, adamp): 0.8788,
        (plain, adamw): 0.7874,
        (plain, adamp): 0.7995,
        **{(task, way): None for task in (crop, plain) for way in (plain_adamp, printed)},
    }
    figure = rows[crop, adamw]["published"]["accuracy"]
    assert (figure["verdict"], figure["why"]) == ("undecided", "the published figure tells no spread")


def test_best_on_the_test_is_shown_and_never_compared(tmp_path: Path) -> None:
    store = orthadam(tmp_path)
    summary = summarise(store)
    row = next(row for row in summary["rows"] if row["published"])
    figure = row["published"]["best_on_test.accuracy"]
    assert (figure["verdict"], figure["why"]) == ("not comparable", "the epoch was chosen on the test set")
    assert row["best_on_test"]["accuracy"]["mean"] == pytest.approx(0.905)
    assert row["best_on_test"]["cross_entropy"]["mean"] == pytest.approx(0.1)
    assert row["test"]["accuracy"]["mean"] == pytest.approx(0.865), "what ranks is another number"
    text = render(summary, "md")
    assert "ours 0.905" in text and "chosen on the test set" in text
    assert "resnet18 with adamp\\[weight\\_decay=0.0003,amsgrad=true\\], accuracy: published 0.8788" in text
    assert "nothing was chosen by them" in text and "nothing was chosen by them" in build_page(store)
    assert "best_on_test.accuracy.mean" in render(summary, "csv")


def test_without_a_watched_test_there_is_no_best_on_it(tmp_path: Path) -> None:
    summary = summarise(orthadam(tmp_path, watch_test=False))
    assert all("best_on_test" not in row for row in summary["rows"])
    published = [row["published"] for row in summary["rows"] if row["published"]]
    assert published and all(set(figures) == {"accuracy"} for figures in published)
    assert published[0]["accuracy"]["verdict"] == "undecided", "to watch or not changes nothing that is learned"
    assert "nothing was chosen by them" not in render(summary, "md")


def test_the_command_names_ones_own_model_by_its_file(arena: Store) -> None:
    assert summarise(arena)["rows"][0]["command"] == (
        "nnarena run -t 'digits[rows=8]' -m 'my_file.py:MyCell[depth=2]' -o adam --seeds 3 --set epochs=12"
    )


def test_two_models_with_one_label_stay_apart(tmp_path: Path) -> None:
    study = make_study(["add"], ["a.py:Cell", "b.py:Cell"], ["adam"], seeds=2)
    store = Store.create(tmp_path / "store", study)
    for trial in trials(study):
        write(store, trial, test={"mse": 0.1 if trial.model == Choice("a.py:Cell") else 0.2})
    rows = summarise(store)["rows"]
    assert [(row["model"], row["trials"], row["test"]["mse"]["mean"]) for row in rows] == [
        ("a.py:Cell", 2, 0.1),
        ("b.py:Cell", 2, 0.2),
    ]
    assert "-m b.py:Cell" in rows[1]["command"]


def test_the_old_version_of_an_edited_model_is_no_repetition(tmp_path: Path) -> None:
    from dataclasses import replace

    study = make_study(["add"], ["a.py:Cell"], ["adam"], seeds=1)
    store = Store.create(tmp_path / "store", study)
    (trial,) = trials(study)
    write(store, replace(trial, fingerprints={"model": "old"}), test={"mse": 0.5})
    time.sleep(0.01)
    write(store, replace(trial, fingerprints={"model": "new"}), test={"mse": 0.1})
    (row,) = summarise(store)["rows"]
    assert (row["trials"], row["test"]["mse"]["mean"]) == (1, 0.1)


def test_shared_timing_is_told(arena: Store) -> None:
    write(arena, trials(arena.study)[0], exclusive_timing=False)
    assert summarise(arena)["exclusive_timing"] is False


def test_a_store_without_results(tmp_path: Path) -> None:
    summary = summarise(Store.create(tmp_path / "store", make_study(["add"], ["lstm", "gru"], ["adam"], seeds=3)))
    assert (summary["rows"], summary["pending"], summary["failures"]) == ([], 6, [])


def test_a_row_of_failures_only_comes_last(tmp_path: Path) -> None:
    study = make_study(["add"], ["a", "b"], ["adam"])
    store = Store.create(tmp_path / "store", study)
    for trial in trials(study):
        bad = {"status": "failed", "test": {}, "parameters": None, "epochs": None, "seconds_per_epoch": None}
        write(store, trial, **bad if trial.model.name == "a" else {})
    rows = summarise(store)["rows"]
    assert [row["model"] for row in rows] == ["b", "a"]
    assert rows[1]["test"] == {"mse": {"mean": None, "std": None, "low": None, "high": None}}
    assert rows[1]["parameters"] is None


def test_many_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    study = make_study(["add", "memory"], [f"model_{number}" for number in range(100)], ["adam"], seeds=5)
    store = Store.create(tmp_path / "store", study)
    for trial in trials(study):
        write(store, trial, epochs=1)
    start = time.perf_counter()
    summary = summarise(store)
    assert len(summary["rows"]) == 200
    assert summary["pending"] == 0
    assert time.perf_counter() - start < 5  # twenty times as many take a few seconds on a laptop


def test_reports_do_not_wait_for_torch() -> None:
    code = "import nnarena.report.page, nnarena.report.tables, sys; assert not {'torch', 'polars'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
