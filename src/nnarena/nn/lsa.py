"""TF-IDF and latent semantic analysis: words by the documents they are in.

M documents.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.core.svd import truncated_svd
from nnarena.core.words import Corpus, Lesson
from nnarena.nn.words import WordVectors, check_words


def tf_idf_of(corpus: Corpus, words: int) -> Tensor:
    """(V, M) sparse float32: N(w, d) log(M / number of documents that have w)."""
    text = corpus.known
    _, document = np.unique(text.documents, return_inverse=True)
    count = int(document.max()) + 1
    cells, found = np.unique(text.tokens * count + document, return_counts=True)
    word, place = cells // count, cells % count
    idf = np.log(count / np.maximum(np.bincount(word, minlength=words), 1))
    values = torch.from_numpy((found * idf[word]).astype(np.float32))
    where = torch.from_numpy(np.stack([word, place]))
    with torch.sparse.check_sparse_tensor_invariants(enable=True):  # torch 2.11 warns where this is left open
        return torch.sparse_coo_tensor(where, values, (words, count), is_coalesced=True)


class LSA(WordVectors):
    """The `size` leading dimensions of the TF-IDF matrix, X ≈ U Σ Vᵀ: v_w = (U Σ)_w."""

    def __init__(self, words: int, size: int, *, device: torch.device | None = None) -> None:
        super().__init__(words, min(size, words), device=device)

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        """The loss is the share of the matrix, in squares, that the dimensions leave out."""
        X = tf_idf_of(corpus, len(self.vectors)).to(self.vectors.device)
        U, s, _ = truncated_svd(X, self.size)
        self.vectors.zero_()
        self.vectors[:, : len(s)] = U * s
        return max(0.0, 1 - float(s.square().sum() / X.values().square().sum().clamp_min(1e-30)))


class TfIdf(WordVectors):
    """v_w[d] = TF-IDF(w, d) of the first documents, as many as there are dimensions."""

    def __init__(self, words: int, documents: int, *, device: torch.device | None = None) -> None:
        super().__init__(words, documents, device=device)

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        X = tf_idf_of(corpus, len(self.vectors))
        first = min(self.size, X.shape[1])
        self.vectors.zero_()
        self.vectors[:, :first] = X.narrow_copy(1, 0, first).to_dense()
        return 0.0


@model("tf_idf", reference="Spärck Jones 1972; Salton and Buckley 1988", reads="words")
def tf_idf(spec: TaskSpec, *, documents: int = 5000) -> TfIdf:
    """A word by the documents it is in, those words counting less that are everywhere.

        v_w[d] = TF-IDF(w, d) = N(w, d) log(M / |{d : w ∈ d}|)

    Options:
        documents: how many of the first documents are dimensions
    """
    return TfIdf(check_words(spec, documents=documents), documents)


@model("lsa", reference="Deerwester et al. 1990, Indexing by latent semantic analysis, JASIS", reads="words")
def lsa(spec: TaskSpec, *, size: int = 64) -> LSA:
    """Latent semantic analysis: the leading dimensions of words by documents.

        X = (TF-IDF(w, d)) ≈ U Σ Vᵀ,   v_w = (U Σ)_w

    Options:
        size: dimensions that are kept
    """
    return LSA(check_words(spec, size=size), size)
