"""Words a second: ours beside gensim's, after the gradient was found right."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch

from nnarena.bench import words


@pytest.fixture(autouse=True)
def small(monkeypatch, request):
    if request.node.get_closest_marker("slow"):
        return
    monkeypatch.setattr(words, "VOCABULARY", 200)
    monkeypatch.setattr(words, "SIZE", 8)


def test_without_gensim_ours_is_measured_and_the_way_to_get_it_told(arena, monkeypatch):
    monkeypatch.setattr(words.importlib.util, "find_spec", lambda name: None)
    content = json.loads(arena("bench", "words", "--cpu", "--rounds", "1", "--words", "2000", "--json").out)
    ours, theirs = content["rows"]
    assert content["unit"] == "gensim" and content["words"] == 2000
    assert ours["words_per_second"] > 0 and ours["ratio"] is None and ours["gradient_error"] < 1e-5
    assert theirs["words_per_second"] is None and "pip install gensim" in theirs["note"]


def test_a_ratio_is_that_of_words_a_second(arena, monkeypatch):
    read = []

    class Word2Vec:
        def __init__(self, **settings):
            assert settings["sg"] == 1 and settings["workers"] == 1 and settings["vector_size"] == 8

        def build_vocab(self, sentences):
            assert sum(map(len, sentences)) == 2000

        def train(self, sentences, **more):
            read.append(sum(torch.rand(300, 300).mm(torch.rand(300, 300)).sum() for _ in range(3)))

    models = types.SimpleNamespace(Word2Vec=Word2Vec)
    monkeypatch.setitem(sys.modules, "gensim", types.SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "gensim.models", models)
    monkeypatch.setattr(words.importlib.util, "find_spec", lambda name: object())
    content = json.loads(arena("bench", "words", "--cpu", "--rounds", "2", "--words", "2000", "--json").out)
    ours, theirs = content["rows"]
    assert len(read) == 3 and theirs["ratio"] == 1.0
    assert ours["ratio"] == pytest.approx(ours["words_per_second"] / theirs["words_per_second"])
    assert "gensim" in arena("bench", "words", "--cpu", "--rounds", "1", "--words", "2000").out


def test_no_time_without_a_right_gradient(monkeypatch):
    monkeypatch.setattr(words, "gradient_error", lambda device: 0.1)
    (row,) = words.compare(torch.device("cpu"), 1, 2000, lambda text: None)
    assert row.words_per_second is None and row.note == "failed: the gradient is wrong"


def test_the_check_sees_a_wrong_gradient(monkeypatch):
    right = words.NegativeSampling.gradient_with
    monkeypatch.setattr(words.NegativeSampling, "gradient_with", lambda self, *given: right(self, *given, scale=1.01))
    assert words.gradient_error(torch.device("cpu")) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.slow
def test_ours_is_at_most_three_times_as_slow():
    pytest.importorskip("gensim")
    ours, _ = words.compare(torch.device("cpu"), 5, 50_000, lambda text: None)
    assert ours.ratio is not None and ours.ratio > 1 / 3
