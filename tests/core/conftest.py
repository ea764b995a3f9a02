"""Properties are checked without a stopwatch: a busy machine is no counterexample."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nnarena", deadline=None)
settings.load_profile("nnarena")
