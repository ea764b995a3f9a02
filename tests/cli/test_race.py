"""A race on a surface from the command line to the page, and the script that prints tuned rates."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "results" / "optimizer-race" / "tuned.py"


def test_a_race_from_the_command_to_the_page_and_the_table(arena, tmp_path, monkeypatch, capfd):
    optimizers = "sgd[lr=[1e-3,0.1]],nesterov[lr=[0.01,1e9]],adam[lr=0.1]"
    asked = ("-t", "surface[of=saddle,steps=20]", "-m", "point", "-o", optimizers, "--seeds", "2", "--epochs", "2")
    done = arena("run", *asked, "--jobs", "1", "--out", str(tmp_path / "race"))
    assert done.code == 1  # a rate of 1e9 diverges, and is a row
    page = (tmp_path / "race" / "report.html").read_text()
    assert page.count('<g class="walk') == 3 and "0.01, 1e+09 †" in page

    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(tmp_path / "race")])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = [line.split("|") for line in capfd.readouterr().out.splitlines() if line.startswith("| ")][1:]
    rates = {name.strip(): rate.strip() for _, name, rate, *_ in rows}
    assert rates == {"sgd": "0.1*", "nesterov": "0.01*", "adam": "0.1"}
    report = json.loads(arena("report", str(tmp_path / "race"), "--format", "json").out)
    assert {row["trials"] for row in report["rows"]} == {2} and sum(row["failed"] for row in report["rows"]) == 2


def test_what_is_wrong_is_one_sentence_and_makes_no_folder(arena, tmp_path):
    for task, says in (
        ("surface[of=rosenbrok]", "There is no surface 'rosenbrok'; did you mean 'rosenbrock'?"),
        ("surface[of=beale,start=(9,0)]", "the start (9.0, 0.0) lies outside of beale"),
    ):
        asked = arena("run", "-t", task, "-m", "point", "--out", str(tmp_path / "x"))
        assert asked.code == 2 and says in asked.err and len(asked.err.strip().splitlines()) == 1
        assert not (tmp_path / "x").exists()
