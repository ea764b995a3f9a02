"""France is to Paris as Italy is to whom?"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nnarena.core.components import task
from nnarena.data import load
from nnarena.data.grammar import analogies
from nnarena.tasks.words import TOGETHER, Model, Words, cosines


@task(
    "analogy", reference="Mikolov, Yih and Zweig 2013, Linguistic regularities in continuous space word representations"
)
class Analogy(Words):
    """Learn words by reading, so that relations between them are differences of vectors.

        a is to b as c is to argmax_d cos(v_d, v_b − v_a + v_c),   d not one of a, b, c

    with vectors of length 1 (3CosAdd); the share of questions whose answer is right. On the synthetic grammar, every
    question on countries and capitals, men and women, singulars and plurals, and comparatives; on text8 the 19,544
    questions of fourteen kinds (`nnarena data get text8 questions_words`). `error` is 1 − accuracy.
    """

    name = "analogy"
    questions_set = "questions_words"

    def questions(self, rng: np.random.Generator) -> tuple[list[tuple[str, ...]], np.ndarray]:
        if self.corpus_name == "text8":
            arrays = load("questions_words")
            return [tuple(words) for words in arrays["words"].tolist()], arrays["kind"]
        found = analogies()
        families = list(dict.fromkeys(family for family, _ in found))
        return [words for _, words in found], np.array([families.index(family) for family, _ in found])

    def landmarks(self, questions: list[tuple[str, ...]]) -> list[tuple[str, str, str]]:
        if self.corpus_name == "grammar":
            return super().landmarks(questions)
        arrays = load("questions_words")
        groups = [str(arrays["kinds"][kind]) for kind in arrays["kind"]]
        return list(dict.fromkeys((words[0], words[1], group) for words, group in zip(questions, groups, strict=True)))

    def judge(self, model: Model, questions: Tensor, truth: np.ndarray, words: int) -> dict[str, float]:
        """`truth` is the kind of each question and does not count: the answer is its fourth word."""
        right = 0
        for part in questions.split(TOGETHER):
            a, b, c, d = part.T
            cosine = cosines(model, [(b, 1.0), (a, -1.0), (c, 1.0)], self.vocabulary)[:, :words].clone()
            cosine[:, 0] = -torch.inf  # the unknown word answers nothing
            cosine.scatter_(1, part[:, :3], -torch.inf)
            right += int((cosine.argmax(1) == d).sum())
        accuracy = right / len(questions)
        return {"error": 1 - accuracy, "accuracy": accuracy}
