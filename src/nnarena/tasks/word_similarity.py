"""Are similar words near to each other?"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nnarena.core.components import task
from nnarena.core.words import spearman
from nnarena.data import load
from nnarena.data.grammar import pairs
from nnarena.tasks.words import TOGETHER, Model, Words, cosines

EACH = 100  # pairs for every degree of similarity


@task("word_similarity", reference="Rubenstein and Goodenough 1965; WordSim-353: Finkelstein et al. 2002")
class WordSimilarity(Words):
    """Learn words by reading, so that similar ones have similar vectors.

        spearman = correlation of the ranks of cos(v_a, v_b) and of how similar a and b truly are

    On the synthetic grammar, 400 pairs that share 0 to 3 of the properties family, form, kind and thing; on text8 the
    353 pairs of WordSim-353, judged by people (`nnarena data get text8 wordsim353`). `cost` is 1 − spearman.
    """

    name = "word_similarity"
    questions_set = "wordsim353"

    def questions(self, rng: np.random.Generator) -> tuple[list[tuple[str, ...]], np.ndarray]:
        if self.corpus_name == "text8":
            arrays = load("wordsim353")
            return [tuple(words) for words in arrays["words"].tolist()], arrays["similarity"]
        found = pairs(rng, EACH)
        return [(one, other) for one, other, _ in found], np.array([degree for *_, degree in found], float)

    def judge(self, model: Model, questions: Tensor, truth: np.ndarray, words: int) -> dict[str, float]:
        found = [
            cosines(model, [(part[:, 0], 1.0)], self.vocabulary).gather(1, part[:, 1:])[:, 0]
            for part in questions.split(TOGETHER)
        ]
        # Rounded, so that the order of equals does not hang on the last bits.
        rho = spearman(torch.cat(found).double().round(decimals=5).cpu().numpy(), truth)
        return {"cost": 1 - rho, "spearman": rho}
