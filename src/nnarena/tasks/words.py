"""What tasks on words have in common: a corpus, a learner that lets a model read it, and what a report shows of it.

V words, Q questions.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from nnarena.core.count import counted
from nnarena.core.errors import BadOption, DataError, Unfit
from nnarena.core.learner import Learner, Means, Work
from nnarena.core.seeds import derive
from nnarena.core.spec import TaskSpec
from nnarena.core.svd import truncated_svd
from nnarena.core.task import Task
from nnarena.core.words import Corpus, Lesson, Reader, Vocabulary
from nnarena.data import load
from nnarena.data.grammar import WORDS, all_words, grammar_corpus
from nnarena.data.text8 import text8_corpus

REHEARSAL = 5_000  # words that a plan is made from
TOGETHER = 256  # questions that are asked at a time
BASELINE = 64  # dimensions of vectors drawn at random
FEWEST = 4  # questions with known words that a trial needs
NEIGHBOURS, ANSWERS = 6, 10  # of a word: in the report, and where a person asks
MAPS, SHOWN, ASKED = 4, 12, 3  # maps in it, pairs on each, and words of each whose neighbours it lists

Model = Callable[[Tensor], Tensor]


class Words(Task):
    """Vectors of words, learned by reading a corpus and then asked about. A subclass says what is asked.

    The model learns from the corpus alone; no question is ever read in training. Half of the questions, drawn by the
    seed, are the validation that selects an epoch, the other half is the test. Questions with a word that is not in the
    vocabulary are left out, and `known` says what share of them remains.

    `grammar` is a synthetic corpus, made from a small grammar by the seed, whose truth is known (`data/grammar.py`).
    `text8` are real words of Wikipedia (`nnarena data get text8`), and the questions are those that the field asks.

    The protocol's batch_size is in central words. A competitor that counts reads once, and takes no step of the
    optimizer.

    Options:
        corpus: grammar, which is made, or text8, which must be here
        tokens: words of the corpus at most
        vocabulary: different words at most, the most frequent and the unknown one; all others are unknown
    """

    practises = answers = True
    name: str
    questions_set: str  # the data set of questions on text8

    def __init__(
        self, *, corpus: Literal["grammar", "text8"] = "grammar", tokens: int = 50_000, vocabulary: int = 10_000
    ) -> None:
        if tokens < 1:
            raise BadOption(f"{self.name}: the corpus is empty: tokens must be at least 1, not {tokens}.")
        if vocabulary < 2:
            raise BadOption(f"{self.name}: vocabulary must be at least 2, not {vocabulary}.")
        if corpus == "grammar":
            vocabulary = min(vocabulary, len(all_words()) + 1)
        self.corpus_name, self.tokens, self.vocabulary = corpus, tokens, vocabulary
        self.spec = TaskSpec(input_shape=(vocabulary,), output_size=vocabulary, target="values")

    def check(self) -> None:
        """Data that is not there, or a made corpus too small for any question, is told before anything runs."""
        if self.corpus_name == "text8":
            load("text8")
            load(self.questions_set)
        else:
            questions, _ = self.questions(np.random.default_rng(0))
            known_questions(questions, self.corpus(0).vocabulary)

    def corpus(self, seed: int) -> Corpus:
        """All rivals with this seed read the same."""
        return _corpus(self.corpus_name, self.tokens, self.vocabulary, derive(seed, "corpus"))

    def learner(self, model: nn.Module, optimizer: Optimizer, means: Means) -> Learner:
        if not hasattr(model, "read"):
            raise Unfit("it cannot read a corpus: a model of words has a method read(corpus, lesson).")
        return WordLearner(self, model, optimizer, means)

    @abstractmethod
    def questions(self, rng: np.random.Generator) -> tuple[list[tuple[str, ...]], np.ndarray]:
        """The words of every question, and a number for each that `judge` may need."""

    @abstractmethod
    def judge(self, model: Model, questions: Tensor, truth: np.ndarray, words: int) -> dict[str, float]:
        """How good the answers are: what selection lowers first, what ranks last.

        questions (Q, …) are numbers of words, truth (Q,); the corpus has the first `words` words of the vocabulary.
        """

    def landmarks(self, questions: list[tuple[str, ...]]) -> list[tuple[str, str, str]]:
        """Pairs of words that maps should show, each with the name of its group."""
        if self.corpus_name == "grammar":
            return [(one.text, other.text, one.family) for one, other in zip(WORDS[::2], WORDS[1::2], strict=True)]
        return [(words[0], words[1], "pairs") for words in questions]


@lru_cache(maxsize=1)
def _corpus(name: str, tokens: int, vocabulary: int, seed: int) -> Corpus:
    """Kept for the next trial: rivals with the same seed come one after another."""
    if name == "text8":
        return text8_corpus(load("text8")["text"], tokens, vocabulary)
    return grammar_corpus(tokens, vocabulary, np.random.default_rng(seed))


class WordLearner(Learner):
    """Lets a model read the corpus once an epoch, and asks it questions."""

    steps = 1

    def __init__(self, task: Words, model: nn.Module, optimizer: Optimizer, means: Means) -> None:
        self.task, self.model, self.means = task, model, means
        self.reader = cast(Reader, model)
        self.optimizers = {}
        self.lesson = Lesson(optimizer, means.batch_size)
        self.corpus = task.corpus(means.seed)
        self.asked, truth = task.questions(np.random.default_rng(derive(means.seed, "questions")))
        vocabulary = self.corpus.vocabulary
        known = known_questions(self.asked, vocabulary)
        self.known = len(known) / len(self.asked)
        numbers = np.array([[vocabulary.find(word) for word in self.asked[place]] for place in known])
        half = np.random.default_rng(derive(means.seed, "halves")).permutation(len(known))
        halves = {"validation": np.sort(half[::2]), "test": np.sort(half[1::2])}
        self.parts = {part: (numbers[half], truth[known][half]) for part, half in halves.items()}

    @property
    def finished(self) -> bool:
        return self.reader.once

    def practise(self, go_on: Work) -> dict[str, float]:
        lesson = Lesson(self.lesson.optimizer, self.lesson.batch_size, go_on)
        return {"loss": self.reader.read(self.corpus, lesson), "known": self.known}

    @torch.no_grad()
    def examine(self, part: str) -> dict[str, float]:
        numbers, truth = self.parts[part]
        questions = torch.from_numpy(numbers).to(self.means.device)
        return self.task.judge(self.model, questions, truth, len(self.corpus.vocabulary))

    def baselines(self) -> dict[str, dict[str, float]]:
        """Vectors that are drawn at random."""
        generator = torch.Generator().manual_seed(derive(self.means.seed, "baseline") % 2**63)
        unit = F.normalize(torch.randn(self.task.vocabulary, BASELINE, generator=generator), dim=1)

        def chance(x: Tensor) -> Tensor:
            return F.normalize(x @ unit, dim=1) @ unit.T

        numbers, truth = self.parts["test"]
        return {
            "random vectors": self.task.judge(chance, torch.from_numpy(numbers), truth, len(self.corpus.vocabulary))
        }

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if tensors:
            raise ValueError("a learner of words keeps nothing besides the weights")

    def seconds(self) -> float:
        part = self.corpus.first(REHEARSAL)
        began = time.perf_counter()
        self.reader.read(part, self.lesson)
        reading = (time.perf_counter() - began) * len(self.corpus) / len(part)
        began = time.perf_counter()
        self.examine("validation")
        return reading + time.perf_counter() - began

    @torch.no_grad()
    def exhibit(self) -> dict[str, Any]:
        """A map of the pairs of some groups of words, and the neighbours of some words."""
        vocabulary, size = self.corpus.vocabulary, self.task.vocabulary
        groups: dict[str, list[tuple[str, str]]] = {}
        for one, other, group in self.task.landmarks(self.asked):
            if one in vocabulary and other in vocabulary:
                groups.setdefault(group, []).append((one, other))
        maps, asked = [], []
        for group in spread(list(groups), MAPS):
            pairs = spread(groups[group], SHOWN)
            words = list(dict.fromkeys(word for pair in pairs for word in pair))
            numbers = torch.tensor([vocabulary.find(word) for word in words], device=self.means.device)
            places, share = principal_plane(cosines(self.model, [(numbers, 1.0)], size)[:, numbers])
            maps.append(
                {
                    "group": group,
                    "words": words,
                    "places": [[round(value, 4) for value in row] for row in places.tolist()],
                    "pairs": [[words.index(one), words.index(other)] for one, other in pairs],
                    "share": round(sum(share), 4),
                }
            )
            asked += [word for word, _ in spread(pairs, ASKED)]
        near = {word: neighbours(self.model, vocabulary, [(word, 1.0)], size) for word in asked}
        return {"kind": "words", "maps": maps, "neighbours": near}

    def ask(self, question: str) -> list[tuple[str, float]]:
        """The words nearest to a word, or to a sum of words such as `paris - france + italy`."""
        return neighbours(self.model, self.corpus.vocabulary, terms(question), self.task.vocabulary, ANSWERS)


def known_questions(questions: list[tuple[str, ...]], vocabulary: Vocabulary) -> list[int]:
    """The places of those whose words are all in the vocabulary. DataError where they are too few to be halved."""
    known = [place for place, words in enumerate(questions) if all(word in vocabulary for word in words)]
    if len(known) < FEWEST:
        unknown = next(word for words in questions for word in words if word not in vocabulary)
        raise DataError(
            f"The vocabulary of {counted(len(vocabulary), 'word')} has all words of only {len(known)} of "
            f"{counted(len(questions), 'question')}: {unknown!r} is not in it. Give it more words or a longer corpus."
        )
    return known


def spread(items: list[Any], count: int) -> list[Any]:
    """At most `count` of them, evenly taken."""
    places = np.unique(np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)) if items else []
    return [items[place] for place in places]


def cosines(model: Model, weights: list[tuple[Tensor, float]], size: int) -> Tensor:
    """(Q, V) of Q mixtures with every word: `weights` are numbers of words (Q,), and how much of each."""
    first = weights[0][0]
    x = torch.zeros(len(first), size, device=first.device)
    for numbers, weight in weights:
        x.scatter_add_(1, numbers.unsqueeze(1), torch.full((len(first), 1), weight, device=first.device))
    return model(x)


def terms(question: str) -> list[tuple[str, float]]:
    """The words of a sum and their signs: `paris - france + italy`."""
    parts = question.lower().split()
    words, signs = parts[::2], parts[1::2]
    if len(words) != len(signs) + 1 or not {*signs} <= {"+", "-"} or {*words} & {"+", "-"}:
        raise BadOption(f"{question!r} is neither a word nor a sum of words such as 'paris - france + italy'.")
    return list(zip(words, [1.0, *(1.0 if sign == "+" else -1.0 for sign in signs)], strict=True))


@torch.no_grad()
def neighbours(
    model: nn.Module, vocabulary: Vocabulary, asked: list[tuple[str, float]], size: int, count: int = NEIGHBOURS
) -> list[tuple[str, float]]:
    """The `count` words with the largest cosine to a sum of words, none of which is among them, and the cosines.

    UnknownName suggests another word.
    """
    device = next(model.parameters()).device
    numbers = [torch.tensor([vocabulary.find(word)], device=device) for word, _ in asked]
    weights = [(number, weight) for number, (_, weight) in zip(numbers, asked, strict=True)]
    cosine = cosines(model, weights, size)[0, : len(vocabulary)].clone()
    left_out = {0, *map(int, numbers)}
    cosine[list(left_out)] = -torch.inf
    best = cosine.topk(min(count, max(0, len(vocabulary) - len(left_out))))
    return [
        (vocabulary.words[place], round(value, 4))
        for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@torch.no_grad()
def principal_plane(cosine: Tensor) -> tuple[Tensor, list[float]]:
    """The plane (N, 2) in which N vectors of length 1 differ most, and the share of their variance on each axis.

    Principal components from cosines alone: with C centred in rows and columns and C = U Λ Uᵀ, the places are U √Λ.
    """
    centred = cosine.double()
    centred = centred - centred.mean(0) - centred.mean(1, keepdim=True) + centred.mean()
    U, s, _ = truncated_svd(centred, 2)
    total = float(centred.trace())
    places = torch.zeros(len(cosine), 2, dtype=torch.float64, device=cosine.device)
    places[:, : len(s)] = U * s.sqrt()
    return places, [float(value) / total if total > 1e-9 else 0.0 for value in s]
