"""word2vec: vectors that predict the words around a word, by a full softmax or against drawn negatives.

V words, D dimensions, P pairs of a central and a context word, K negatives of each, N words of the text.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from nnarena.core.components import model
from nnarena.core.errors import BadOption
from nnarena.core.spec import TaskSpec
from nnarena.core.words import Corpus, Lesson
from nnarena.nn.words import WordVectors, check_words

NOISE_POWER = 0.75  # of the counts that negatives are drawn by
TABLE = 1 << 20  # entries of the table they are drawn from


class Gradient(NamedTuple):
    """The loss of some pairs, summed, and its gradient by rows: `rows` of a table (R,) and what belongs there (R, D)."""

    loss: Tensor
    vector_rows: Tensor
    vector_grads: Tensor
    context_rows: Tensor | None  # None: all of them
    context_grads: Tensor


class SkipGram(WordVectors):
    """Two vectors a word, v where it is central and u where it is context; v is what remains.

    An epoch visits every word of the text as the centre, in random order; its window is drawn anew, from 1 to `window`
    words on each side. Frequent words are skipped at random before. As in word2vec, a step is a sum over pairs, not a
    mean. The gradient is written out; plain SGD touches only the rows that occur.
    """

    once = False

    def __init__(
        self, words: int, size: int, window: int, subsample: float = 0.0, *, device: torch.device | None = None
    ) -> None:
        super().__init__(words, size, device=device)
        nn.init.uniform_(self.vectors, -0.5 / size, 0.5 / size)
        self.contexts = nn.Parameter(torch.zeros(words, size, device=device))
        self.window, self.subsample = window, subsample

    @abstractmethod
    def gradient(self, centre: Tensor, context: Tensor) -> Gradient:
        """Of pairs (P,) and (P,)."""

    def prepare(self, counts: np.ndarray) -> None:
        """Once an epoch, with the counts (V,) of the text."""

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        """One pass over the corpus; the loss, mean over its pairs."""
        device, text = self.vectors.device, corpus.known
        counts = text.counts(len(self.vectors))
        self.prepare(counts)
        tokens, documents = torch.from_numpy(text.tokens).to(device), torch.from_numpy(text.documents).to(device)
        if self.subsample:
            kept = torch.rand(len(tokens), device=device) < keep_chance(counts, self.subsample).to(device)[tokens]
            tokens, documents = tokens[kept], documents[kept]
        total, pairs = torch.zeros((), dtype=torch.float64, device=device), 0
        for places in torch.randperm(len(tokens), device=device).split(lesson.batch_size):
            lesson.go_on()
            centre, context = draw_pairs(tokens, documents, places, self.window)
            if len(centre):
                total += self.learn(centre, context, lesson.optimizer)
                pairs += len(centre)
        return float(total) / pairs if pairs else 0.0

    @torch.no_grad()
    def learn(self, centre: Tensor, context: Tensor, optimizer: Optimizer) -> Tensor:
        """One step; the loss, summed over the pairs."""
        found = self.gradient(centre, context)
        rate = plain_rate(optimizer)
        if rate is not None:
            self.vectors.index_add_(0, found.vector_rows, found.vector_grads, alpha=-rate)
            if found.context_rows is None:
                self.contexts.add_(found.context_grads, alpha=-rate)
            else:
                self.contexts.index_add_(0, found.context_rows, found.context_grads, alpha=-rate)
            return found.loss
        self.vectors.grad = torch.zeros_like(self.vectors).index_add_(0, found.vector_rows, found.vector_grads)
        if found.context_rows is None:
            self.contexts.grad = found.context_grads
        else:
            self.contexts.grad = torch.zeros_like(self.contexts).index_add_(0, found.context_rows, found.context_grads)
        optimizer.step()
        return found.loss


class NegativeSampling(SkipGram):
    """−log σ(u_o · v_c) − Σ_k log σ(−u_k · v_c), with `negatives` words k drawn for every pair."""

    def __init__(
        self,
        words: int,
        size: int,
        window: int,
        negatives: int = 5,
        subsample: float = 0.0,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(words, size, window, subsample, device=device)
        self.negatives = negatives
        self.table = torch.empty(0, dtype=torch.int64)

    def prepare(self, counts: np.ndarray) -> None:
        self.table = noise_table(counts).to(self.vectors.device)

    def gradient(self, centre: Tensor, context: Tensor) -> Gradient:
        drawn = torch.randint(TABLE, (len(centre), self.negatives), device=centre.device)
        return self.gradient_with(centre, context, self.table[drawn])

    def gradient_with(self, centre: Tensor, context: Tensor, negatives: Tensor) -> Gradient:
        """With given negatives (P, K). One that happens to be the context is left out, as in word2vec."""
        others = torch.cat([context.unsqueeze(1), negatives], 1)  # (P, 1 + K)
        v = self.vectors.index_select(0, centre)
        u = self.contexts.index_select(0, others.flatten()).view(*others.shape, -1)
        scores = (u * v.unsqueeze(1)).sum(-1)  # many times as fast as a batched product of so small ones
        counted = torch.ones_like(scores)
        counted[:, 1:] = negatives != context.unsqueeze(1)
        slope = torch.sigmoid(scores)
        slope[:, 0] -= 1
        slope *= counted
        scores[:, 0].neg_()
        loss = (F.softplus(scores) * counted).sum()
        by_vector = torch.bmm(slope.unsqueeze(1), u).squeeze(1)
        by_context = torch.mul(slope.unsqueeze(-1), v.unsqueeze(1), out=u)
        return Gradient(loss, centre, by_vector, others.flatten(), by_context.flatten(0, 1))


class FullSoftmax(SkipGram):
    """−log P(o | c),  P(o | c) = exp(u_o · v_c) / Σ_w exp(u_w · v_c), over all words w."""

    def __init__(
        self, words: int, size: int, window: int, subsample: float = 0.0, *, device: torch.device | None = None
    ) -> None:
        super().__init__(words, size, window, subsample, device=device)
        self.register_buffer("there", torch.zeros(words, dtype=torch.bool, device=device), persistent=False)

    def prepare(self, counts: np.ndarray) -> None:
        """Words that the text does not have are no rivals."""
        self.there = torch.from_numpy(counts > 0).to(self.vectors.device)

    def gradient(self, centre: Tensor, context: Tensor) -> Gradient:
        v = self.vectors.index_select(0, centre)
        scores = (v @ self.contexts.T).masked_fill_(~self.there, -torch.inf)
        loss = F.cross_entropy(scores, context, reduction="sum")
        slope = scores.softmax(1)
        slope[torch.arange(len(context), device=context.device), context] -= 1
        return Gradient(loss, centre, slope @ self.contexts, None, slope.T @ v)


def draw_pairs(tokens: Tensor, documents: Tensor, places: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Central words at `places` (B,) and their contexts: 1 to `window` words on each side, as many as luck has it."""
    offsets = torch.arange(-window, window + 1, device=tokens.device)
    offsets = offsets[offsets != 0]
    reach = torch.randint(1, window + 1, places.shape, device=tokens.device)
    where = places.unsqueeze(1) + offsets
    inside = (where >= 0) & (where < len(tokens))
    where.clamp_(0, len(tokens) - 1)
    near = inside & (offsets.abs() <= reach.unsqueeze(1)) & (documents[where] == documents[places].unsqueeze(1))
    centre = tokens[places].unsqueeze(1).expand_as(where)
    return centre[near], tokens[where[near]]


def keep_chance(counts: np.ndarray, subsample: float) -> Tensor:
    """(V,) by which a word stays in the text: √(t / f) + t / f, at most 1, of its frequency f."""
    rare = subsample * counts.sum() / np.maximum(counts, 1)
    return torch.from_numpy(np.minimum(np.sqrt(rare) + rare, 1.0).astype(np.float32))


def noise_table(counts: np.ndarray, size: int = TABLE) -> Tensor:
    """(size,) words, each as often as its share of counts^0.75 says, to the nearest entry."""
    edges = np.cumsum(counts.astype(np.float64) ** NOISE_POWER)
    return torch.from_numpy(np.searchsorted(edges / edges[-1], (np.arange(size) + 0.5) / size, side="right"))


def plain_rate(optimizer: Optimizer) -> float | None:
    """The learning rate where a step is θ ← θ − η g and no more, so that rows without gradient stay as they are."""
    group = optimizer.param_groups[0]
    plain = type(optimizer) is SGD and not (group["momentum"] or group["weight_decay"] or group["maximize"])
    return float(group["lr"]) if plain and len(optimizer.param_groups) == 1 else None


@model(
    "word2vec",
    reference="Mikolov et al. 2013, Distributed representations of words and phrases and their compositionality, NIPS",
    reads="words",
)
def word2vec(
    spec: TaskSpec, *, size: int = 64, window: int = 5, negatives: int = 5, subsample: float = 1e-3
) -> NegativeSampling:
    """Skip-gram with negative sampling: tell a word's neighbours from words drawn at random.

        J = −log σ(u_o · v_c) − Σ_{k=1…K} log σ(−u_k · v_c),   k drawn with P(w) ∝ N(w)^0.75

    for every word c and every word o in a window around it; v are the word vectors, u those of contexts. A word of
    frequency f is kept with √(t / f) + t / f, as the released word2vec has it (the paper prints 1 − √(t / f) for the
    chance to be dropped). word2vec lowers its learning rate along a line; here the protocol decides. Steps are for many
    central words at once and not one pair at a time.

    Options:
        size: dimensions of a vector
        window: words on each side at most
        negatives: words K that are drawn for every pair
        subsample: t, above which frequency a word is skipped at times; 0 keeps all
    """
    words = check_words(spec, size=size, window=window, negatives=negatives)
    return NegativeSampling(words, size, window, negatives, _chance(subsample))


@model(
    "word2vec_softmax",
    reference="Mikolov et al. 2013, Efficient estimation of word representations in vector space, ICLR workshop",
    reads="words",
)
def word2vec_softmax(spec: TaskSpec, *, size: int = 64, window: int = 5, subsample: float = 1e-3) -> FullSoftmax:
    """Skip-gram with the full softmax: predict a word's neighbours among all words.

        J = −1/T Σ_t Σ_{−m ≤ j ≤ m, j ≠ 0} log P(w_{t+j} | w_t),   P(o | c) = exp(u_o · v_c) / Σ_w exp(u_w · v_c)

    Every step costs a product with all words. As in `word2vec`, the windows are drawn from 1 to m words on each side,
    frequent words are skipped at times, and steps are sums over the pairs of many central words.

    Options:
        size: dimensions of a vector
        window: words m on each side at most
        subsample: above which frequency a word is skipped at times; 0 keeps all
    """
    return FullSoftmax(check_words(spec, size=size, window=window), size, window, _chance(subsample))


def _chance(subsample: float) -> float:
    if not 0 <= subsample < 1:
        raise BadOption(f"subsample must be 0 or lie between 0 and 1, not {subsample}.")
    return subsample
