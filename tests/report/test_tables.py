from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from report_stores import trials, write

from nnarena.core.errors import ArenaError
from nnarena.report.ranking import boards, published_figure, verdict_sentence
from nnarena.report.summary import summarise
from nnarena.report.tables import FORMATS, render, terminal
from nnarena.results.store import Store


@pytest.fixture
def summary(arena: Store) -> dict[str, Any]:
    return summarise(arena)


def test_baselines_stand_where_their_value_ranks_without_a_rank(summary: dict[str, Any]) -> None:
    digits, add = boards(summary)
    assert [(line.rank, line.name) for line in add.lines] == [
        (1, "gru_cell"),
        (2, "lstm"),
        (None, "mean"),
        (3, "MyCell[depth=2]"),
    ]
    assert [line.rank for line in digits.lines] == [1, 2, 3, None]
    assert digits.metrics == ["accuracy", "cross_entropy"]


def test_a_competitor_that_equals_a_baseline_stands_below_it(summary: dict[str, Any]) -> None:
    summary["baselines"]["add"][0]["test"]["mse"] = summary["rows"][-2]["test"]["mse"]["mean"]
    assert [line.name for line in boards(summary)[1].lines] == ["gru_cell", "mean", "lstm", "MyCell[depth=2]"]


def test_the_sentence_on_a_published_figure(summary: dict[str, Any]) -> None:
    lstm = summary["rows"][1]
    assert verdict_sentence("accuracy", lstm) == ("published 0.935 ± 0.006, ours 0.936 [0.922, 0.949]: reproduced")
    assert verdict_sentence("parameters", lstm) == "published 20,241, ours 20,241: equal"


@pytest.mark.parametrize(
    ("mean", "text"), [(2.9e-5, "2.9e-5"), (-6e-6, "-6e-6"), (6.9391e-5, "6.9391e-5"), (0.0, "0.000"), (0.88, "0.880")]
)
def test_a_small_published_figure_keeps_its_digits(mean: float, text: str) -> None:
    assert published_figure("training.last_gradient", {"mean": mean, "std": None}) == text


def test_json_is_the_summary(summary: dict[str, Any]) -> None:
    assert json.loads(render(summary, "json")) == summary


def test_csv_reads_back_in_full(summary: dict[str, Any]) -> None:
    lines = list(csv.DictReader(io.StringIO(render(summary, "csv"))))
    rows = [line for line in lines if line["kind"] == "competitor"]
    assert len(lines) == 8 and len(rows) == len(summary["rows"])
    for line, row in zip(rows, summary["rows"], strict=True):
        assert (line["task"], line["model"], line["command"]) == (row["task"], row["model"], row["command"])
        for metric, score in row["test"].items():
            assert float(line[f"test.{metric}.mean"]) == score["mean"]
            assert float(line[f"test.{metric}.std"]) == score["std"]
    assert rows[1]["published.accuracy.verdict"] == "reproduced"
    assert [line["model"] for line in lines if line["kind"] == "baseline"] == ["majority class", "mean"]


def test_markdown_is_escaped_and_every_row_has_every_column(summary: dict[str, Any]) -> None:
    text = render(summary, "md")
    assert text.startswith("# Who \\<remembers\\> longest?\n")
    assert r"| 3 | gru\_cell | 0.910 ± 0.010 | \[0.885, 0.935\] |" in text
    assert "(baseline) majority class" in text
    assert "\\</script\\>" in text and "<b>" not in text
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 2
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1
        assert set(table[1]) <= set("|-: ")


def test_latex_is_escaped_and_every_row_has_every_column(summary: dict[str, Any]) -> None:
    text = render(summary, "latex")
    assert r"gru\_cell" in text and r"95 \% interval" in text and "digits{[}rows=8{]}" in text
    assert "gru_cell" not in text.replace(r"gru\_cell", "")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"\toprule") == 2
    for table in text.split(r"\begin{table}")[1:]:
        layout = table.split(r"\begin{tabular}{")[1].split("}")[0]
        body = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {line.count(" & ") + line.startswith(" & ") * 0 for line in body} == {len(layout) - 1}


def test_the_terminal_keeps_names_and_scores_however_narrow(summary: dict[str, Any]) -> None:
    wide, narrow = terminal(summary, width=160), terminal(summary, width=60)
    for text in (wide, narrow):
        assert "gru_cell" in text and "0.9357 ± 0.0055" in text and "dream_net" in text
        assert "\x1b" not in text
    assert "cross_entropy" in wide and "cross_entropy" not in narrow
    for words in (("lstm", "0.935 ± 0.006", " reproduced"), ("gru_cell", "0.990 ± 0.001", "not reproduced: worse")):
        assert any(all(word in line for word in words) for line in wide.splitlines())
    assert max(map(len, narrow.splitlines())) <= 60
    assert "\x1b[" in terminal(summary, width=160, color=True)


def test_the_optimizer_is_a_column_only_where_there_are_several(summary: dict[str, Any]) -> None:
    assert "optimizer" not in render(summary, "md")
    summary["rows"][-1]["optimizer"] = "sgd"
    assert render(summary, "md").count("| optimizer |") == 1


def test_seconds_that_were_not_exclusive_are_marked(arena: Store) -> None:
    write(arena, trials(arena.study)[0], exclusive_timing=False)
    text = render(summarise(arena), "terminal")
    assert "measured while other trials ran" in text
    assert "~1.00" in terminal(summarise(arena), width=200)


def test_an_unknown_format_is_a_sentence(summary: dict[str, Any]) -> None:
    with pytest.raises(ArenaError, match="did you mean 'latex'"):
        render(summary, "latx")


@pytest.mark.parametrize("format", FORMATS)
def test_a_summary_without_rows(format: str) -> None:
    nothing = {
        **{"study": "mine", "title": "", "rows": [], "baselines": {}, "ranked_by": {}, "missing": []},
        **{"failures": [], "pending": 3, "exclusive_timing": True, "watch_test": False},
    }
    assert render(nothing, format)
