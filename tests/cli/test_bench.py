"""`nnarena bench` as people run it."""

from __future__ import annotations

import json
import re

import pytest

from nnarena.kernels import toolchain

QUICK = ("--cpu", "--together", "--rounds", "1", "--length", "4", "--threads", "1")


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch):
    monkeypatch.setattr(toolchain, "compiler", lambda: None)


def test_the_table_shows_ours_beside_the_published_code(arena) -> None:
    printed = arena("bench", "recurrence", *QUICK, "--models", "gru,ncps CfC")
    assert printed.code == 0, printed.err
    assert all(word in printed.out for word in ("published code", "gru", "ncps CfC", "torch.nn.LSTM", "gradient error"))
    assert "gru, eager: measuring" in printed.err


def test_json_has_a_row_for_every_way(arena) -> None:
    printed = arena("bench", "recurrence", *QUICK, "--models", "gru", "--json")
    content = json.loads(printed.out)
    assert content.keys() == {"device", "threads", "torch", "rounds", "unit", "rows"}
    assert content["device"] == "cpu" and content["threads"] == 1
    assert [row["path"] for row in content["rows"]] == ["torch", "native", "eager"]
    for row in content["rows"]:
        assert row["ratio"] > 0 and 0 <= row["gradient_error"] < 1e-3 and row["seconds"] is None
        assert {"model", "task", "published", "compile_seconds", "per_seed", "note"} <= row.keys()
    assert content["rows"][1]["published"] == 1.1


def test_a_wrong_gradient_shows_failed_and_no_time(arena, wrong_gru) -> None:
    out = arena("bench", "recurrence", *QUICK, "--models", "gru").out
    line = next(line for line in out.splitlines() if line.strip().startswith("gru"))
    assert "failed" in line and re.search(r"\de-0[12]", line)


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--models", "grru"], "did you mean 'gru'"), (["--rounds", "0"], "rounds")]
)
def test_a_mistake_is_told_at_once(arena, arguments: list[str], words: str) -> None:
    printed = arena("bench", "recurrence", "--cpu", *arguments)
    assert printed.code == 2 and words in printed.err


def test_optimizers_beside_each_other(arena) -> None:
    printed = arena("bench", "optimizers", "--cpu", "--rounds", "1", "-m", "cell")
    assert printed.code == 0, printed.err
    assert all(word in printed.out for word in ("torch AdamW, fused", "OrthAdam", "adamp AdamP", "error"))
    assert "cell, OrthAdam" in printed.err


def test_optimizers_as_json(arena) -> None:
    content = json.loads(arena("bench", "optimizers", "--cpu", "--rounds", "1", "-m", "cell", "--json").out)
    assert content["unit"] == "torch AdamW, fused" and content["device"] == "cpu"
    assert {row["optimizer"] for row in content["rows"]} >= {"OrthAdam", "AdamP", "SGDP"}
