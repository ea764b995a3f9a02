"""A study's folder: made, opened, grown, refused; trials found."""

from __future__ import annotations

import os

import pytest
from results_helpers import finish, study

from nnarena.core.errors import StoreError
from nnarena.core.options import parse_choices
from nnarena.core.study import STUDIES, find_study
from nnarena.results.store import PUBLISHED, STUDY, Store


def test_a_store_is_made_and_opened(tmp_path):
    made = Store.create(tmp_path / "deep" / "store", study(seeds=2, title="Wer „gewinnt“?"))
    opened = Store.open(tmp_path / "deep" / "store")
    assert opened.study == made.study
    assert [trial.id for trial in opened.study.trials()] == [trial.id for trial in made.study.trials()]
    assert list(opened.folders()) == [] and len(opened.pending(opened.study.trials())) == 4
    assert len(opened.table()) == 0


def test_making_it_again_changes_nothing(tmp_path):
    Store.create(tmp_path, study())
    before = (tmp_path / STUDY).read_text()
    for _ in range(3):
        Store.create(tmp_path, study())
    assert (tmp_path / STUDY).read_text() == before


@pytest.mark.parametrize(
    "larger", [study(models="lstm,gru,transformer"), study(seeds=3), study(tasks="add,memory"), study("add,memory")]
)
def test_a_larger_study_of_the_same_name_grows_the_store(tmp_path, larger):
    store = Store.create(tmp_path, study())
    done = store.study.trials()[0]
    finish(store, done)
    store = Store.create(tmp_path, larger)
    assert Store.open(tmp_path).study == larger
    trials = larger.trials()
    assert len(store.pending(trials)) == len(trials) - 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (study(name="yours"), "'mine', not 'yours'"),
        (study().with_(epochs=3), "its epochs is 128, not 3"),
        (study().with_(lr=0.1), "its lr is None, not 0.1"),
        (study(models="lstm"), "it has gru on add"),
        (study(optimizers="sgd"), "it has"),
        (study(models="lstm,gru", seeds=1), "it has 2 seeds, not 1"),
    ],
)
def test_another_study_is_refused_with_the_reason_and_nothing_is_touched(tmp_path, other, why):
    Store.create(tmp_path, study(seeds=2))
    before = (tmp_path / STUDY).read_text()
    with pytest.raises(StoreError, match="belongs to another study") as caught:
        Store.create(tmp_path, other)
    assert why in str(caught.value) and "choose another --out" in str(caught.value)
    assert (tmp_path / STUDY).read_text() == before


def test_parts_of_a_named_study_meet_in_one_folder(tmp_path):
    whole = find_study("quickstart")
    parts = [whole.narrowed([], parse_choices([name]), []) for name in ("gru", "lstm")]
    for part in (*parts, *parts, *parts):
        store = Store.create(tmp_path, part)
    ids = {trial.id for part in parts for trial in part.trials()}
    assert {trial.id for trial in store.study.trials()} == ids
    assert len(store.study.grids) == 2, "asking for the same again adds nothing"
    assert {trial.id for trial in Store.create(tmp_path, whole).study.trials()} == {t.id for t in whole.trials()}


def test_published_figures_come_along(tmp_path):
    Store.create(tmp_path, find_study("poster"))
    assert (tmp_path / PUBLISHED).read_text() == (STUDIES / "poster.csv").read_text()


def test_ones_own_published_figures_lie_beside_ones_own_study(tmp_path):
    figures = "task,model,metric,mean,std,runs\nadd,lstm,mse,0.1,,1\n"
    (tmp_path / "mine.csv").write_text(figures)
    (tmp_path / "mine.toml").write_text('tasks = ["add"]\nmodels = ["lstm"]\npublished = "mine.csv"\n')
    Store.create(tmp_path / "store", find_study(str(tmp_path / "mine.toml")))
    assert (tmp_path / "store" / PUBLISHED).read_text() == figures


def test_published_figures_that_are_not_there_are_a_sentence(tmp_path):
    with pytest.raises(StoreError, match=r"nowhere\.csv"):
        Store.create(tmp_path / "store", study(published="nowhere.csv"))


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="is not empty and holds no study"):
        Store.create(tmp_path, study())
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(StoreError, match="x is a file; --out wants a folder"):
        Store.create(tmp_path / "x", study())


def test_opening_what_is_no_store_says_how_to_make_one(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match=r"holds no study: `nnarena run … --out "):
            Store.open(path)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"name = ",
        b"\xff\xfe",
        b'name = "x"',
        b'name = "x"\nprotocol = 3',
        b"[protocol]\nepoch = 3\n[[grid]]\na = 1",
    ],
)
def test_a_damaged_study_file_is_a_sentence(tmp_path, damage):
    Store.create(tmp_path, study())
    (tmp_path / STUDY).write_bytes(damage)
    with pytest.raises(StoreError, match=r"study\.toml is damaged"):
        Store.open(tmp_path)


def test_trials_are_found_by_id_its_beginning_or_their_path(tmp_path):
    store = Store.create(tmp_path, study(seeds=3))
    trials = store.study.trials()
    for trial in trials:
        finish(store, trial)
    for trial in trials:
        path = store.trial_folder(trial).path
        for name in (trial.id, trial.id[:8], trial.path, str(path), f"{path}/"):
            assert store.find(name).path == path
            assert store.find(name).path == store.trial_folder(trial).path


def test_an_unknown_or_ambiguous_trial_is_a_sentence(tmp_path):
    store = Store.create(tmp_path, study())
    for name in ("aaaa11111111", "aaaa22222222"):
        (tmp_path / "trials" / "add" / "lstm" / "adam" / name).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"2 trials of .* begin with 'aaaa'; write more of the id"):
        store.find("aaaa")
    assert store.find("aaaa1").path.name == "aaaa11111111"
    for name in ("zzz", "", "/"):
        with pytest.raises(StoreError, match=r"has no trial .*; there are add/lstm/adam/aaaa11111111, .*22\."):
            store.find(name)
    for number in range(6):
        (tmp_path / "trials" / "add" / "lstm" / "adam" / f"bbbb{number}").mkdir()
    with pytest.raises(StoreError, match=r"bbbb3 and 2 more\.$"):
        store.find("zzz")
    with pytest.raises(StoreError, match=r"has no trial 'zzz', and no other yet\.$"):
        Store.create(tmp_path / "new", study()).find("zzz")


def test_what_is_done_is_not_pending(tmp_path):
    store = Store.create(tmp_path, study(seeds=2))
    trials = store.study.trials()
    finish(store, trials[1], status="failed", error="x")
    assert store.pending(trials) == [trials[0], *trials[2:]]
    assert [folder.path.name for folder in store.folders()] == [trials[1].id]


def test_a_study_does_not_run_twice_at_once(tmp_path, monkeypatch):
    store = Store.create(tmp_path, study())
    with store.running():
        from nnarena.results import store as module

        locked = module.TrialFolder.locked
        monkeypatch.setattr(module.TrialFolder, "locked", lambda self, patience, busy: locked(self, 0.1, busy))
        with pytest.raises(StoreError, match="Another process runs the study in"), store.running():
            pass
