from __future__ import annotations

from nnarena.stats.intervals import estimate
from nnarena.stats.metrics import better, bounds, rank_key


def test_an_interval_stays_where_the_metric_can_be() -> None:
    wide = estimate([0.2, 1.0])
    assert wide.low is not None and wide.low < 0 and wide.high is not None and wide.high > 1
    accuracy, error = wide.within(*bounds("accuracy")), wide.within(*bounds("mse"))
    assert (accuracy.low, accuracy.high, accuracy.mean) == (0.0, 1.0, wide.mean)
    assert (error.low, error.high) == (0.0, wide.high)
    assert wide.within(*bounds("a_metric_of_ones_own")) == wide


def test_the_best_comes_first_and_the_missing_last() -> None:
    assert better("accuracy") == "higher"
    assert better("mse") == better("cross_entropy") == "lower"
    values = [None, 0.2, 0.9, float("nan"), 0.5]
    assert sorted(values, key=lambda value: rank_key("accuracy", value))[:3] == [0.9, 0.5, 0.2]
    assert sorted(values, key=lambda value: rank_key("mse", value))[:3] == [0.2, 0.5, 0.9]
