"""Vocabularies, corpora, ranks and truncated decompositions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr

from nnarena.core.errors import ArenaError, UnknownName
from nnarena.core.svd import truncated_svd
from nnarena.core.words import UNKNOWN, Corpus, Vocabulary, rank, spearman


def test_a_vocabulary_has_the_most_frequent_words_and_the_unknown_one():
    vocabulary = Vocabulary.of({"b": 2, "a": 2, "c": 5, "d": 1, "e": 1}, 4)
    assert vocabulary.words == (UNKNOWN, "c", "a", "b") and vocabulary.counts == (2, 5, 2, 2)
    assert vocabulary.encode(["a", "e", "c", "nobody"]).tolist() == [2, 0, 1, 0]
    assert "a" in vocabulary and "e" not in vocabulary and vocabulary.find("b") == 3


def test_a_word_that_is_not_there_gets_a_sentence():
    vocabulary = Vocabulary.of({"queen": 3, "king": 2}, 10)
    with pytest.raises(UnknownName, match=r"There is no word in the vocabulary 'quen'; did you mean 'queen'\?"):
        vocabulary.find("quen")


def test_nothing_to_read_gets_a_sentence():
    with pytest.raises(ArenaError, match="The corpus is empty"):
        Vocabulary.of({}, 10)
    with pytest.raises(ArenaError, match="at least 2 words"):
        Vocabulary.of({"a": 1}, 1)
    with pytest.raises(ArenaError, match="The corpus is empty"):
        Corpus(np.empty(0, np.int64), np.empty(0, np.int64), Vocabulary.of({"a": 1}, 2))


def test_unknown_words_leave_and_the_others_move_together():
    corpus = Corpus(np.array([1, 0, 2, 0]), np.array([0, 0, 1, 1]), Vocabulary.of({"a": 1, "b": 1}, 3))
    assert corpus.known.tokens.tolist() == [1, 2] and corpus.known.documents.tolist() == [0, 1]
    assert corpus.counts(4).tolist() == [2, 1, 1, 0] and len(corpus.first(3)) == 3
    with pytest.raises(ArenaError, match="empty"):
        _ = Corpus(np.zeros(3, np.int64), np.zeros(3, np.int64), corpus.vocabulary).known


def test_spearman_is_scipys_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 6, 40), rng.random(40)
        np.testing.assert_array_equal(rank(a), rankdata(a))
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0
    assert spearman([1, 2, 3], [2, 4, 8]) == 1.0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("shape", "kept"), [((60, 90), 5), ((90, 60), 3), ((8, 6), 4), ((4, 3), 9)])
def test_a_truncated_decomposition_is_the_exact_one(shape, kept, sparse):
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, min(shape), dtype=torch.float64)).Q for size in shape)
    values = 3.0 * 0.7 ** torch.arange(min(shape), dtype=torch.float64)
    A = left * values @ right.T
    kept_values = values[:kept]
    U, s, V = truncated_svd(A.to_sparse() if sparse else A, kept)
    torch.testing.assert_close(s, kept_values, rtol=1e-8, atol=0)
    count = len(kept_values)
    torch.testing.assert_close(U * s @ V.T, left[:, :count] * kept_values @ right[:, :count].T, rtol=0, atol=1e-7)
    assert (U.gather(0, U.abs().argmax(0, keepdim=True)) > 0).all()
