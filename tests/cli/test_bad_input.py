"""A wrong request gets one sentence and exit code 2, runs nothing, and leaves everything as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

RUN = ("run", "-t", "add[length=10]", "--samples", "640", "--batch-size", "32", "--epochs", "1", "-m")

WRONG = {
    "unknown task": (("run", "-t", "ad", "-m", "lstm"), "did you mean 'add'"),
    "unknown model": (("run", "-t", "add", "-m", "lsmt"), "did you mean 'lstm'"),
    "unknown optimizer": (("run", "-t", "add", "-m", "lstm", "-o", "adan"), "did you mean 'adam'"),
    "unknown study": (("run", "qickstart"), "did you mean 'quickstart'"),
    "unknown command": (("rpeort", "x"), "did you mean 'report'"),
    "unknown flag": (("run", "-t", "add", "-m", "lstm", "--epoch", "3"), "--epochs"),
    "unknown option": ((*RUN, "lstm[hiden_size=3]"), "did you mean 'hidden_size'"),
    "wrong type": ((*RUN, "lstm[hidden_size=many]"), "takes a whole number, not many"),
    "open bracket": ((*RUN, "lstm[hidden_size=3"), "not closed"),
    "option twice": ((*RUN, "lstm[hidden_size=3,hidden_size=4]"), "twice"),
    "impossible size": ((*RUN, "lstm[hidden_size=0]"), "at least 1, not 0"),
    "bad rate": ((*RUN, "lstm", "-o", "sgd[lr=-1]"), "Invalid learning rate"),
    "unfit": (("run", "-t", "cell", "-m", "transformer"), "transformer does not fit cell"),
    "own shape": ((*RUN, "mine.py:Everywhere"), "must give (2, 1), but it gave (2, 10, 1)"),
    "own name": ((*RUN, "mine.py:MyCel"), "did you mean 'MyCell'"),
    "own number": ((*RUN, "mine.py:NUMBER"), "not a class or a function"),
    "own kind": ((*RUN, "lstm", "-o", "mine.py:MyCell"), "cannot be an optimizer"),
    "no file": ((*RUN, "nowhere.py:Cell"), "no file 'nowhere.py'"),
    "no module": ((*RUN, "no_such_package.module:Cell"), "cannot be imported"),
    "unknown setting": ((*RUN, "lstm", "--set", "epoch=3"), "did you mean 'epochs'"),
    "bad setting": ((*RUN, "lstm", "--set", "min_delta=small"), "takes a number, not small"),
    "setting without value": ((*RUN, "lstm", "--set", "epochs"), "--set key=value"),
    "setting twice": ((*RUN, "lstm", "--set", "epochs=7"), "epochs is set twice"),
    "no epochs": (("run", "-t", "add", "-m", "lstm", "--epochs", "0"), "epochs must be above 0"),
    "no seeds": ((*RUN, "lstm", "--seeds", "0"), "at least one seed"),
    "no jobs": ((*RUN, "lstm", "--jobs", "0"), "--jobs must be at least 1"),
    "too few samples": (("run", "-t", "add", "-m", "lstm", "--samples", "100"), "at least 1280 samples"),
    "odd length": (("run", "-t", "add[length=7]", "-m", "lstm"), "length must be even"),
    "empty corpus": (("run", "-t", "analogy[tokens=0]", "-m", "ppmi"), "the corpus is empty"),
    "small corpus": (("run", "-t", "analogy[tokens=30]", "-m", "ppmi"), "of 1,250 questions: 'norway' is not in it."),
    "words unknown": (
        ("run", "-t", "word_similarity[vocabulary=9]", "-m", "ppmi"),
        "The vocabulary of 9 words has all",
    ),
    "words of tokens": (("run", "-t", "copy", "-m", "word2vec"), "the task gives sequences of tokens"),
    "missing data": (("run", "-t", "mnist", "-m", "gru"), "nnarena data get mnist"),
    "no device": ((*RUN, "lstm", "--device", "abacus"), "--device takes auto, cpu or cuda"),
    "nothing asked": (("run",), "Name a study"),
    "no models": (("run", "-t", "add"), "at least one model"),
    "missing model of a study": (("run", "poster", "-m", "nosuch"), "There is no model 'nosuch'"),
    "not a store": (("report", "nowhere"), "holds no study"),
    "not a store to look at": (("status", "nowhere"), "holds no study"),
    "not a store to rerun": (("rerun", "nowhere", "abc"), "holds no study"),
    "unknown component": (("show", "grue"), "did you mean 'gru'"),
    "unknown data set": (("data", "get", "mnits"), "did you mean 'mnist'"),
    "foreign data file": (("data", "import", "mnist", "mine.py"), "mine.py"),
}


@pytest.mark.parametrize(("arguments", "sentence"), WRONG.values(), ids=WRONG)
def test_one_sentence_and_nothing_runs(arena, own: Path, arguments: tuple[str, ...], sentence: str) -> None:
    before = sorted(own.rglob("*"))
    printed = arena(*arguments)
    assert printed.code == 2
    assert sentence in printed.err
    assert "Traceback" not in printed.err and not printed.out
    assert len([line for line in printed.err.splitlines() if line and not line.startswith(("Usage:", "Try "))]) == 1
    assert [path for path in sorted(own.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('tasks = ["add"', "is not TOML"),
        ('tasks = ["add"]\nmodells = ["lstm"]', "did you mean 'models'"),
        ('tasks = ["add"]\nmodels = "lstm"', "models must be a list"),
        ('tasks = ["add"]\nmodels = ["lstm"]\nseeds = "three"', "seeds must be"),
        ('tasks = ["add"]\nmodels = ["lsmt"]', "did you mean 'lstm'"),
        ('tasks = ["add"]\nmodels = ["lstm"]\n[protocol]\nepoch = 3', "did you mean 'epochs'"),
        ('models = ["lstm"]', "tasks must be a list"),
    ],
)
def test_a_broken_study_file_is_told_apart(arena, own: Path, text: str, sentence: str) -> None:
    (own / "study.toml").write_text(text)
    printed = arena("run", "study.toml")
    assert printed.code == 2
    assert sentence in printed.err and "Traceback" not in printed.err
    assert not (own / "runs").exists()


def test_a_file_that_cannot_be_imported_is_told_with_its_reason(arena, own: Path) -> None:
    (own / "typo.py").write_text("import torhc\n")
    printed = arena(*RUN, "typo.py:Cell")
    assert printed.code == 2
    assert "typo.py cannot be imported" in printed.err and "torhc" in printed.err


def test_a_folder_of_another_study_is_left_alone(arena, own: Path) -> None:
    assert arena(*RUN, "lstm", "--out", "R").code == 0
    before = {path: path.read_bytes() for path in (own / "R").rglob("*") if path.is_file()}
    for arguments in ((*RUN, "gru"), (*RUN, "lstm", "--set", "min_delta=0")):
        printed = arena(*arguments, "--out", "R")
        assert printed.code == 2
        assert "belongs to another study" in printed.err
    (own / "full").mkdir()
    (own / "full" / "thesis.txt").write_text("years of work")
    assert "not empty" in arena(*RUN, "lstm", "--out", "full").err
    assert before == {path: path.read_bytes() for path in (own / "R").rglob("*") if path.is_file()}


def test_debug_shows_where(process) -> None:
    printed = process("run", "-t", "ad", "-m", "lstm", "--debug")
    assert printed.code != 0
    assert "Traceback" in printed.err and "UnknownName" in printed.err
