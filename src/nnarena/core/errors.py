"""Errors are sentences for the person at the keyboard: what was wrong, what was expected, what to type next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ArenaError(Exception):
    """The request was wrong. Its message is shown as it is, without a traceback; the exit code is 2."""


class UnknownName(ArenaError):
    """A name that nothing here has. Suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"There is no {kind} {name!r}{suggestion(name, known)}{hint and ' ' + hint}")


class BadOption(ArenaError):
    """An option that does not exist, or a value it cannot take."""


class Unfit(ArenaError):
    """A model that cannot take part in a task."""


class DataError(ArenaError):
    """A data file that is missing, cut short, or not what it should be."""


class StoreError(ArenaError):
    """A study's folder that cannot be used as asked."""


def first_line(error: BaseException) -> str:
    """What an error says, in a line: its first; or the next, where that only names who raised it."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line and not line.endswith("raised:")), type(error).__name__)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'lstm'?` or the list of what there is, to be put behind "There is no …"."""
    known = sorted(set(known))
    small = {item.lower(): item for item in known}
    near = difflib.get_close_matches(name.lower(), small, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {small[near[0]]!r}?"
    if not known:
        return "."
    return f"; there are {', '.join(known)}." if len(known) <= 20 else "."
