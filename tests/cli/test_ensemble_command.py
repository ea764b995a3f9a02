"""`nnarena ensemble`, and what the report shows of it and of the training."""

from __future__ import annotations

import json

RUN = ["run", "-t", "digits", "-m", "deep_mlp[hidden_size=8,layers=1]", "--seeds", "2", "--epochs", "2"]
SMALL = ["--batch-size", "32", "--device", "cpu", "--jobs", "1", "--out", "out", "--set", "watch_training=true"]


def test_seeds_together_stand_in_the_report(arena) -> None:
    said = arena(*RUN, *SMALL, "--set", "same_data=true", "--set", "watch_gradient=true", "--set", "bagging=true")
    assert said.code == 0, said
    before = json.loads(arena("report", "out", "--format", "json").out)["rows"][0]["beside"]
    assert list(before) == ["training accuracy", "gap", "first gradient"]
    said = arena("ensemble", "out", "--device", "cpu")
    assert said.code == 0 and "2 together accuracy" in said.out and ", one alone " in said.out
    (item,) = json.loads(arena("ensemble", "out", "--device", "cpu", "--json").out)
    row = json.loads(arena("report", "out", "--format", "json").out)["rows"][0]
    assert row["beside"]["together"]["mean"] == item["test"]["accuracy"]
    gain = item["test"]["accuracy"] - item["single"]["accuracy"]
    assert abs(row["beside"]["gain"]["mean"] - gain) < 1e-12
    gap = row["training"]["accuracy"]["mean"] - row["test"]["accuracy"]["mean"]
    assert abs(row["beside"]["gap"]["mean"] - gap) < 1e-9
    table = arena("report", "out", "--format", "md").out
    assert all(f"| {name} |" in table for name in ("training accuracy", "gap", "first gradient", "together", "gain"))
    arena("report", "out")
    with open("out/report.html", encoding="utf-8") as page:
        text = page.read()
    assert "bagging = true" in text and ">gap<" in text and ">together<" in text
    arena(
        *RUN[:-3],
        "3",
        *RUN[-2:],
        *SMALL,
        "--set",
        "same_data=true",
        "--set",
        "watch_gradient=true",
        "--set",
        "bagging=true",
    )
    row = json.loads(arena("report", "out", "--format", "json").out)["rows"][0]
    assert row["trials"] == 3 and "together" not in row["beside"], "it was asked of other seeds"


def test_what_cannot_be_is_a_sentence(arena) -> None:
    assert arena(*RUN, *SMALL).code == 0
    said = arena("ensemble", "out")
    assert said.code == 2 and "run it with --set same_data=true" in said.err
    assert arena(*RUN[:-3], "1", *RUN[-2:], *SMALL[:-3], "single").code == 0
    said = arena("ensemble", "single")
    assert said.code == 2 and "no competitor with two seeds that are done" in said.err
    assert arena("ensemble", "nowhere").code == 2
