"""WordSim-353: how similar 353 pairs of words are, from 0 to 10, by the mean of people's judgement.

Finkelstein et al. 2002. Kept as `words` (353, 2) of text in small letters and `similarity` (353,) float32.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnarena.core.errors import DataError
from nnarena.data.dataset import Arrays, DataSet, finite
from nnarena.data.formats import is_zip, reading

MEMBER = "combined.csv"


def read(paths: Sequence[Path]) -> Arrays:
    """wordsim353.tsv as gensim has it, combined.csv or combined.tab as published, or their wordsim353.zip."""
    if len(paths) != 1:
        raise DataError("The pairs come as one file.")
    with reading(paths[0], "a file of WordSim-353"):
        if is_zip(paths[0]):
            with zipfile.ZipFile(paths[0]) as archive:
                text = archive.read(MEMBER).decode("utf-8")
        else:
            text = paths[0].read_text(encoding="utf-8")
        words, similarity = [], []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith(("#", "Word 1")):
                continue
            cells = re.split(r"[\t,]", line.strip())
            if len(cells) != 3:
                raise DataError(f"line {number} should have two words and a number")
            words.append([cells[0].lower(), cells[1].lower()])
            similarity.append(float(cells[2]))
        return {"words": np.array(words, np.str_), "similarity": finite(np.array(similarity), "the judgements")}


def check(arrays: Arrays) -> None:
    words, similarity = (arrays.get(name, np.empty(0)) for name in ("words", "similarity"))
    if words.dtype.kind != "U" or words.ndim != 2 or words.shape[1] != 2 or not len(words):
        raise DataError("there should be 'words', two of text a pair")
    if similarity.dtype != np.float32 or similarity.shape != words.shape[:1]:
        raise DataError("'similarity' should hold a number for every pair")


SET = DataSet(
    name="wordsim353",
    summary="353 pairs of words, and how similar people find them",
    size="7 kB",
    licence="CC BY 4.0",
    source="https://gabrilovich.com/resources/data/wordsim353/wordsim353.html (Finkelstein et al. 2002)",
    read=read,
    check=check,
    accepts="wordsim353.tsv, combined.csv, combined.tab, or wordsim353.zip",
    mirrors=("https://raw.githubusercontent.com/piskvorky/gensim/develop/gensim/test/test_data/wordsim353.tsv",),
    # Of the file that the package gensim ships.
    sha256="f92a022fc2537793a15bc3a8c162ebcd74990e033a228bb6388cb71e4c0b1e1d",
    rows={"words": 353},
    content="27e033842d45850498f5d09ca83b5220cbe4bbf7790ea0b67cfeace7d20b7446",
)
