"""Where the time of a training step goes, and plans that are changed to see what they are worth."""

from __future__ import annotations

import json

import pytest
import torch

from nnarena.bench.kernels import choose, first_error, read_changes, read_seeds
from nnarena.bench.recurrence import batch, build, make_task
from nnarena.core.errors import BadOption, UnknownName

CPU = torch.device("cpu")


def test_changes_of_a_plan_are_read_by_their_kind():
    assert read_changes("") == {}
    assert read_changes("warps=8, announce=no ,precision=tf32") == {"warps": 8, "announce": False, "precision": "tf32"}
    assert read_changes("announce_back=yes") == {"announce_back": True}
    assert read_seeds("1, 16") == [1, 16]


@pytest.mark.parametrize(
    ("text", "words"),
    [("warp=8", "has no option 'warp'; it has rows, warps"), ("warps=no", "warps=8"), ("again=8", "again=yes")],
)
def test_a_plan_that_cannot_be_says_what_can(text, words):
    with pytest.raises(BadOption, match=words):
        read_changes(text)


def test_every_recurrent_model_has_a_turn():
    assert {"lstm", "memory_augmented_transformer", "attention_split"} <= set(choose([]))
    assert not {"transformer", "ncps LTC"} & set(choose([]))
    with pytest.raises(UnknownName, match="did you mean 'gru'"):
        choose(["grru"])
    with pytest.raises(BadOption, match="transformer has no recurrent layer"):
        choose(["transformer"])


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_gradient_of_the_first_of_several_is_right(seeds):
    assert error_of_first(seeds) < 1e-5


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_wrong_gradient_of_the_first_of_several_is_seen(seeds, wrong_gru):
    assert error_of_first(seeds) > 1e-2


def error_of_first(seeds):
    task = make_task("gru", length=4)
    models = [build("gru", task, CPU, seed) for seed in range(seeds)]
    return first_error(models, task, *batch(task, CPU))


def test_without_a_gpu_it_says_what_to_type(arena, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    printed = arena("bench", "kernels", "-m", "gru")
    assert printed.code == 2 and "nnarena bench recurrence --cpu" in printed.err


@pytest.mark.gpu
def test_the_parts_of_a_step_are_its_time(arena):
    printed = arena(
        "bench", "kernels", "-m", "lstm", "--seeds", "1,2", "--plan", "warps=8", "--plan", "save=64", "--json"
    )
    rows = json.loads(printed.out)["rows"]
    assert [(row["seeds"], row["plan"]) for row in rows] == [(s, p) for s in (1, 2) for p in ("", "warps=8", "save=64")]
    for row in rows:
        assert row["gradient_error"] < 1e-4 and row["launches"] > 0
        parts = [row[part] for part in ("forward", "backward", "products", "rest")]
        assert all(parts) and 0.3 * sum(parts) < row["seconds"] < 3 * sum(parts)
