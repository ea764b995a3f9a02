from __future__ import annotations

from nnarena.core.task import HIGHER_IS_BETTER as OF_TASKS
from nnarena.stats.metrics import HIGHER_IS_BETTER, better, rank_key


def test_tasks_and_reports_agree_on_what_is_better() -> None:
    assert HIGHER_IS_BETTER == OF_TASKS


def test_the_best_comes_first_and_the_missing_last() -> None:
    assert better("accuracy") == "higher"
    assert better("mse") == better("cross_entropy") == "lower"
    values = [None, 0.2, 0.9, float("nan"), 0.5]
    assert sorted(values, key=lambda value: rank_key("accuracy", value))[:3] == [0.9, 0.5, 0.2]
    assert sorted(values, key=lambda value: rank_key("mse", value))[:3] == [0.2, 0.5, 0.9]
