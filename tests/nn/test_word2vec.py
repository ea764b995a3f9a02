"""word2vec against gradients by hand in float64, its windows, its noise, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nnarena.bench.words import loop_gradient
from nnarena.core.words import Corpus, Lesson, Vocabulary
from nnarena.nn.word2vec import (
    FullSoftmax,
    NegativeSampling,
    SkipGram,
    dense,
    keep_chance,
    noise_table,
    plain_rate,
    windows,
)

V, D, K = 12, 5, 3


def some(kind: type[SkipGram], dtype: torch.dtype = torch.float64) -> tuple[SkipGram, Tensor, Tensor, Tensor]:
    """A model with random vectors; centres, contexts, and which count. Word 11 is not in the text."""
    torch.manual_seed(0)
    net = (kind(V, D, 2, K) if kind is NegativeSampling else kind(V, D, 2)).to(dtype)
    torch.nn.init.normal_(net.vectors)
    torch.nn.init.normal_(net.contexts)
    net.prepare(np.array([0, *range(1, V - 1), 0]))
    return net, torch.randint(1, V - 1, (7,)), torch.randint(1, V - 1, (7, 4)), torch.rand(7, 4) < 0.7


def test_negative_sampling_has_the_gradient_by_hand():
    net, centre, context, counted = some(NegativeSampling)
    assert isinstance(net, NegativeSampling)
    negatives = torch.randint(1, V - 1, (7, 4, K))
    negatives[0, 0, 0] = context[0, 0]  # a draw that is the context itself
    with torch.no_grad():
        step = net.gradient_with(centre, context, counted, negatives)
        scaled = net.gradient_with(centre, context, counted, negatives, scale=-0.5)
    wanted = loop_gradient(net.vectors.detach(), net.contexts.detach(), centre, context, counted, negatives)
    for mine, half, right in zip(dense(step, V), dense(scaled, V), wanted, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(half, -0.5 * right, rtol=1e-12, atol=1e-12)


def test_negative_sampling_has_the_gradient_of_its_loss():
    net, centre, context, counted = some(NegativeSampling)
    assert isinstance(net, NegativeSampling)
    negatives = torch.randint(1, V - 1, (7, 4, K))
    with torch.no_grad():
        step = net.gradient_with(centre, context, counted, negatives)
    v = net.vectors[centre].unsqueeze(1)
    positive = torch.nn.functional.logsigmoid((net.contexts[context] * v).sum(-1))
    drawn = torch.nn.functional.logsigmoid(-(net.contexts[negatives] * v.unsqueeze(2)).sum(-1))
    loss = -((positive + (drawn * (negatives != context.unsqueeze(-1))).sum(-1)) * counted).sum()
    torch.testing.assert_close(step.loss, loss.detach())
    for mine, right in zip(dense(step, V), torch.autograd.grad(loss, [net.vectors, net.contexts]), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)


def test_the_full_softmax_has_the_gradient_by_hand():
    net, centre, context, counted = some(FullSoftmax)
    with torch.no_grad():
        step = net.gradient(centre, context, counted)
    v, u = net.vectors.detach(), net.contexts.detach()
    by_v, by_u, loss = torch.zeros_like(v), torch.zeros_like(u), 0.0
    there = list(range(1, V - 1))  # neither the unknown word nor one that the text does not have
    for c, others, flags in zip(centre.tolist(), context.tolist(), counted.tolist(), strict=True):
        for o in (o for o, flag in zip(others, flags, strict=True) if flag):
            score = torch.exp(u[there] @ v[c])
            chance = score / score.sum()
            loss -= float(torch.log(chance[there.index(o)]))
            for w, p in zip(there, chance, strict=True):
                slope = p - float(w == o)
                by_v[c] += slope * u[w]
                by_u[w] += slope * v[c]
    assert float(step.loss) == pytest.approx(loss, rel=1e-12)
    for mine, right in zip(dense(step, V), (by_v, by_u), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", [NegativeSampling, FullSoftmax])
def test_rows_of_plain_sgd_are_the_step_of_torch(kind):
    net, centre, context, counted = some(kind)
    twin, *_ = some(kind)
    plain, other = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(twin.parameters(), 0.1, momentum=1e-300)
    assert plain_rate(plain) == 0.1 and plain_rate(other) is None
    for model, optimizer in ((net, plain), (twin, other)):
        torch.manual_seed(3)  # the same negatives
        model.learn(centre, context, counted, optimizer)
    for mine, right in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"maximize": True}])
def test_only_plain_sgd_is_taken_by_rows(options):
    assert plain_rate(torch.optim.SGD([torch.zeros(1)], 0.1, **options)) is None
    assert plain_rate(torch.optim.Adam([torch.zeros(1)], 0.1)) is None
    held = torch.optim.SGD([torch.zeros(1)], 0.1)
    held.register_step_pre_hook(lambda *_: None)
    assert plain_rate(held) is None


@pytest.mark.parametrize("kind", [NegativeSampling, FullSoftmax])
def test_a_frozen_table_stays(kind):
    net, centre, context, counted = some(kind)
    net.contexts.requires_grad_(False)
    vectors, contexts = net.vectors.detach().clone(), net.contexts.detach().clone()
    net.learn(centre, context, counted, torch.optim.SGD([net.vectors], 0.1))
    assert torch.equal(net.contexts, contexts) and not torch.equal(net.vectors, vectors)


def test_windows_end_where_a_document_does():
    tokens, documents = torch.arange(10, 18), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    centre, context, counted = windows(tokens, documents, torch.tensor([0, 3, 5]), 2)
    assert centre.tolist() == [10, 13, 15]
    found = [context[row][counted[row]].tolist() for row in range(3)]
    assert found == [[11, 12], [11, 12], [14, 16, 17]]


def test_negatives_are_drawn_by_counts_to_three_quarters():
    counts = np.array([0, 1000, 100, 10, 1, 0])
    share = torch.bincount(noise_table(counts), minlength=6).double() / (1 << 20)
    wanted = counts**0.75 / (counts**0.75).sum()
    np.testing.assert_allclose(share.numpy(), wanted, atol=1.5 / (1 << 20))
    assert share[0] == share[5] == 0


def test_frequent_words_are_skipped_as_word2vec_does():
    counts = np.array([0, 900, 99, 1])
    chance = keep_chance(counts, 1e-2)
    for word, count in ((1, 900), (2, 99)):
        rare = 1e-2 / (count / 1000)
        assert float(chance[word]) == pytest.approx(min(1.0, rare**0.5 + rare), rel=1e-6)
    assert chance[3] == 1


def two_circles() -> Corpus:
    """Words 1 to 5 keep to themselves, and so do 6 to 10."""
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(300), 8)
    tokens = 1 + rng.integers(0, 5, len(documents)) + 5 * (documents % 2)
    return Corpus(tokens, documents, Vocabulary(tuple(map(str, range(11))), tuple(np.bincount(tokens).tolist())))


@pytest.mark.parametrize("kind", [NegativeSampling, FullSoftmax])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_words_that_keep_company_come_near(kind, make):
    torch.manual_seed(0)
    net = kind(11, 8, 3)
    lesson = Lesson(make(net.parameters(), 0.05 if make is torch.optim.SGD else 0.01), 32)
    losses = [net.read(two_circles(), lesson) for _ in range(8)]
    assert losses[-1] < losses[0]
    cosine = net(torch.eye(11)).detach()
    inside = torch.block_diag(torch.zeros(1, 1), torch.ones(5, 5), torch.ones(5, 5)).bool() & ~torch.eye(11).bool()
    across = torch.zeros(11, 11).bool()
    across[1:6, 6:] = True
    assert cosine[inside].mean() > cosine[across].mean() + 0.3


def test_every_word_of_the_text_is_a_centre_once_an_epoch(monkeypatch):
    corpus, seen = two_circles(), []
    net = FullSoftmax(11, 4, 2)
    kept = net.learn
    monkeypatch.setattr(net, "learn", lambda centre, *rest: seen.append(centre) or kept(centre, *rest))
    net.read(corpus, Lesson(torch.optim.SGD(net.parameters(), 0.1), 50))
    np.testing.assert_array_equal(torch.cat(seen).bincount(minlength=11).numpy(), corpus.counts(11))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [NegativeSampling, FullSoftmax])
def test_a_gpu_learns_them_too(kind):
    torch.manual_seed(0)
    net = kind(11, 8, 3, device=torch.device("cuda"))
    losses = [net.read(two_circles(), Lesson(torch.optim.SGD(net.parameters(), 0.05), 32)) for _ in range(6)]
    assert losses[-1] < losses[0] and net.vectors.is_cuda
