"""word2vec beside gensim's: words of a text that are read in a second.

Both train skip-gram with negative sampling on the same text, whose words are as frequent as Zipf's law says: the same
dimensions, window, negatives and learning rate, no subsampling, one thread. gensim takes one pair after the other in
compiled code; ours takes 256 central words at a time.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnarena.core.words import Corpus, Lesson, Vocabulary
from nnarena.engine.device import computing_with, synchronise
from nnarena.nn.word2vec import NegativeSampling, dense

PEER = "gensim"
VOCABULARY, SIZE, WINDOW, NEGATIVES, RATE, BATCH, DOCUMENT = 20_000, 100, 5, 5, 0.025, 256, 1000
TOLERANCE = 1e-5
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to read: its words a second, how many times the peer's that is, and how far its gradient is off."""

    way: str
    words_per_second: float | None = None
    ratio: float | None = None
    gradient_error: float | None = None
    note: str = ""


def compare(device: torch.device, rounds: int, words: int, tell: Tell) -> Iterator[Row]:
    """Measured in turns, after one of each that does not count; the best of the rounds."""
    with computing_with(1, device):
        torch.manual_seed(0)
        tell("gradient")
        error = gradient_error(device)
        if not error < TOLERANCE:
            yield Row(way="ours", gradient_error=error, note="failed: the gradient is wrong")
            return
        text = zipf_text(words)
        ways: list[Callable[[], None]] = [make_ours(text, device)]
        if importlib.util.find_spec(PEER) is not None:
            ways.append(make_theirs(text))
        for way in ways:
            way()
        turns = []
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            turns.append([_seconds(way, device) for way in ways])
        best = [min(turn[place] for turn in turns) for place in range(len(ways))]
    if len(ways) == 1:
        yield Row(way="ours", words_per_second=words / best[0], gradient_error=error)
        yield Row(way=PEER, note="skipped: pip install gensim")
        return
    yield Row(way="ours", words_per_second=words / best[0], ratio=best[1] / best[0], gradient_error=error)
    note = "" if device.type == "cpu" else "on the CPU"
    yield Row(way=PEER, words_per_second=words / best[1], ratio=1.0, note=note)


def _seconds(way: Callable[[], None], device: torch.device) -> float:
    """On a CPU the process's own time, of all its threads: what else runs here is not theirs."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronise(device)
    began = clock()
    way()
    synchronise(device)
    return clock() - began


def zipf_text(words: int) -> Corpus:
    """Words drawn with P(w) ∝ 1 / rank, in documents of 1,000."""
    chance = 1 / np.arange(1, VOCABULARY)
    rng = np.random.default_rng(0)
    tokens = 1 + rng.choice(VOCABULARY - 1, words, p=chance / chance.sum())
    counts = np.bincount(tokens, minlength=VOCABULARY).tolist()
    vocabulary = Vocabulary(tuple(map(str, range(VOCABULARY))), tuple(counts))
    return Corpus(tokens, np.arange(words) // DOCUMENT, vocabulary)


def make_ours(text: Corpus, device: torch.device) -> Callable[[], None]:
    model = NegativeSampling(VOCABULARY, SIZE, WINDOW, NEGATIVES, device=device)
    lesson = Lesson(torch.optim.SGD(model.parameters(), RATE), BATCH)

    def read() -> None:
        model.read(text, lesson)

    return read


def make_theirs(text: Corpus) -> Callable[[], None]:
    from gensim.models import Word2Vec  # type: ignore[import-not-found]

    words = list(map(str, text.tokens.tolist()))
    sentences = [words[start : start + DOCUMENT] for start in range(0, len(words), DOCUMENT)]
    model: Any = Word2Vec(
        vector_size=SIZE,
        window=WINDOW,
        sg=1,
        negative=NEGATIVES,
        min_count=1,
        sample=0,
        workers=1,
        alpha=RATE,
        min_alpha=RATE,
    )
    model.build_vocab(sentences)

    def read() -> None:
        model.train(sentences, total_examples=len(sentences), epochs=1)

    return read


def gradient_error(device: torch.device, words: int = 40, centres: int = 20, reach: int = 2) -> float:
    """The largest difference to a loop over pairs in float64, relative to the largest entry of the gradient."""
    model = NegativeSampling(words, 16, WINDOW, NEGATIVES, device=device)
    torch.nn.init.normal_(model.vectors)
    torch.nn.init.normal_(model.contexts)
    centre = torch.randint(1, words, (centres,), device=device)
    context = torch.randint(1, words, (centres, 2 * reach), device=device)
    counted = torch.rand(context.shape, device=device) < 0.8
    negatives = torch.randint(1, words, (*context.shape, NEGATIVES), device=device)
    with torch.no_grad():
        found = dense(model.gradient_with(centre, context, counted, negatives), words)
    given = (model.vectors, model.contexts, centre, context, counted, negatives)
    wanted = loop_gradient(*(part.detach().cpu() for part in given))
    return max(
        float((mine.cpu() - right).abs().max() / right.abs().max()) for mine, right in zip(found, wanted, strict=True)
    )


def loop_gradient(
    vectors: Tensor, contexts: Tensor, centre: Tensor, context: Tensor, counted: Tensor, negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """One pair after the other, by hand, in float64: ∂J/∂v_c = Σ (σ(u·v) − t) u and ∂J/∂u = (σ(u·v) − t) v.

    t is 1 for the context and 0 for a negative.
    """
    v, u = vectors.double(), contexts.double()
    by_v, by_u = torch.zeros_like(v), torch.zeros_like(u)
    for place, c in enumerate(centre.tolist()):
        for o, counts, drawn in zip(context[place].tolist(), counted[place], negatives[place].tolist(), strict=True):
            for word, target in [(o, 1.0), *((k, 0.0) for k in drawn if k != o)] if counts else []:
                slope = torch.sigmoid(u[word] @ v[c]) - target
                by_v[c] += slope * u[word]
                by_u[word] += slope * v[c]
    return by_v, by_u
