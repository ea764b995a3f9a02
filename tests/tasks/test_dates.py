"""Dates: every text has one meaning, and fits."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from nnarena.core.errors import BadOption
from nnarena.core.spec import END, PADDING, SPECIAL
from nnarena.tasks.dates import CASES, FIRST, FORMATS, LAST, LONGEST, READS, WRITES, Dates, encode, ordinal


def every_day(step=1):
    return (datetime.date.fromordinal(day) for day in range(FIRST.toordinal(), LAST.toordinal() + 1, step))


def test_no_text_has_two_meanings_and_all_fit():
    meaning: dict[str, datetime.date] = {}
    longest = 0
    for date in every_day():
        for write in FORMATS:
            text = write(date).lower()
            assert meaning.setdefault(text, date) == date, text
            longest = max(longest, len(text))
    assert longest == LONGEST
    characters = {character for text in meaning for character in text}
    assert characters | {character.upper() for character in characters} <= set(READS)


def test_some_texts_are_what_a_person_would_write():
    date = datetime.date(1997, 5, 3)
    texts = {case(write(date)) for write in FORMATS for case in CASES}
    assert {"3rd of May 1997", "Sat 3 May 97", "May 3, 1997", "5/3/1997", "03.05.97", "MAY 3RD, 1997"} <= texts
    assert [ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th", "31st")
    ]


def test_years_of_two_digits_are_those_of_posix():
    for date in every_day(97):
        assert datetime.datetime.strptime(FORMATS[13](date), "%d-%b-%y").date() == date


def test_samples_are_texts_and_their_dates():
    samples = Dates(samples=500).samples(np.random.default_rng(0))
    assert samples.inputs.shape == (500, LONGEST)
    years = set()
    for source, target in zip(samples.inputs.tolist(), samples.targets.tolist(), strict=True):
        written = "".join(WRITES[token - SPECIAL] for token in target[:-1])
        date = datetime.date.fromisoformat(written)
        text = "".join(READS[token - SPECIAL] for token in source if token != PADDING)
        assert text in {case(write(date)) for write in FORMATS for case in CASES}
        assert target[-1] == END and source[-len(text) :] == encode(text, READS).tolist()
        years.add(date.year)
    assert min(years) < 1975 and max(years) > 2062


def test_wrong_options_are_named():
    with pytest.raises(BadOption, match="dates: samples must be at least 1, not 0"):
        Dates(samples=0)
