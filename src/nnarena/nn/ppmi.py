"""Positive pointwise mutual information of words, plain or of few dimensions."""

from __future__ import annotations

import numpy as np
import torch

from nnarena.core.components import model
from nnarena.core.errors import BadOption
from nnarena.core.spec import TaskSpec
from nnarena.core.svd import truncated_svd
from nnarena.core.words import Corpus, Lesson
from nnarena.nn.words import WordVectors, check_words, count_pairs


def ppmi_of(counts: np.ndarray, smoothing: float = 1.0) -> np.ndarray:
    """max(0, log P(w, c) / (P(w) P(c))) of counts (V, C); P(c) ∝ N(c)^smoothing. Pairs that never were have 0."""
    rows = counts.sum(1, keepdims=True)
    columns = counts.sum(0, keepdims=True) ** smoothing
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = counts * columns.sum() / (rows * columns)
    return np.log(np.maximum(np.nan_to_num(ratio, nan=0.0), 1.0))


class PPMI(WordVectors):
    """v_w[c] = PPMI(w, c); or the `svd` leading dimensions of that matrix."""

    def __init__(
        self,
        words: int,
        contexts: int,
        window: int,
        smoothing: float = 1.0,
        svd: int = 0,
        *,
        device: torch.device | None = None,
    ) -> None:
        contexts = min(contexts, words)
        super().__init__(words, min(svd or contexts, contexts), device=device)
        self.contexts, self.window, self.smoothing, self.svd = contexts, window, smoothing, svd

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        """The loss is the share of the matrix, in squares, that the dimensions leave out."""
        counts = count_pairs(corpus, len(self.vectors), self.window, self.contexts)
        matrix = torch.from_numpy(ppmi_of(counts, self.smoothing)).to(self.vectors)
        if not self.svd:
            self.vectors.copy_(matrix)
            return 0.0
        U, s, _ = truncated_svd(matrix, self.size)
        self.vectors.copy_(U * s.sqrt())
        return max(0.0, 1 - float(s.square().sum() / matrix.square().sum().clamp_min(1e-30)))


@model(
    "ppmi",
    reference="Church and Hanks 1990; Bullinaria and Levy 2007; smoothing and roots: Levy, Goldberg and Dagan 2015",
    reads="words",
)
def ppmi(spec: TaskSpec, *, window: int = 3, contexts: int = 2000, smoothing: float = 1.0, svd: int = 0) -> PPMI:
    """How much more often two words meet than by chance.

        PPMI(w, c) = max(0, log P(w, c) / (P(w) P(c))) = max(0, log N(w, c) |(w, c)| / (N(w) N(c)))

    N(w, c) are counts in a window, |(w, c)| their sum, N(w) and N(c) those of a row and of a column. With `svd` the
    vectors are the rows of U √Σ of the matrix' truncated decomposition U Σ Vᵀ (Levy, Goldberg and Dagan 2015).

    Options:
        window: words on each side
        contexts: how many of the most frequent words are counted
        smoothing: exponent of the contexts' counts in P(c); 0.75 favours rare ones less
        svd: dimensions of the truncated decomposition; 0 leaves the matrix as it is
    """
    words = check_words(spec, window=window, contexts=contexts)
    if svd < 0:
        raise BadOption(f"svd must be 0 or the dimensions to keep, not {svd}.")
    if not 0 < smoothing <= 1:
        raise BadOption(f"smoothing must lie above 0 and be at most 1, not {smoothing}.")
    return PPMI(words, contexts, window, smoothing, svd)
