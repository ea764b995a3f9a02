"""Studies: TOML in and out, what is refused, narrowing, and the built-in ones."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnarena.core.components import catalogue
from nnarena.core.errors import ArenaError, UnknownName
from nnarena.core.options import Choice, parse_choices
from nnarena.core.protocol import PUBLISHED, Protocol
from nnarena.core.study import (
    QUICK,
    STUDIES,
    Grid,
    Study,
    built_in_studies,
    dump_toml,
    find_study,
    load_toml,
    read_study,
)


def grid(tasks: str, models: str, optimizers: str = "adam") -> Grid:
    return Grid(*(tuple(parse_choices([names])) for names in (tasks, models, optimizers)))


def read(tmp_path, text: str) -> Study:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return find_study(str(path))


# ---------------------------------------------------------------------------------------------- round trips

texts = st.text(st.characters(codec="utf-8"), max_size=20)
options = st.dictionaries(
    st.sampled_from(["a", "b"]), st.integers() | st.booleans() | st.sampled_from(["x", "y z", "ü'"]), max_size=2
)
choices = st.lists(st.builds(Choice, st.sampled_from(["lstm", "a/b.py:Net"]), options), min_size=1, max_size=3)
protocols = st.builds(
    Protocol,
    epochs=st.integers(1, 10**6),
    samples=st.none() | st.integers(1, 10**6),
    lr=st.none() | st.floats(0, exclude_min=True, allow_nan=False),
    plateau_factor=st.floats(0, 1, exclude_min=True, exclude_max=True),
    min_delta=st.floats(0, 1),
    schedule=st.just("steps"),
    milestones=st.sets(st.integers(1, 999), min_size=1, max_size=3).map(lambda epochs: tuple(sorted(epochs))),
    select=st.sampled_from(["best", "last"]),
    watch_test=st.booleans(),
    precision=st.sampled_from(["float32", "tf32", "bf16"]),
    timeout=st.none() | st.floats(0, exclude_min=True, allow_nan=False),
)
grids = st.builds(Grid, choices.map(tuple), choices.map(tuple), choices.map(tuple))


@given(
    st.builds(
        Study,
        name=texts,
        grids=st.lists(grids, max_size=3).map(tuple),
        seeds=st.integers(1, 99),
        protocol=protocols,
        title=texts,
        source=texts,
        published=texts,
        missing=st.lists(texts, max_size=2).map(tuple),
        quick=st.just(QUICK),
    )
)
@example(Study('\x7f\x00\x1f\\"\u2028é', (grid("add", "lstm"),), protocol=Protocol(lr=1e-7)))
@example(Study("endless", (grid("add", "lstm"),), protocol=Protocol(timeout=float("inf"))))
def test_a_frozen_study_comes_back(study):
    again = load_toml(dump_toml(study))
    assert again == study
    assert dump_toml(again) == dump_toml(study)


@pytest.mark.parametrize("name", sorted(built_in_studies()))
def test_built_in_studies_are_whole(name):
    study = find_study(name)
    assert (study.name, study.source) == (name, name)
    assert len(study.title) > 20
    trials = study.trials()
    assert len(trials) == len({trial.id for trial in trials}) == len(study.cells()) * study.seeds
    quick = study.quickly()
    assert 0 < len(quick.trials()) <= len(trials)
    assert quick.protocol.epochs < study.protocol.epochs
    frozen = load_toml(dump_toml(study))
    assert [trial.id for trial in frozen.trials()] == [trial.id for trial in trials]


def test_the_poster_is_the_published_grid():
    study = find_study("poster")
    assert study.protocol == PUBLISHED and study.seeds == 3 and study.published == "poster.csv"
    assert {choice.ref for choice in study.grids[0].tasks} == {"add", "memory", "mnist", "activity", "walker"}
    assert not study.missing and len({choice.ref for part in study.grids for choice in part.models}) == 15
    assert len(study.trials()) == 3 * 71
    assert {trial.options["optimizer"]["eps"] for trial in study.trials()} == {1e-7}
    for trial in study.trials():
        if trial.task.ref in ("activity", "walker"):
            assert trial.options["task"]["split"] == "published"


def test_a_model_that_nobody_published_is_a_column_more_of_the_poster():
    poster = find_study("poster")
    extra = poster.narrowed([], [Choice("attention_split")], [])
    assert {cell.task.ref for cell in extra.cells()} == {"add", "memory", "mnist", "activity", "walker", "cell"}
    assert len(extra.trials()) == 6 * 3 and extra.protocol == poster.protocol and extra.published == poster.published
    assert not {trial.id for trial in extra.trials()} & {trial.id for trial in poster.trials()}
    assert "attention_split" not in (STUDIES / "poster.csv").read_text()
    tasks = {trial.task: trial.options["task"] for trial in poster.trials()}
    assert all(tasks[trial.task] == trial.options["task"] for trial in extra.trials())


def test_the_study_of_orthadam_is_the_published_one():
    study = find_study("orthadam")
    assert len(study.cells()) == 5 * 3 * 5 and study.tidied().grids == study.grids
    protocol = study.protocol
    assert (protocol.epochs, protocol.batch_size, protocol.lr, protocol.milestones) == (186, 128, 3e-3, (81, 122))
    assert protocol.stop_patience >= protocol.epochs and protocol.select == "last"
    for trial in study.cells():
        assert trial.options["model"]["stem"] == "imagenet" and trial.options["task"]["normalise"] == "cifar"
        assert trial.options["optimizer"]["weight_decay"] == 3e-4 and trial.options["optimizer"]["lr"] == 3e-3
    with (STUDIES / study.published).open() as file:
        figures = list(csv.DictReader(file))
    cells = {trial.cell for trial in study.cells()}
    assert len(figures) == 2 * 3 * 3 * 5 and {figure["metric"] for figure in figures} == {
        "accuracy",
        "best_on_test.accuracy",
    }
    for figure in figures:
        assert (figure["task"], figure["model"], figure["optimizer"]) in cells, "a figure that no row has"
    best = {(f["task"], f["model"], f["optimizer"]): float(f["mean"]) for f in figures if "best" in f["metric"]}
    for figure in figures:
        assert float(figure["mean"]) <= best[figure["task"], figure["model"], figure["optimizer"]]
    quick = study.quickly()
    assert {trial.task.ref for trial in quick.trials()} == {"digits_image"} and len(quick.trials()) == 15


def test_the_study_of_element_wise_attention_is_the_published_one():
    study = find_study("attention-wise")
    cells = {trial.cell: trial for trial in study.cells()}
    assert len(cells) == 15 and study.seeds == 3 and study.tidied().grids == study.grids
    protocol = study.protocol
    assert (protocol.epochs, protocol.lr, protocol.select) == (10, 1e-3, "last")
    assert min(protocol.stop_patience, protocol.plateau_patience) > protocol.epochs, "nothing but the epochs ends it"
    assert protocol.watch_test and protocol.watch_gradient
    for (task, model, optimizer), trial in cells.items():
        assert trial.protocol.batch_size == {"fashion_mnist": 4096, "cifar10": 1024}[trial.task.ref]
        assert trial.options["task"]["normalise"] == "off"
        assert trial.options["optimizer"] | {"lr_of": ""} == catalogue("optimizer")["adam"].resolve({}) | {"lr_of": ""}
        assert trial.options["optimizer"].get("lr_of", "attention:0.1") == "attention:0.1"
        assert ("lr_of" in optimizer) or "no_skip" not in model, f"{model} on {task} needs its own rate"
    with (STUDIES / study.published).open() as file:
        figures = list(csv.DictReader(file))
    assert {(figure["task"], figure["model"], figure["optimizer"]) for figure in figures} <= cells.keys()
    accuracies = [figure for figure in figures if figure["metric"] == "accuracy"]
    assert len(accuracies) == 14, "all of the paper's table, and both of its appendix"
    assert [figure["model"][-2] for figure in figures if figure["metric"] == "collapsed"] == ["A", "C"]
    losses = {figure["model"]: float(figure["mean"]) for figure in figures if figure["metric"] == "training.loss"}
    assert losses["attention_wise[config=A]"] == pytest.approx(np.log(10), abs=1e-4), "15 batches of ln 10"
    quick = study.quickly()
    assert {trial.task.ref for trial in quick.trials()} == {"digits_image"} and len(quick.trials()) == 12


def test_what_a_study_of_ours_lists_and_is_not_here_yet_is_said_and_not_run(monkeypatch):
    less = {name: component for name, component in catalogue("model").items() if name != "unitary_rnn"}
    monkeypatch.setattr("nnarena.core.study.catalogue", lambda kind: less)
    study = find_study("poster")
    assert study.missing == ("unitary_rnn",)
    assert "unitary_rnn" not in {choice.ref for part in study.grids for choice in part.models}
    for name in ("unitary_rnn", "unitary_rnn[hidden_size=4]"):
        with pytest.raises(ArenaError, match="lists 'unitary_rnn', but this version does not have it yet"):
            study.narrowed([], parse_choices([name]), [])
    assert study.narrowed([], parse_choices(["gru"]), []).missing == ()


# ----------------------------------------------------------------------------------------------- study files


def test_a_study_file_is_read_with_its_defaults(tmp_path):
    study = read(tmp_path, 'tasks = ["add[length=[10,20]]"]\nmodels = ["lstm", "gru"]')
    assert (study.name, study.seeds, study.protocol, dict(study.quick)) == ("mine", 1, PUBLISHED, dict(QUICK))
    assert study.source.endswith("mine.toml")
    assert [str(choice) for choice in study.grids[0].tasks] == ["add[length=10]", "add[length=20]"]
    assert study.grids[0].optimizers == (Choice("adam"),)
    assert len(study.trials()) == 4


def test_a_study_file_sets_everything(tmp_path):
    study = read(
        tmp_path,
        'name = "other"\ntitle = "Wer erinnert sich länger?"\nseeds = 2\n[protocol]\nepochs = 3\nlr = 1\n'
        '[quick]\nseeds = 1\nepochs = 2\n[[grid]]\ntasks = ["add"]\nmodels = ["lstm"]\n'
        '[[grid]]\ntasks = ["memory"]\nmodels = ["gru"]\noptimizers = ["sgd"]\n',
    )
    assert (study.name, study.title, study.seeds) == ("other", "Wer erinnert sich länger?", 2)
    assert study.protocol.settings() == {"epochs": 3, "lr": 1.0}
    assert [trial.cell for trial in study.trials()][::2] == [("add", "lstm", "adam"), ("memory", "gru", "sgd")]
    quick = study.quickly()
    assert (quick.seeds, quick.protocol.epochs, quick.protocol.lr) == (1, 2, 1.0)


def test_a_rehearsal_may_have_other_tasks(tmp_path):
    study = read(
        tmp_path,
        '[[grid]]\ntasks = ["mnist", "activity"]\nmodels = ["lstm"]\n[[grid]]\ntasks = ["walker"]\nmodels = ["lstm"]\n'
        '[protocol]\nschedule = "steps"\nmilestones = [5]\n[quick]\nepochs = 2\nmilestones = [1]\ntasks = ["digits"]\n',
    )
    quick = study.quickly()
    assert [trial.cell for trial in quick.trials()] == [("digits", "lstm", "adam")]
    assert (quick.protocol.epochs, quick.protocol.milestones) == (2, (1,))
    asked = study.narrowed(parse_choices(["mnist"]), [], []).quickly()
    assert [trial.cell[0] for trial in asked.trials()] == ["mnist"], "who names a task gets it"


BASE = 'tasks = ["add"]\nmodels = ["lstm"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tasks = [", "is not TOML"),
        ("a = 1\na = 2", "is not TOML"),
        (BASE + "seed = 3", "there is no key 'seed'; did you mean 'seeds'"),
        (BASE + "seeds = '3'", "seeds must be of type int, not '3'"),
        (BASE + "seeds = true", "seeds must be of type int, not True"),
        (BASE + "seeds = 0", "at least one seed, not 0"),
        (BASE + "title = 3", "title must be of type str"),
        (BASE + "protocol = 3", "protocol must be a table, not 3"),
        (BASE + "[protocol]\nepoch = 3", "no option 'epoch'; did you mean 'epochs'"),
        (BASE + "[protocol]\nepochs = 'x'", "option 'epochs' takes a whole number, not x"),
        (BASE + "[quick]\nepocs = 3", "no option 'epocs'; did you mean 'epochs'"),
        (BASE + "[quick]\nseeds = 'x'", "seeds"),
        (BASE + "[quick]\ntasks = 'add'", "tasks must be a list of names"),
        ('tasks = "add"\nmodels = ["lstm"]', "tasks must be a list of names"),
        ('tasks = ["add"]', "models must be a list of names"),
        ('tasks = ["add"]\nmodels = []', "models must be a list of names"),
        ('tasks = ["add"]\nmodels = [3]', "models must be a list of names"),
        (BASE + "optimizers = []", "optimizers must be a list of names"),
        (BASE + '[[grid]]\ntasks = ["add"]\nmodels = ["gru"]', "either at the top or in"),
        ("grid = 3", "grid must be of type list"),
        ("grid = [3]", r"A \[\[grid\]\] is a table"),
        ('[[grid]]\ntask = ["add"]', "there is no key 'task'; did you mean 'tasks'"),
        ('tasks = ["add["]\nmodels = ["lstm"]', "not closed"),
    ],
)
def test_a_wrong_study_file_is_a_sentence_that_names_it(tmp_path, text, sentence):
    with pytest.raises(ArenaError, match=sentence) as caught:
        read(tmp_path, text)
    assert "mine.toml" in str(caught.value)


def test_a_file_of_another_encoding_is_a_sentence(tmp_path):
    (tmp_path / "mine.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(ArenaError, match="is not TOML"):
        read_study(tmp_path / "mine.toml", "mine")


def test_a_study_that_is_not_there():
    with pytest.raises(UnknownName, match="There is no study 'postr'; did you mean 'poster'"):
        find_study("postr")
    with pytest.raises(ArenaError, match=r"There is no study file 'nowhere\.toml'"):
        find_study("nowhere.toml")


def test_a_wrong_name_in_a_study_comes_out_when_its_trials_are_made(tmp_path):
    study = read(tmp_path, 'tasks = ["add"]\nmodels = ["lsmt"]')
    with pytest.raises(UnknownName, match="did you mean 'lstm'"):
        study.trials()


@given(st.text(max_size=60))
def test_any_text_is_a_study_or_a_sentence(text):
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    from nnarena.core.study import _study

    try:
        _study(table, "x", "x.toml")
    except ArenaError as error:
        assert str(error)


# ------------------------------------------------------------------------------------------------- narrowing

TWO = Study("s", (grid("add,memory[length=5]", "lstm,gru,gru[hidden_size=8]", "adam,sgd"), grid("cell", "lstm")))


def cells(study: Study) -> set[tuple[str, str, str]]:
    return {trial.cell for trial in study.cells()}


def test_nothing_asked_leaves_all():
    assert TWO.narrowed([], [], []) == TWO


def test_a_name_takes_all_its_variants_and_keeps_their_options():
    study = TWO.narrowed(parse_choices(["memory"]), parse_choices(["gru"]), parse_choices(["adam"]))
    assert cells(study) == {("memory[length=5]", model, "adam") for model in ("gru", "gru[hidden_size=8]")}


def test_a_variant_takes_itself_only():
    study = TWO.narrowed([], parse_choices(["gru[hidden_size=8]"]), parse_choices(["adam"]))
    assert {cell[1] for cell in cells(study)} == {"gru[hidden_size=8]"}


def test_a_name_from_one_grid_does_not_enter_the_others():
    assert {cell[0] for cell in cells(TWO.narrowed([], parse_choices(["gru"]), []))} == {"add", "memory[length=5]"}
    assert cells(TWO.narrowed(parse_choices(["cell"]), [], [])) == {("cell", "lstm", "adam")}


def test_other_options_add_to_those_of_the_study_where_it_lists_the_name():
    study = TWO.narrowed(parse_choices(["memory[samples=9]"]), parse_choices(["gru"]), parse_choices(["adam"]))
    assert {cell[0] for cell in cells(study)} == {"memory[length=5,samples=9]"}
    assert cells(TWO.narrowed(parse_choices(["cell[length=7]"]), [], [])) == {("cell[length=7]", "lstm", "adam")}
    assert {cell[0] for cell in cells(TWO.narrowed(parse_choices(["memory[length=6]"]), [], []))} == {
        "memory[length=6]"
    }


def test_a_foreign_name_joins_every_grid():
    study = TWO.narrowed([], parse_choices(["transformer"]), [])
    assert {cell[:2] for cell in cells(study)} == {
        (task, "transformer") for task in ("add", "memory[length=5]", "cell")
    }


def test_what_meets_nowhere_is_empty():
    assert TWO.narrowed(parse_choices(["cell"]), parse_choices(["gru"]), []).cells() == []


# ---------------------------------------------------------------------------------------------------- trials


def test_rivals_stand_next_to_each_other_and_doubles_count_once():
    study = Study("s", (grid("add,memory", "lstm,gru"), grid("memory,add", "gru,gru")), seeds=2)
    order = [(trial.task.ref, trial.seed) for trial in study.trials()]
    assert order == [("add", 0)] * 2 + [("add", 1)] * 2 + [("memory", 0)] * 2 + [("memory", 1)] * 2


def test_more_seeds_and_other_settings():
    study = TWO.with_(seeds=3, epochs=7)
    assert (study.seeds, study.protocol.epochs) == (3, 7)
    assert study.with_(lr=0.1).protocol.settings() == {"epochs": 7, "lr": 0.1}
    assert replace(TWO, quick={"epochs": 2}).quickly().seeds == 1
    with pytest.raises(ArenaError, match="did you mean 'epochs'"):
        TWO.with_(epoch=3)
