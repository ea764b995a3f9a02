"""Models of words: each against its definition, written out; and a sweep over all of them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption, Unfit
from nnarena.core.spec import TaskSpec
from nnarena.core.words import Corpus, Lesson, Vocabulary
from nnarena.data.text import make_corpus
from nnarena.nn.lsa import tf_idf_of
from nnarena.nn.ppmi import ppmi_of
from nnarena.nn.words import WordVectors, count_pairs

MODELS = sorted(name for name, component in catalogue("model").items() if component.reads == "words")
V = 30


def spec(words: int = V) -> TaskSpec:
    return TaskSpec(input_shape=(words,), output_size=words, target="values")


def build(name: str, words: int = V, seed: int = 0, **options) -> WordVectors:
    torch.manual_seed(seed)
    component = catalogue("model")[name]
    return component.load()(spec(words), **component.resolve(options))


def random_corpus(length: int = 400, words: int = V, seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, words, length)  # with unknown ones
    counts = np.bincount(tokens, minlength=words)
    vocabulary = Vocabulary(tuple(map(str, range(words))), tuple(counts.tolist()))
    return Corpus(tokens, np.sort(rng.integers(0, 25, length)), vocabulary)


def read(net: WordVectors, corpus: Corpus, lr: float = 0.1) -> float:
    torch.manual_seed(1)
    return net.read(corpus, Lesson(torch.optim.SGD(net.parameters(), lr), 16))


def test_all_are_there():
    assert {"one_hot", "cooccurrence", "ppmi", "tf_idf", "lsa", "word2vec", "word2vec_softmax"} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_is_the_cosine_of_a_mixture_with_every_word(name):
    net = build(name)
    assert np.isfinite(read(net, random_corpus()))
    x = torch.randn(4, V)
    with torch.no_grad():
        answer = net(x)
        assert answer.shape == (4, V) and answer.dtype == torch.float32
        vectors = net.vectors.double()
        length = vectors.norm(dim=1, keepdim=True)
        unit = torch.where(length > 0, vectors / length, 0.0)
        mixed = x.double() @ unit
        torch.testing.assert_close(
            answer.double(), (mixed / mixed.norm(dim=1, keepdim=True)) @ unit.T, rtol=1e-5, atol=1e-5
        )
        for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert torch.equal(again(x), answer)


@pytest.mark.parametrize("name", MODELS)
def test_it_does_only_tasks_on_words_and_reads_the_same_twice(name):
    with pytest.raises(Unfit, match=r"^it reads words .* gives \(5, 2\)\.$"):
        catalogue("model")[name].load()(TaskSpec(input_shape=(5, 2), output_size=1, target="values"))
    one, same = build(name), build(name)
    corpus = random_corpus()
    assert read(one, corpus) == read(same, corpus) and torch.equal(one.vectors, same.vectors)
    if one.once:
        before = one.vectors.clone()
        read(one, corpus)
        torch.testing.assert_close(one.vectors, before)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("cooccurrence", {"window": 0}, "window must be at least 1, not 0"),
        ("cooccurrence", {"contexts": 0}, "contexts must be at least 1"),
        ("ppmi", {"window": -1}, "window must be at least 1, not -1"),
        ("ppmi", {"svd": -1}, "svd must be 0 or"),
        ("ppmi", {"smoothing": 0.0}, "smoothing must lie above 0"),
        ("lsa", {"size": 0}, "size must be at least 1"),
        ("tf_idf", {"documents": 0}, "documents must be at least 1"),
        ("word2vec", {"size": 0}, "size must be at least 1, not 0"),
        ("word2vec", {"window": 0}, "window must be at least 1"),
        ("word2vec", {"negatives": 0}, "negatives must be at least 1"),
        ("word2vec", {"subsample": 1.0}, "subsample must be 0 or"),
        ("word2vec_softmax", {"window": 0}, "window must be at least 1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(name, options, text):
    with pytest.raises(BadOption, match=text):
        build(name, **options)


OPTIONS = [(name, option) for name in MODELS for option in catalogue("model")[name].options]


@pytest.mark.parametrize(("name", "option"), OPTIONS, ids=lambda item: getattr(item, "name", item))
def test_every_option_has_a_meaning_and_changes_what_is_learned(name, option):
    assert option.doc
    value = {"subsample": 1e-2, "smoothing": 0.75, "svd": 4}.get(option.name, 2)
    usual, other = build(name), build(name, **{option.name: value})
    corpus = random_corpus()
    read(usual, corpus), read(other, corpus)
    x = torch.eye(V)
    assert not torch.allclose(usual(x), other(x), atol=1e-4)


def test_all_one_hot_words_are_equally_far():
    net = build("one_hot")
    read(net, random_corpus())
    assert torch.equal(net(torch.eye(V)), torch.eye(V))


def loop_counts(corpus: Corpus, words: int, window: int) -> np.ndarray:
    """By the definition: unknown words out, then every pair of places that are near, in one document."""
    text = [(w, d) for w, d in zip(corpus.tokens.tolist(), corpus.documents.tolist(), strict=True) if w]
    counts = np.zeros((words, words))
    for place, (word, document) in enumerate(text):
        for other in range(max(0, place - window), min(len(text), place + window + 1)):
            if other != place and text[other][1] == document:
                counts[word, text[other][0]] += 1
    return counts


@pytest.mark.parametrize("window", [1, 3])
def test_counts_are_those_of_a_loop(window):
    corpus = random_corpus()
    wanted = loop_counts(corpus, V, window)
    np.testing.assert_array_equal(count_pairs(corpus, V, window, V), wanted)
    np.testing.assert_array_equal(count_pairs(corpus, V, window, 7), wanted[:, :7])
    net = build("cooccurrence", window=window, contexts=9)
    read(net, corpus)
    np.testing.assert_array_equal(net.vectors.detach().numpy(), wanted[:, :9])
    assert wanted[0].sum() == 0 and wanted.sum() > 0


def test_ppmi_is_its_formula():
    counts = np.array([[0.0, 4, 1], [4, 0, 0], [1, 0, 2], [0, 0, 0]])
    total, found = counts.sum(), ppmi_of(counts)
    for w in range(4):
        for c in range(3):
            wanted = 0.0
            if counts[w, c]:
                wanted = max(0.0, np.log(counts[w, c] * total / (counts[w].sum() * counts[:, c].sum())))
            assert found[w, c] == pytest.approx(wanted, abs=1e-15)
    smooth = counts.sum(0) ** 0.75
    wanted = np.log((2 / total) / (counts[2].sum() / total * smooth[2] / smooth.sum()))
    assert ppmi_of(counts, 0.75)[2, 2] == pytest.approx(wanted)


def test_ppmi_by_svd_keeps_the_leading_dimensions():
    corpus = random_corpus()
    whole, few = build("ppmi"), build("ppmi", svd=4)
    read(whole, corpus)
    loss = read(few, corpus)
    U, s, _ = np.linalg.svd(whole.vectors.detach().double().numpy())
    wanted = U[:, :4] * np.sqrt(s[:4])
    gram = few.vectors.detach().double().numpy()
    np.testing.assert_allclose(gram @ gram.T, wanted @ wanted.T, atol=1e-4)
    assert loss == pytest.approx(1 - (s[:4] ** 2).sum() / (s**2).sum(), abs=1e-5)


def test_tf_idf_and_lsa_are_their_formulas():
    corpus = make_corpus([["a", "b", "a"], ["b", "c"], ["b", "a", "d"]], 5)
    found = tf_idf_of(corpus, 5).to_dense().double().numpy()
    at = {word: corpus.vocabulary.find(word) for word in "abcd"}
    wanted = np.zeros((5, 3))
    wanted[at["a"]] = [2 * np.log(3 / 2), 0, np.log(3 / 2)]
    wanted[at["c"], 1] = wanted[at["d"], 2] = np.log(3)  # b is in all documents: log 1
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    net = build("tf_idf", 5, documents=2)
    read(net, corpus)
    np.testing.assert_allclose(net.vectors.detach().numpy(), wanted[:, :2], atol=1e-6)
    lsa = build("lsa", 5, size=2)
    loss = read(lsa, corpus)
    U, s, _ = np.linalg.svd(wanted)
    gram = lsa.vectors.detach().double().numpy()
    np.testing.assert_allclose(gram @ gram.T, (U[:, :2] * s[:2] ** 2) @ U[:, :2].T, atol=1e-5)
    assert loss == pytest.approx(1 - (s[:2] ** 2).sum() / (s**2).sum(), abs=1e-5)
