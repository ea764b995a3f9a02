"""word2vec: vectors that predict the words around a word, by a full softmax or against drawn negatives.

V words, D dimensions, B central words, C contexts of each, K negatives of every pair, N words of the text.
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
    """The loss of some pairs, summed, and its gradient: what belongs to which rows (R,) of a table, (R, D)."""

    loss: Tensor
    vector_rows: Tensor
    vector_grads: Tensor
    context_rows: Tensor | None  # None: all rows
    context_grads: Tensor


class SkipGram(WordVectors):
    """Two vectors a word, v where it is central and u where it is context; v is what remains.

    An epoch visits every word of the text as the centre, in random order. The reach of the window is drawn for every
    step, from 1 to `window` words on each side (word2vec draws it for every word). Frequent words are skipped at random
    before. As in word2vec, a step is a sum over pairs and not a mean. The gradient is written out, and plain SGD
    touches only the rows that occur.
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
    def gradient(self, centre: Tensor, context: Tensor, counted: Tensor, scale: float = 1.0) -> Gradient:
        """Of central words (B,) and their contexts (B, C), those that `counted` (B, C) says; times `scale`."""

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
        loss, pairs = torch.zeros(2, dtype=torch.float64, device=device)
        for places in torch.randperm(len(tokens), device=device).split(lesson.batch_size):
            lesson.go_on()
            reach = int(torch.randint(1, self.window + 1, ()))
            centre, context, counted = windows(tokens, documents, places, reach)
            loss += self.learn(centre, context, counted, lesson.optimizer)
            pairs += counted.sum()
        return float(loss) / max(1.0, float(pairs))

    @torch.no_grad()
    def learn(self, centre: Tensor, context: Tensor, counted: Tensor, optimizer: Optimizer) -> Tensor:
        """One step; the loss, summed over the pairs."""
        rate = plain_rate(optimizer)
        if rate is not None:
            step = self.gradient(centre, context, counted, scale=-rate)
            add_rows(self.vectors, step.vector_rows, step.vector_grads)
            add_rows(self.contexts, step.context_rows, step.context_grads)
            return step.loss
        found = self.gradient(centre, context, counted)
        self.vectors.grad, self.contexts.grad = dense(found, len(self.vectors))
        optimizer.step()
        return found.loss


def add_rows(table: Tensor, rows: Tensor | None, values: Tensor) -> None:
    """table[rows] += values, rows that occur several times as often; None is all rows. A frozen table stays."""
    if not table.requires_grad:
        return
    if rows is None:
        table.add_(values)
    else:
        table.index_add_(0, rows, values)


def dense(gradient: Gradient, words: int) -> tuple[Tensor, Tensor]:
    """The gradients of both tables, (V, D) each, from those of their rows."""
    tables = []
    for rows, grads in ((gradient.vector_rows, gradient.vector_grads), (gradient.context_rows, gradient.context_grads)):
        zeros = grads.new_zeros(words, grads.shape[1])
        tables.append(grads if rows is None else zeros.index_add_(0, rows, grads))
    return tables[0], tables[1]


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

    def gradient(self, centre: Tensor, context: Tensor, counted: Tensor, scale: float = 1.0) -> Gradient:
        drawn = torch.randint(TABLE, (*context.shape, self.negatives), device=centre.device)
        return self.gradient_with(centre, context, counted, self.table[drawn], scale)

    def gradient_with(
        self, centre: Tensor, context: Tensor, counted: Tensor, negatives: Tensor, scale: float = 1.0
    ) -> Gradient:
        """With given negatives (B, C, K). One that happens to be the context is left out, as in word2vec."""
        context, counted = context.unsqueeze(-1), counted.unsqueeze(-1).to(self.vectors.dtype)
        others = torch.cat([context, negatives], -1).flatten(1)  # (B, C (1 + K)): every pair's context, then negatives
        counted = torch.cat([counted, (negatives != context) * counted], -1).flatten(1)
        v = self.vectors.index_select(0, centre)
        u = self.contexts.index_select(0, others.flatten()).view(*others.shape, -1)
        scores = torch.bmm(v.unsqueeze(1), u.mT).squeeze(1)
        slope = torch.sigmoid(scores)
        slope[:, :: 1 + self.negatives] -= 1
        slope *= counted
        scores[:, :: 1 + self.negatives] *= -1
        loss = (F.softplus(scores) * counted).sum()
        slope *= scale
        by_vector = torch.bmm(slope.unsqueeze(1), u).squeeze(1)
        by_context = torch.mul(slope.unsqueeze(-1), v.unsqueeze(1), out=u)
        return Gradient(loss, centre, by_vector, others.flatten(), by_context.flatten(0, 1))


class FullSoftmax(SkipGram):
    """−log P(o | c),  P(o | c) = exp(u_o · v_c) / Σ_w exp(u_w · v_c), over all words w."""

    def __init__(
        self, words: int, size: int, window: int, subsample: float = 0.0, *, device: torch.device | None = None
    ) -> None:
        super().__init__(words, size, window, subsample, device=device)
        self.absent = torch.zeros(words, dtype=torch.bool, device=device)

    def prepare(self, counts: np.ndarray) -> None:
        """Words that the text does not have are no rivals."""
        self.absent = torch.from_numpy(counts == 0).to(self.vectors.device)

    def gradient(self, centre: Tensor, context: Tensor, counted: Tensor, scale: float = 1.0) -> Gradient:
        """All contexts of a word share its softmax: Σ_o (P − e_o) = n P − Σ_o e_o, with n contexts o."""
        v, counted = self.vectors.index_select(0, centre), counted.to(self.vectors.dtype)
        log_chance = (v @ self.contexts.T).masked_fill_(self.absent, -torch.inf).log_softmax(1)
        loss = -(log_chance.gather(1, context) * counted).sum()
        slope = log_chance.exp_() * counted.sum(1, keepdim=True)
        slope.scatter_add_(1, context, -counted)
        slope *= scale
        return Gradient(loss, centre, slope @ self.contexts, None, slope.T @ v)


def windows(tokens: Tensor, documents: Tensor, places: Tensor, reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Central words at `places` (B,), the `reach` words before and behind each (B, C), and which of them count (B, C).

    What lies in another document or beyond the text does not count; some word of the text stands there.
    """
    offsets = torch.arange(-reach, reach + 1, device=tokens.device)
    offsets = torch.cat([offsets[:reach], offsets[reach + 1 :]])
    where = places.unsqueeze(1) + offsets
    there = where.clamp(0, len(tokens) - 1)
    counted = (where == there) & (documents[there] == documents[places].unsqueeze(1))
    return tokens[places], tokens[there], counted


def keep_chance(counts: np.ndarray, subsample: float) -> Tensor:
    """(V,) by which a word stays in the text: √(t / f) + t / f, at most 1, of its frequency f."""
    rare = subsample * counts.sum() / np.maximum(counts, 1)
    return torch.from_numpy(np.minimum(np.sqrt(rare) + rare, 1.0).astype(np.float32))


def noise_table(counts: np.ndarray, size: int = TABLE) -> Tensor:
    """(size,) words, each as often as its share of counts^0.75 says, to the nearest entry."""
    edges = np.cumsum(counts.astype(np.float64) ** NOISE_POWER)
    return torch.from_numpy(np.searchsorted(edges / edges[-1], (np.arange(size) + 0.5) / size, side="right"))


def plain_rate(optimizer: Optimizer) -> float | None:
    """The learning rate where a step is θ ← θ − η g and no more, so that rows without gradient stay as they are.

    None for all other optimizers, and where something is done to the gradient before a step (l1, l2, clipping).
    """
    group, hooks = optimizer.param_groups[0], optimizer._optimizer_step_pre_hooks
    plain = type(optimizer) is SGD and not (group["momentum"] or group["weight_decay"] or group["maximize"] or hooks)
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
