"""Trials on words: they end, go on and fail like any other, and leave something to look at."""

from __future__ import annotations

import json

import pytest
from engine_helpers import Stop, bits, make, run, run_together

from nnarena.data.grammar import WORDS
from nnarena.engine.tensors import load

SMALL = "[tokens=6000]"


def trial(model: str = "word2vec", task: str = "analogy", **more):
    settings = {"epochs": 2, "batch_size": 128, "samples": None, "lr": 0.025}
    return make(model, task + SMALL, "sgd", **(settings | more))


def test_one_that_counts_reads_once_and_one_that_descends_as_often_as_asked(tmp_path):
    counted, learned = run(trial("ppmi"), tmp_path / "a"), run(trial(), tmp_path / "b")
    assert (counted["status"], counted["epochs"]) == ("done", 1) and (learned["status"], learned["epochs"]) == (
        "done",
        2,
    )
    assert counted["test"]["accuracy"] > 0.1 and list(learned["test"]) == ["error", "accuracy"]
    assert counted["baselines"].keys() == {"random vectors"} and 0.5 < learned["training"]["known"] < 1
    shown = json.loads((tmp_path / "b" / "exhibit.json").read_text())
    assert [one["group"] for one in shown["maps"]] == list(dict.fromkeys(word.family for word in WORDS))
    for one in shown["maps"]:
        assert len(one["places"]) == len(one["words"]) and 0 < one["share"] <= 1
    assert all(len(found) == 6 for found in shown["neighbours"].values()) and len(shown["neighbours"]) == 12


@pytest.mark.parametrize("setting", [{"l1": 0.1}, {"l2": 0.1}, {"clip_norm": 0.01}, {"clip_value": 1e-4}], ids=str)
def test_what_holds_a_gradient_back_reaches_words_too(setting, tmp_path):
    plain, held = (run(trial(epochs=1, **more), tmp_path / name) for name, more in (("a", {}), ("b", setting)))
    assert plain["status"] == held["status"] == "done"
    assert (tmp_path / "a" / "model.safetensors").read_bytes() != (tmp_path / "b" / "model.safetensors").read_bytes()


def test_what_is_frozen_of_words_stays(tmp_path):
    run(trial("word2vec[freeze=contexts]"), tmp_path)
    learned = load(tmp_path / "model.safetensors")[0]
    assert not learned["contexts"].any() and learned["vectors"].any()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_trial_that_was_stopped_comes_out_with_the_same_bits(tmp_path, optimizer):
    def one():
        return make("word2vec[size=8]", "word_similarity" + SMALL, optimizer, epochs=2, batch_size=128, samples=None)

    whole = run(one(), tmp_path / "whole")
    with pytest.raises(Stop):
        run(one(), tmp_path / "parts", stop_after=1)
    run(one(), tmp_path / "parts")
    assert bits(tmp_path / "whole", whole) == bits(tmp_path / "parts")
    assert (tmp_path / "whole" / "exhibit.json").read_bytes() == (tmp_path / "parts" / "exhibit.json").read_bytes()


def test_one_that_counts_and_was_stopped_is_done_all_the_same(tmp_path):
    whole = run(trial("lsa"), tmp_path / "whole")
    with pytest.raises(Stop):
        run(trial("lsa"), tmp_path / "parts", stop_after=1)
    run(trial("lsa"), tmp_path / "parts")
    assert bits(tmp_path / "whole", whole) == bits(tmp_path / "parts")


def test_together_or_alone_is_the_same(tmp_path):
    trials = [trial(seed=seed, epochs=1) for seed in (0, 1)]
    run_together(trials, tmp_path / "together")
    alone = run(trials[1], tmp_path / "alone")
    assert bits(tmp_path / "together" / "1") == bits(tmp_path / "alone", alone)


def test_time_that_is_up_and_losses_that_are_no_numbers_are_rows(tmp_path):
    assert run(trial(timeout=1e-3), tmp_path / "slow")["status"] == "timeout"
    assert run(trial(lr=1e30), tmp_path / "wild")["status"] == "diverged"
