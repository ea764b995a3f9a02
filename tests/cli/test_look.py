"""`nnarena look`: where the page lies, what scripts get, and a sentence for what cannot be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RUN = ("run", "-o", "adam", "--samples", "400", "--batch-size", "20", "--epochs", "2", "--jobs", "1", "--device", "cpu")


@pytest.fixture
def store(arena, own: Path) -> Path:
    assert arena(*RUN, "-t", "digits_image", "-m", "attention_wise[heads=2]", "--out", "R").code == 0
    return own / "R"


def only(store: Path) -> Path:
    (folder,) = (store / "trials").glob("*/*/*/*")
    return folder


def test_the_page_lies_beside_the_trial_and_the_report_shows_it(arena, store: Path) -> None:
    folder = only(store)
    assert "Looked at" not in (store / "report.html").read_text()
    printed = arena("look", "R", folder.name[:6])
    assert printed.code == 0 and not printed.err
    assert (page := Path(printed.out.strip())).resolve() == (folder / "look.html").resolve()
    assert page.read_text().startswith("<!doctype html>") and "Pictures choose nothing." in page.read_text()
    assert json.loads((folder / "look.json").read_text())["figures"]["trial"] == folder.name
    assert arena("report", "R").code == 0
    assert "Looked at" in (store / "report.html").read_text()
    assert arena("rerun", "R", folder.name).code == 0


def test_scripts_get_the_figures_and_samples_can_be_chosen(arena, store: Path) -> None:
    folder = only(store)
    figures = json.loads(arena("look", "R", folder.name, "--json", "--images", "3").out)
    result = json.loads((folder / "result.json").read_text())
    assert figures["accuracy"] == pytest.approx(result["test"]["accuracy"], abs=1e-6)
    counts = figures["confusion"]
    assert sum(map(sum, counts)) == figures["test_samples"] == 40
    assert len(figures["mistakes"]) == 40 - sum(counts[k][k] for k in range(10))
    assert [item["class"] for item in figures["per_class"]] == figures["classes"] == list("0123456789")
    other = json.loads(arena("look", "R", folder.name, "--json", "--images", "3", "--seed", "7").out)
    assert len(other["followed"]) == 3 and other["followed"] != figures["followed"]
    assert {**other, "followed": 0} == {**figures, "followed": 0}


def test_the_page_can_lie_elsewhere(arena, store: Path, own: Path) -> None:
    printed = arena("look", "R", only(store).name, "--output", "deep/er/page.html")
    assert printed.out.strip() == "deep/er/page.html"
    assert (own / "deep/er/page.html").is_file() and not (only(store) / "look.html").exists()


def test_what_cannot_be_looked_at_gets_one_sentence(arena, store: Path, own: Path) -> None:
    assert arena(*RUN, "-t", "add[length=10]", "-m", "lstm", "--out", "L").code == 0
    folder, lstm = only(store), only(own / "L")
    cases = [
        (("look", "nowhere", "abc"), "holds no study"),
        (
            ("look", "R", "zzz"),
            f"has no trial 'zzz'; there are {'/'.join(folder.parts[-4:])}.",
        ),
        (("look", "R", folder.name, "--images", "0"), "--images"),
        (("look", "R", folder.name, "--seed", "-1"), "--seed"),
        (("look", "R", folder.name, "--device", "abacus"), "--device takes auto, cpu or cuda"),
        (("look", "L", lstm.name), "There are no pictures of lstm on add[length=10]"),
    ]
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    for arguments, sentence in cases:
        check(arena(*arguments), sentence)
    (folder / "model.safetensors").rename(own / "aside")
    check(arena("look", "R", folder.name), "has no model to look at")
    (own / "aside").rename(folder / "model.safetensors")
    (folder / "result.json").rename(own / "aside")
    check(arena("look", "R", folder.name), "is not finished")
    (own / "aside").rename(folder / "result.json")
    after = {path: path.read_bytes() for path in own.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert before == after


def check(printed, sentence: str) -> None:
    assert printed.code == 2 and sentence in printed.err and not printed.out
    assert "Traceback" not in printed.err
    assert len([line for line in printed.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]) == 1


def test_help_has_examples(arena) -> None:
    text = arena("look", "--help").out
    assert "nnarena look runs/arena 3f2a --json" in text and "--images" in text and "nothing is chosen" in text


def test_a_model_of_words_is_asked_for_the_nearest(arena, store: Path, own: Path) -> None:
    assert arena("run", "-t", "analogy", "-m", "ppmi", "--out", "W", "--device", "cpu").code == 0
    words = only(own / "W")
    before = sorted(path.name for path in words.iterdir())
    printed = arena("look", "W", words.name, "--near", "oslo", "--near", "oslo - norway + italy")
    first, second = printed.out.split("\n\n")
    assert first.startswith("oslo\n") and "norway" in first and len(first.splitlines()) == 11
    assert second.splitlines()[1].split()[0] == "rome"
    found = json.loads(arena("look", "W", words.name, "--near", "Oslo", "--json").out)["Oslo"]
    assert [word for word, _ in found] == [line.split()[0] for line in first.splitlines()[1:]]
    assert sorted(path.name for path in words.iterdir()) == before
    for arguments, sentence in [
        (("W", words.name, "--near", "osla"), "There is no word in the vocabulary 'osla'; did you mean 'oslo'?"),
        (("W", words.name, "--near", "oslo norway"), "neither a word nor a sum of words"),
        (("W", words.name), "A model of words can be asked: --near WORD."),
        (("R", only(store).name, "--near", "oslo"), "digits_image answers no questions"),
    ]:
        refused = arena("look", *arguments)
        assert refused.code == 2 and sentence in refused.err and refused.err.count("\n") == 1
