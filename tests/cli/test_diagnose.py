"""`nnarena diagnose`: tables, JSON, the page; wrong requests get one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnarena.core.components import catalogue

SMALL = ("--samples", "640", "--set", "batch_size=32")
ADD = ("-t", "add[length=8]", *SMALL)


def test_tables_say_what_became_of_the_gradient(arena) -> None:
    printed = arena("diagnose", "gru[hidden_size=6]", "-t", "add[length=100]", *SMALL)
    assert printed.code == 0 and not printed.err
    for text in ("gru[hidden_size=6] on add[length=100]", "not trained", "layer, state", "vanishes", "spectral radius"):
        assert text in printed.out
    assert "head.weight" in printed.out and "→" not in printed.out


def test_before_and_after_with_a_page(arena, own: Path) -> None:
    printed = arena(
        "diagnose", "mine.py:MyCell", *ADD, "--epochs", "1", "--output", "there/page.html", "--device", "cpu"
    )
    assert printed.code == 0
    assert "→" in printed.out and "Pictures: there/page.html" in printed.out and "adam, 1 epoch" in printed.out
    assert "layer.rnn, state" in printed.out and "spectral radius" in printed.out
    page = (own / "there" / "page.html").read_text()
    assert "MyCell on add[length=8]" in page and "<svg" in page and "http:" not in page and "https:" not in page
    assert {path.name for path in own.iterdir()} - {"__pycache__"} == {"mine.py", "there"}


def test_json_has_every_number(arena) -> None:
    found = json.loads(arena("diagnose", "lstm[hidden_size=4]", *ADD, "--json", "--seed", "3", "--look", "5").out)
    assert (found["seed"], found["samples"], found["after"]) == (3, 5, None)
    assert [len(item["norms"]) for item in found["before"]["flow"]] == [8, 8]
    assert found["before"]["jacobian"][0]["size"] == 8


def test_a_trial_of_a_store(arena, own: Path) -> None:
    run = ("run", "-m", "lstm[hidden_size=4]", "-t", "add[length=8]", "--samples", "640", "--batch-size", "32")
    assert arena(*run, "--epochs", "1", "--jobs", "1", "--device", "cpu", "--out", "R").code == 0
    (folder,) = (path.parent for path in (own / "R").rglob("result.json"))
    found = json.loads(arena("diagnose", "--trial", "R", folder.name[:6], "--json").out)
    assert found["model"] == "lstm[hidden_size=4]" and found["after"] is not None
    for more in (("lstm",), ("--epochs", "2"), ("-t", "add"), ("--set", "lr=1"), ("--seed", "0"), ("--device", "cpu")):
        printed = arena("diagnose", "--trial", "R", folder.name, *more)
        assert printed.code == 2 and "--trial says what is looked at" in printed.err
    (folder / "result.json").unlink()
    printed = arena("diagnose", "--trial", "R", folder.name)
    assert printed.code == 2 and "is not done yet" in printed.err


def test_a_model_that_does_not_fit_the_usual_task_gets_the_next(arena) -> None:
    assert "memory_cell on cell" in arena("diagnose", "memory_cell", "--samples", "1280", "--look", "1").out


HEAVY = {"alexnet", "densenet121", "differentiable_neural_computer", "googlenet", "memory_augmented_transformer",
         "memory_cell", "predictor_lstm", "resnet50", "resnet101", "resnext50_32x4d", "vgg16", "vgg19"}  # fmt: skip
MODELS = [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else ()) for name in sorted(catalogue("model"))]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_diagnosis_or_a_sentence_why_not(arena, name: str) -> None:
    printed = arena("diagnose", name, "--samples", "1280", "--look", "2", "--json")
    if catalogue("model")[name].reads in ("words", "nothing"):
        assert printed.code == 2 and not printed.out
        assert printed.err.startswith(f"nnarena: {name} has no diagnosis: it ") and len(printed.err.splitlines()) == 1
        return
    found = json.loads(printed.out)
    assert printed.code == 0 and not printed.err and found["model"] == name
    assert found["before"]["loss"] > 0 and found["before"]["layers"] and found["before"]["parameters"]


WRONG = {
    "unknown model": (("lsmt",), "did you mean 'lstm'"),
    "unknown task": (("lstm", "-t", "ad"), "did you mean 'add'"),
    "unknown optimizer": (("lstm", "-o", "adan", "--epochs", "1"), "did you mean 'adam'"),
    "unknown option": (("lstm[hiden_size=3]",), "did you mean 'hidden_size'"),
    "unknown setting": (("lstm", "--set", "epoch=3"), "did you mean 'epochs'"),
    "epochs as a setting": (("lstm", "--set", "epochs=3"), "Say --epochs 3"),
    "unfit": (("lstm", "-t", "digits_image"), "lstm does not fit digits_image"),
    "unfit image": (("resnet18", "-t", "add"), "resnet18 does not fit add"),
    "unfit start": (("conv1d", "--set", "init=identity"), "conv1d does not fit add: init=identity has nothing to set"),
    "no samples": (("mlp", "-t", "pendulum"), "pendulum has no samples"),
    "no data": (("gru", "-t", "mnist"), "nnarena data get mnist"),
    "several models": (("lstm,gru",), "One model at a time"),
    "several sizes": (("lstm[hidden_size=[3,4]]",), "One model at a time"),
    "several tasks": (("lstm", "-t", "add,memory"), "One task at a time"),
    "nothing": ((), "Name a model"),
    "no epochs": (("lstm", "--epochs", "0"), "epochs must be above 0"),
    "no look": (("lstm", "--look", "0"), "At least one sample"),
    "reads words": (("ppmi",), "ppmi has no diagnosis: it learns from a text"),
    "reads words, with a task": (("ppmi", "-t", "word_similarity"), "ppmi has no diagnosis: it learns from a text"),
    "reads nothing": (("point",), "point has no diagnosis: it is a place on a surface"),
    "no tokens": (("encoder_decoder", "-t", "add"), "encoder_decoder does not fit add: it turns tokens into tokens"),
    "bad seed": (("lstm", "--seed", "-1"), "--seed must not be negative"),
    "no page": (("lstm", "--output", "x.svg"), "name it x.html"),
    "no store": (("--trial", "nowhere", "abc"), "holds no study"),
    "idle optimizer": (("lstm", "-o", "sgd"), "--optimizer says how it is trained, and it is not"),
    "idle device": (("lstm", "--device", "cpu"), "say --epochs too"),
    "no device": (("lstm", "--epochs", "1", "--device", "abacus"), "--device takes auto, cpu or cuda"),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG)
def test_a_wrong_request_gets_one_sentence(arena, own: Path, arguments: tuple[str, ...], sentence: str) -> None:
    printed = arena("diagnose", *arguments)
    assert printed.code == 2 and not printed.out
    assert sentence in printed.err and "Traceback" not in printed.err
    assert len(printed.err.splitlines()) == 1
    assert [path.name for path in own.iterdir()] == ["mine.py"]
