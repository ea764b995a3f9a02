"""Intervals, ranks and verdicts: pure functions of numbers. No torch."""
