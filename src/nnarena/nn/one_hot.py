"""One-hot vectors: a dimension for every word."""

from __future__ import annotations

import torch

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.core.words import Corpus, Lesson
from nnarena.nn.words import WordVectors, check_words


class OneHot(WordVectors):
    """e_w has a 1 at place w and nothing else: all words are equally far from each other."""

    def __init__(self, words: int, *, device: torch.device | None = None) -> None:
        super().__init__(words, words, device=device)

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        torch.nn.init.eye_(self.vectors)
        return 0.0


@model("one_hot", reference="what every other one must beat", reads="words")
def one_hot(spec: TaskSpec) -> OneHot:
    """A dimension for every word, which knows of no likeness between any two.

    v_w = e_w,   cos(v_w, v_c) = 1 if w = c, else 0
    """
    return OneHot(check_words(spec))
