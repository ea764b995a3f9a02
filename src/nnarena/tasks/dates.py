"""Dates as people write them, into ISO 8601."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np

from nnarena.core.components import task
from nnarena.core.errors import BadOption
from nnarena.core.spec import SPECIAL, Samples, TaskSpec
from nnarena.core.task import Task
from nnarena.tasks.transduce import pad

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
# Two digits of a year mean one of these hundred, as POSIX has it.
FIRST, LAST = datetime.date(1969, 1, 1), datetime.date(2068, 12, 31)
LONGEST = 37  # Wednesday, the 23rd of September 1998
READS = " ',-./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WRITES = "-0123456789"


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, … 11th, … 21st."""
    ending = "th" if 10 <= day % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def _full(date: datetime.date) -> str:
    return MONTHS[date.month - 1]


def _short(date: datetime.date) -> str:
    return _full(date)[:3]


def _day(date: datetime.date) -> str:
    return DAYS[date.weekday()]


# With points the day comes first, with strokes the month: nothing has two meanings.
FORMATS: tuple[Callable[[datetime.date], str], ...] = (
    lambda d: f"{ordinal(d.day)} of {_full(d)} {d.year}",
    lambda d: f"the {ordinal(d.day)} of {_full(d)}, {d.year}",
    lambda d: f"{_day(d)}, the {ordinal(d.day)} of {_full(d)} {d.year}",
    lambda d: f"{_day(d)[:3]} {d.day} {_short(d)} {d:%y}",
    lambda d: f"{_day(d)[:3]}, {d.day} {_short(d)} {d.year}",
    lambda d: f"{_full(d)} {d.day}, {d.year}",
    lambda d: f"{_full(d)} {ordinal(d.day)}, {d.year}",
    lambda d: f"{_short(d)} {d.day} {d.year}",
    lambda d: f"{_short(d)}. {d.day}, '{d:%y}",
    lambda d: f"{_day(d)}, {_full(d)} {d.day}, {d.year}",
    lambda d: f"{d.day} {_full(d)} {d.year}",
    lambda d: f"{d.day} {_short(d)} '{d:%y}",
    lambda d: f"{d.day}-{_short(d)}-{d.year}",
    lambda d: f"{d.day:02}-{_short(d)}-{d:%y}",
    lambda d: f"{d.month}/{d.day}/{d.year}",
    lambda d: f"{d.month:02}/{d.day:02}/{d:%y}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
    lambda d: f"{d.day:02}.{d.month:02}.{d:%y}",
    lambda d: f"{d.day}.{ROMAN[d.month - 1]}.{d.year}",
    lambda d: f"{d.year} {_full(d)} {d.day}",
    lambda d: f"{d.year}, {ordinal(d.day)} of {_short(d)}",
    lambda d: f"{d.year}/{d.month:02}/{d.day:02}",
    lambda d: f"{d.year}{d.month:02}{d.day:02}",
    lambda d: f"{d.year}-{d.month:02}-{d.day:02}",
)
CASES: tuple[Callable[[str], str], ...] = (str, str, str.lower, str.upper)  # half of all are as they should be


def encode(text: str, alphabet: str) -> np.ndarray:
    """A text as tokens; a character that is not in the alphabet is an error."""
    return np.array([SPECIAL + alphabet.index(character) for character in text])


@task("dates", reference="a usual example of sequence-to-sequence learning; made here")
class Dates(Task):
    """Turn a date as people write it into ISO 8601: "3rd of May 1997", "Sat 3 May 97" and "5/3/97" into 1997-05-03.

        input   (37,): the characters of a date from 1969 to 2068, padded in front
        target  (11,): the characters of the date as YYYY-MM-DD, and END
        loss    cross entropy over characters

    Formats are drawn uniformly from 24, and a quarter each of all dates is in lower and in upper case. With points the
    day comes first, with strokes the month. Of years with two digits 69 to 99 are 1969 to 1999, others 2000 to 2068.

    Options:
        samples: dates
    """

    def __init__(self, *, samples: int = 20_000) -> None:
        if samples < 1:
            raise BadOption(f"dates: samples must be at least 1, not {samples}.")
        self.count = samples
        self.spec = TaskSpec(
            input_shape=(LONGEST,),
            output_size=SPECIAL + len(WRITES),
            target="tokens",
            vocabulary=SPECIAL + len(READS),
            target_length=len("YYYY-MM-DD") + 1,
        )

    def word(self, token: int, written: bool) -> str:
        if token < SPECIAL:
            return super().word(token, written)
        return (WRITES if written else READS)[token - SPECIAL]

    def samples(self, rng: np.random.Generator) -> Samples:
        ordinals = rng.integers(FIRST.toordinal(), LAST.toordinal() + 1, self.count)
        dates = [datetime.date.fromordinal(int(day)) for day in ordinals]
        formats, cases = (rng.integers(0, len(kinds), self.count) for kinds in (FORMATS, CASES))
        texts = [CASES[case](FORMATS[kind](date)) for date, kind, case in zip(dates, formats, cases, strict=True)]
        sources = [encode(text, READS) for text in texts]
        return pad(sources, [encode(date.isoformat(), WRITES) for date in dates], self.spec)
