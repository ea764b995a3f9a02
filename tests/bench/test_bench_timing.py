"""Reference and competitor take turns, and the ratio does not depend on what the clock shows."""

from __future__ import annotations

import torch

from nnarena.bench.timing import measure, side_by_side

CPU = torch.device("cpu")


def test_the_reference_goes_before_every_measurement_and_the_fastest_counts():
    order = []

    def of(name, seconds):
        left = iter([1.0, *seconds])

        def taken(calls):
            order.append(name)
            return next(left)

        return taken

    assert side_by_side(of("ours", [6.0, 4.0, 5.0]), of("unit", [2.0, 3.0, 1.0]), 3, CPU) == (4.0, 1.0)
    assert order == ["unit", "ours"] * 4
    assert side_by_side(of("ours", [6.0, 4.0, 5.0]), of("unit", [2.0, 3.0, 1.0]), 3, torch.device("cuda")) == (5.0, 2.0)


def test_quick_steps_are_measured_many_at_a_time():
    asked = []

    def quick(calls):
        asked.append(calls)
        return 1e-3

    side_by_side(quick, quick, 1, CPU)
    assert asked == [1, 1, 20, 20]


def test_a_measurement_makes_the_calls_it_was_asked_for():
    calls = []
    assert measure(lambda: calls.append(1), CPU, 5) > 0
    assert len(calls) == 5


def test_slow_steps_on_a_gpu_are_measured_three_times_at_most():
    asked = []

    def slow(calls):
        asked.append(calls)
        return 0.5

    side_by_side(slow, slow, 7, torch.device("cuda"))
    assert len(asked) == 2 * (1 + 3)
    side_by_side(slow, slow, 7, CPU)
    assert len(asked) == 2 * (1 + 3) + 2 * (1 + 7)
