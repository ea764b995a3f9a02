"""text8: the first 100,000,000 characters of a cleaned Wikipedia of March 2006 (Mahoney 2006).

Kept as `text` (100000000,) uint8: small letters a to z and single spaces, 17 million words.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.core.words import Corpus, Vocabulary
from nnarena.data.dataset import Arrays, DataSet, need
from nnarena.data.formats import is_zip, reading

DOCUMENT = 1000  # words a document; the text itself knows none
PART = 4_000_000  # characters that are split into words at a time
SPACE = ord(" ")


def read(paths: Sequence[Path]) -> Arrays:
    """text8.zip, or the plain file text8."""
    if len(paths) != 1:
        raise DataError("text8 comes as one file.")
    path = paths[0]
    with reading(path, "text8 or its zip archive"):
        if not is_zip(path):
            return {"text": np.frombuffer(path.read_bytes(), np.uint8)}
        with zipfile.ZipFile(path) as archive:
            if "text8" not in archive.namelist():
                raise DataError("it holds no file 'text8'")
            return {"text": np.frombuffer(archive.read("text8"), np.uint8)}


def check(arrays: Arrays) -> None:
    text = need(arrays, "text", np.uint8, (None,))
    if not len(text):
        raise DataError("it is empty")
    strange = text[(text != SPACE) & ((text < ord("a")) | (text > ord("z")))]
    if len(strange):
        raise DataError(f"it holds {chr(strange[0])!r}, and text8 has small letters and spaces only")


def text8_corpus(text: np.ndarray, words: int, size: int) -> Corpus:
    """The first `words` words, in documents of 1,000, with a vocabulary of at most `size`.

    The text is gone through twice, a part at a time: 17 million words as Python's strings would take 2 GB.
    """
    counts: Counter[str] = Counter()
    for part in first_words(text, words):
        counts.update(part)
    vocabulary = Vocabulary.of(counts, size)
    tokens = np.concatenate([vocabulary.encode(part) for part in first_words(text, words)])
    return Corpus(tokens, np.arange(len(tokens)) // DOCUMENT, vocabulary)


def first_words(text: np.ndarray, words: int, part: int = PART) -> Iterator[list[str]]:
    """The first `words` words, those of about `part` characters at a time."""
    start = 0
    while start < len(text) and words > 0:
        end = min(start + part, len(text))
        while end < len(text) and text[end] != SPACE:
            end += 1
        found = text[start:end].tobytes().decode("ascii").split()[:words]
        yield found
        start, words = end, words - len(found)


SET = DataSet(
    name="text8",
    summary="17 million words of Wikipedia, small letters and spaces only",
    size="31 MB",
    licence="GFDL and CC BY-SA 3.0, as Wikipedia's text",
    source="http://mattmahoney.net/dc/textdata.html (Mahoney 2006)",
    read=read,
    check=check,
    accepts="text8.zip, or the file text8 that is in it",
    mirrors=("http://mattmahoney.net/dc/text8.zip",),
    # Of the archive, as several public projects that check it name it.
    sha256="a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    rows={"text": 100_000_000},
)
