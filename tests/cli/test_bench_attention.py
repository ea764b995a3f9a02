"""A training step of element-wise attention: a row for every way, and no time for a wrong gradient."""

from __future__ import annotations

import json

import pytest
import torch

from nnarena.bench import attention
from nnarena.kernels import toolchain
from nnarena.nn.attention_wise import AttentionWise2d

QUICK = ("bench", "attention", "--cpu", "--rounds", "1", "--seeds", "2")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(attention, "BATCH", {"cpu": 4})
    monkeypatch.setattr(attention, "STEPS", {"cpu": 1})
    monkeypatch.setattr(toolchain, "compiler", lambda: None)


def test_ours_stands_beside_a_loop_over_heads(arena):
    content = json.loads(arena(*QUICK, "--json").out)
    assert content["unit"] == "one head after the other" and content["batch"] == 4
    assert content["model"] == "attention_wise[config=B]"
    loop, compiled, *ours = content["rows"]
    assert [(row["way"], row["seeds"]) for row in ours] == [("ours", 1), ("ours", 2)]
    assert loop["ratio"] == 1 and compiled["note"].startswith("skipped") and compiled["ratio"] is None
    for row in (loop, *ours):
        assert row["ratio"] == pytest.approx(row["seconds"] / loop["seconds"])
        assert row["epoch"] == pytest.approx(row["seconds"] * 60_000 / 4)
        assert 0 <= row["gradient_error"] < 1e-3 and row["memory"] is None


def test_the_table(arena):
    printed = arena(*QUICK)
    assert printed.code == 0, printed.err
    assert all(word in printed.out for word in ("one head after the other", "ours", "[config=B]", "gradient error"))
    assert "ours: measuring, 1 of 1" in printed.err


def test_a_wrong_gradient_has_no_time(arena, monkeypatch):
    right = AttentionWise2d.forward

    def nearly(self, x):
        output = right(self, x)
        return output + 0.1 * (output - output.detach())

    monkeypatch.setattr(AttentionWise2d, "forward", nearly)
    loop, _, *ours = json.loads(arena(*QUICK, "--json").out)["rows"]
    assert loop["ratio"] == 1
    assert all(row["seconds"] is None and "gradient is wrong" in row["note"] for row in ours)
    assert all(row["gradient_error"] > 1e-2 for row in ours)


def test_torch_compile_that_fails_is_told(monkeypatch):
    def broken(model):
        raise RuntimeError("no such thing\nand more")

    monkeypatch.setattr(toolchain, "compiler", lambda: "c++")
    monkeypatch.setattr(torch, "compile", broken)
    rows = list(attention.compare(torch.device("cpu"), rounds=1, seeds=1, tell=lambda text: None))
    assert [row.note for row in rows] == ["", "failed: no such thing", ""]


def test_the_loop_is_the_network():
    x, _ = attention.batch(torch.device("cpu"))
    ours, loop = (attention.model_of(way, x.device).double() for way in (attention.OURS, attention.LOOP))
    torch.testing.assert_close(loop(x.double()), ours(x.double()))
    assert sum(param.numel() for param in loop.parameters()) == 33_084
    for name, buffer in ours.layers[0].scale.named_buffers():
        heads = [getattr(head.norm, name) for head in loop.layers[0]["heads"]]
        torch.testing.assert_close(torch.cat(heads) if buffer.dim() else heads[0], buffer)
