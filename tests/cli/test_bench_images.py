"""Images a second: a row for every way, and a wrong name told."""

from __future__ import annotations

import json

import pytest

from nnarena.bench import images


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(images, "BATCH", 4)
    monkeypatch.setattr(images, "STEPS", {"cpu": 1})


def test_ours_stands_beside_a_plain_loop(arena):
    content = json.loads(arena("bench", "images", "--cpu", "--seeds", "2", "--json").out)
    assert content["model"] == "resnet18" and content["unit"] == "a plain loop"
    assert [(row["way"], row["seeds"]) for row in content["rows"]] == [("plain loop", 1), ("ours", 1), ("ours", 2)]
    plain = content["rows"][0]
    for row in content["rows"]:
        assert row["ratio"] == pytest.approx(row["images_per_second"] / plain["images_per_second"])


def test_a_wrong_model_is_told(arena):
    printed = arena("bench", "images", "-m", "resnet81")
    assert printed.code == 2 and "did you mean 'resnet18'" in printed.err
