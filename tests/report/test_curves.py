from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nnarena.report.curves import allowance, kept, read_curve
from nnarena.results.folder import TrialFolder


@given(st.lists(st.integers(0, 500), max_size=60), st.integers(0, 3000))
def test_thinned_curves_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    limit = allowance(lengths, budget)
    total = sum(len(kept(length, limit)) for length in lengths)
    assert total <= budget
    if limit is None:
        assert total == sum(lengths)


@given(st.integers(0, 400), st.integers(2, 50))
def test_both_ends_of_a_curve_stay(count: int, limit: int) -> None:
    places = kept(count, limit)
    assert len(places) <= limit and places == sorted(set(places))
    if count:
        assert places[0] == 0 and places[-1] == count - 1


def test_a_curve_becomes_columns(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    assert read_curve(tmp_path, None) is None
    for epoch in range(1, 6):
        loss = float("nan") if epoch == 5 else 1 / epoch
        folder.append({"epoch": epoch, "loss": loss, "validation": {"mse": 0.123456789}, "lr": 0.1, "seconds": 2.0})
    with (tmp_path / "curve.jsonl").open("a") as file:
        file.write('{"epoch": 6, "lo')  # cut short by a crash
    assert read_curve(tmp_path, 3) == {
        "epoch": [1, 3, 5],
        "seconds": [2.0, 6.0, 10.0],
        "values": {"loss": [1.0, 0.33333, None], "validation.mse": [0.12346] * 3, "lr": [0.1] * 3},
    }


def test_an_agents_curve_has_its_steps_and_what_its_training_was_like(tmp_path: Path) -> None:
    folder = TrialFolder(tmp_path)
    line = {"loss": 1.0, "validation": {"return": -3.0}, "lr": 0.1, "training": {"reward_per_step": -0.5}}
    for epoch in (1, 2):
        folder.append(line | {"epoch": epoch, "steps": 400 * epoch, "seconds": 2.0})
    curve = read_curve(tmp_path, None)
    assert curve is not None and curve["steps"] == [400, 800]
    assert curve["values"]["training.reward_per_step"] == [-0.5, -0.5]
    folder.append(line | {"epoch": 3, "seconds": 2.0})  # of a version that did not count them
    assert "steps" not in (read_curve(tmp_path, None) or {})
