"""Analogies: 19,544 questions of fourteen kinds, Athens is to Greece as Baghdad is to Iraq (Mikolov et al. 2013).

Kept as `words` (19544, 4) of text in small letters, `kind` (19544,) the number of each question's kind, and `kinds`
their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet
from nnarena.data.formats import reading


def read(paths: Sequence[Path]) -> Arrays:
    """questions-words.txt: `: kind` begins a kind, every other line has four words."""
    if len(paths) != 1:
        raise DataError("The questions come as one file.")
    with reading(paths[0], "questions-words.txt"):
        kinds: list[str] = []
        words: list[list[str]] = []
        kind: list[int] = []
        for number, line in enumerate(paths[0].read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith(":"):
                kinds.append(line[1:].strip())
            elif line.strip():
                if len(line.split()) != 4 or not kinds:
                    raise DataError(f"line {number} should have four words below a line such as ': currency'")
                words.append(line.lower().split())
                kind.append(len(kinds) - 1)
        return {"words": np.array(words, np.str_), "kind": np.array(kind, np.int64), "kinds": np.array(kinds, np.str_)}


def check(arrays: Arrays) -> None:
    words, kind, kinds = (arrays.get(name, np.empty(0)) for name in ("words", "kind", "kinds"))
    if words.dtype.kind != "U" or kinds.dtype.kind != "U" or words.ndim != 2 or words.shape[1] != 4 or not len(words):
        raise DataError("there should be 'words', four of text a question, and 'kinds'")
    if kind.shape != words.shape[:1] or kind.dtype != np.int64 or kind.min() < 0 or kind.max() >= len(kinds):
        raise DataError("'kind' should hold the kind of every question")


SET = DataSet(
    name="questions_words",
    summary="19,544 analogies of fourteen kinds: capitals, family, plurals, comparatives, …",
    size="0.6 MB",
    licence="Apache 2.0",
    source="https://code.google.com/archive/p/word2vec/ (Mikolov et al. 2013)",
    read=read,
    check=check,
    accepts="questions-words.txt",
    mirrors=(
        "https://raw.githubusercontent.com/piskvorky/gensim/develop/gensim/test/test_data/questions-words.txt",
        "https://raw.githubusercontent.com/tmikolov/word2vec/master/questions-words.txt",
    ),
    # Of the file that the package gensim ships.
    sha256="8c29b3332afc46f3fb8be04cb5297bf96f39aa7131272dff57869b4485b22a36",
    rows={"words": 19_544, "kinds": 14},
    content="97d2d616ae56f70e010f0c206b9acadc49f4fc6a7ccd094b75e0b0eb4436b4a2",
)
