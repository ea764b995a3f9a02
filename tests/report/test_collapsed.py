"""How many trials of a row gave everything the same class: in every format, beside what was published."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from report_stores import make_study, trials, write

from nnarena.report.page import build_page
from nnarena.report.ranking import ABOUT_COLLAPSED
from nnarena.report.summary import summarise
from nnarena.report.tables import render
from nnarena.results.store import Store

# By model, what became of its seeds: collapsed, not, or failed.
FATES = {
    "lstm": (True, True, None),
    "gru": (False, False, False),
    "ct_rnn": (True, False, False),
    "ct_gru": (True, True, True),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    study = make_study(["digits", "add"], [*FATES], ["adam"], seeds=3)
    made = Store.create(tmp_path / "store", study)
    (made.folder / "published.csv").write_text(
        "task,model,metric,mean,std,runs\n"
        + "".join(f"digits,{model},collapsed,1,,1\n" for model in FATES)
        + "add,gru,collapsed,0,,1\n"
    )
    for trial in trials(study):
        collapsed = FATES[trial.model.label][trial.seed] if trial.task.label == "digits" else None
        failed = trial.task.label == "digits" and collapsed is None
        lost = {"status": "failed", "error": "RuntimeError: no", "test": {}, "validation": {}} if failed else {}
        write(made, trial, collapsed=collapsed, training={}, **lost)
    return made


def test_every_format_counts_them(store: Store) -> None:
    summary = summarise(store)
    digits = {row["model"]: row for row in summary["rows"] if row["task"] == "digits"}
    assert {model: row["collapsed"] for model, row in digits.items()} == {
        **{"lstm": 2, "gru": 0, "ct_rnn": 1, "ct_gru": 3}
    }
    assert not any("collapsed" in row for row in summary["rows"] if row["task"] == "add"), "values cannot collapse"
    assert {row["model"]: row["collapsed"] for row in json.loads(render(summary, "json"))["rows"][:4]} == {
        model: row["collapsed"] for model, row in digits.items()
    }
    for format in ("md", "latex", "terminal"):
        text = render(summary, format)
        assert "3 (1 failed; 2 of 3 collapsed)" in text and "3 (1 of 3 collapsed)" in text
        assert "0 of 3 collapsed" not in text
        assert " ".join(ABOUT_COLLAPSED.split()) in " ".join(text.split())
    lines = csv.DictReader(io.StringIO(render(summary, "csv")))
    assert {line["model"]: line["collapsed"] for line in lines if line["task"] == "digits"} == {
        **{"lstm": "2", "gru": "0", "ct_rnn": "1", "ct_gru": "3"},
        "majority class": "",
    }
    page = build_page(store)
    assert '<span class="below failed">2 of 3 collapsed</span>' in page and ABOUT_COLLAPSED in page
    assert "<b>6</b><span>collapsed</span>" in page


def test_without_any_nothing_is_said(store: Store) -> None:
    for folder in store.folders():
        record, result = json.loads((folder.path / "trial.json").read_text()), folder.result()
        if result["collapsed"]:
            folder.finish(record, result | {"collapsed": False})
    assert "ollapsed" not in render(summarise(store), "md").split("published")[0]
    page = build_page(store)
    assert ABOUT_COLLAPSED not in page and "<span>collapsed</span>" not in page


def test_results_from_before_it_was_asked_have_no_such_count(store: Store) -> None:
    for folder in store.folders():
        record, result = json.loads((folder.path / "trial.json").read_text()), folder.result()
        result.pop("collapsed")
        folder.finish(record, result)
    for row in summarise(store)["rows"]:
        assert "collapsed" not in row and "collapsed" not in row["published"]


def test_a_published_collapse_stands_beside_ours(store: Store) -> None:
    rows = {(row["task"], row["model"]): row["published"].get("collapsed") for row in summarise(store)["rows"]}
    verdicts = {model: rows["digits", model] for model in FATES}
    assert {model: figure["verdict"] for model, figure in verdicts.items()} == {
        **{"ct_gru": "equal", "gru": "differs", "ct_rnn": "undecided", "lstm": "undecided"}
    }
    assert verdicts["ct_rnn"]["why"] == "1 of our 3 trials ended like the published one"
    assert verdicts["lstm"]["why"] == "2 of our 3 trials ended like the published one", "the third may have disagreed"
    assert rows["add", "gru"] is None, "there it was not asked"
    text = render(summarise(store), "md")
    assert "lstm, collapsed: published yes, ours 2 of 3: undecided" in text
    assert "gru, collapsed: published yes, ours 0 of 3: differs" in text
