"""How much work is coming: what a layer must know before it pays for something that only a long run repays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_calls: ContextVar[int] = ContextVar("expected_calls", default=0)


@contextlib.contextmanager
def expecting(*, calls: int) -> Iterator[None]:
    """Within it, each model will be called about `calls` times on batches of one shape."""
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)


def expected_calls() -> int:
    """About how many calls are coming; 0 where nobody said so."""
    return _calls.get()
