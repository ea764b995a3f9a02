"""A trial's identity: the same when the same is asked, another when anything that matters is."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption
from nnarena.core.options import Option, Value, parse_choice
from nnarena.core.protocol import PUBLISHED, Protocol
from nnarena.core.trial import KINDS, make_trial, slug, trial_from_dict


def make(task="add", model="lstm", optimizer="adam", study="s", seed=0, **settings):
    return make_trial(study, *(parse_choice(t)[0] for t in (task, model, optimizer)), Protocol.of(settings), seed)


def other(option: Option) -> Value:
    """Another value that the option takes."""
    if isinstance(option.default, bool):
        return not option.default
    if isinstance(option.default, (int, float)):
        return option.default * 2 + 2
    if isinstance(option.default, tuple):
        return tuple(value / 2 for value in option.default)
    if option.default is None and option.annotation in ("int | None", "bool | None"):
        return 7 if "int" in option.annotation else True
    if option.default is None and "float" in option.annotation:
        return (0.5, 0.5) if "tuple" in option.annotation else 0.5
    if option.annotation == "str":
        return "'weight:0.5'"
    words = [word.strip("'\" ") for word in option.annotation.removeprefix("Literal[").removesuffix("]").split(",")]
    return next(word for word in words if word != option.default)


def rendered(value: Value) -> str:
    return str(value).replace(" ", "").replace("True", "true").replace("False", "false") or "''"


EVERY_OPTION = [
    pytest.param(kind, component.name, option, id=f"{component.name}-{option.name}")
    for kind in KINDS
    for component in catalogue(kind).values()
    for option in component.options
]


@pytest.mark.parametrize(("kind", "name", "option"), EVERY_OPTION)
def test_every_option_is_part_of_the_identity_and_an_explicit_default_is_not(kind, name, option):
    plain = make(**{kind: name})
    assert make(**{kind: f"{name}[{option.name}={rendered(option.default)}]"}).id == plain.id
    changed = make(**{kind: f"{name}[{option.name}={rendered(other(option))}]"})
    assert changed.id != plain.id
    assert (changed.options[kind], changed.protocol) != (plain.options[kind], plain.protocol)


def changed_setting(name: str) -> dict[str, Value]:
    """Another value of a setting, and what it needs beside it."""
    default = getattr(PUBLISHED, name)
    if name == "init":
        return {"init": "he"}
    if name == "lr_decay":
        return {"schedule": "exponential", "lr_decay": 0.5}
    if name == "warmup":
        return {"warmup": 3}
    if name == "full_batch":
        return {"full_batch": True}
    if name in ("dropout", "label_smoothing", "label_noise"):
        return {name: 0.5}
    if name in ("schedule", "milestones"):
        return {"schedule": "steps", "milestones": (81, 122)}
    if isinstance(default, (str, bool)):
        return {name: other(next(option for option in Protocol.options() if option.name == name))}
    return {name: 7 if default is None else default * 2}


@pytest.mark.parametrize("name", sorted(PUBLISHED.as_dict()))
def test_every_setting_of_the_protocol_is_part_of_the_identity(name):
    base = {"schedule": "steps", "milestones": (81,)} if name == "step_factor" else {}
    base |= {"model": "attention_split"} if name == "dropout" else {}  # which has it
    changed = make(**base | changed_setting(name))
    assert changed.id != make(**base).id
    assert make(**base | {name: getattr(PUBLISHED, name)}).id == make(**base).id
    again = trial_from_dict(json.loads(json.dumps(changed.as_dict())))
    assert again == changed and again.id == changed.id


def test_all_that_is_asked_is_part_of_the_identity():
    trials = [
        make(),
        make(study="t"),
        make(seed=1),
        make(task="memory"),
        make(model="gru"),
        make(optimizer="sgd"),
        make(model="lstm[hidden_size=8]"),
    ]
    assert len({trial.id for trial in trials}) == len(trials)
    assert all(len(trial.id) == 12 and int(trial.id, 16) >= 0 for trial in trials)


def test_a_known_identity_never_changes():
    # When this fails, all stored trials of everybody will run again: change it knowingly.
    assert make().id == "176129d33153"


SAME = [
    ("add[length=10,samples=500]", "add[samples=500,length=10]"),
    ("add[length=100]", "add"),
    ("add[length=10]", "add[length=10.0]"),
]


@pytest.mark.parametrize(("one", "another"), SAME)
def test_one_identity_means_one_folder_and_one_set_of_seeds(one, another):
    a, b = make(one), make(another)
    assert a.id == b.id
    assert a.axis("data") == b.axis("data"), "the same trial would see other data"
    assert a.path == b.path, "the same trial would be done twice"


@given(st.integers(0, 99), st.sampled_from(["data", "split", "start", "order"]), st.integers(0, 9))
def test_rivals_share_all_seeds(seed, purpose, epoch):
    rivals = [
        make(model=model, optimizer=optimizer, seed=seed)
        for model in ("lstm", "gru[hidden_size=3]", "transformer")
        for optimizer in ("adam", "sgd[lr=0.1]")
    ]
    assert len({trial.axis(purpose, epoch) for trial in rivals}) == 1


def test_seeds_differ_by_study_task_repetition_and_purpose():
    trials = [make(), make(study="t"), make(task="memory"), make(task="add[length=10]"), make(seed=1)]
    seeds = [trial.axis(purpose) for trial in trials for purpose in ("data", "split")]
    assert len(set(seeds)) == len(seeds)
    assert make().axis("order", 0) != make().axis("order", 1)


def test_the_protocols_samples_and_learning_rate_reach_who_has_such_an_option():
    trial = make(samples=77, lr=0.5)
    assert (trial.options["task"]["samples"], trial.options["optimizer"]["lr"]) == (77, 0.5)
    explicit = make("add[samples=9]", optimizer="adam[lr=0.1]", samples=77, lr=0.5)
    assert (explicit.options["task"]["samples"], explicit.options["optimizer"]["lr"]) == (9, 0.1)


def test_a_task_may_have_a_batch_size_of_its_own():
    trial, plain = make("add[batch_size=32]", batch_size=64), make(batch_size=32)
    assert trial.protocol.batch_size == 32 and "batch_size" not in trial.options["task"]
    assert trial.cell[0] == "add[batch_size=32]", "tables say it"
    assert (trial.id, trial.path, trial.axis("data")) == (plain.id, plain.path, plain.axis("data"))
    assert make("add[batch_size=none]", batch_size=64).id == make(batch_size=64).id
    with pytest.raises(BadOption, match="batch_size must be above 0, not 0"):
        make("add[batch_size=0]")


@pytest.mark.parametrize("means_it", [True, False])
def test_so_may_ones_own_unless_it_means_something_else_by_it(means_it, tmp_path):
    argument = ", batch_size=7" if means_it else ""
    (tmp_path / "own.py").write_text(
        f"import numpy as np\ndef mine(rng{argument}): return np.zeros((9, 3, 2)), np.zeros(9)"
    )
    trial = make(f"{tmp_path / 'own.py'}:mine[batch_size=3]", batch_size=64)
    assert trial.protocol.batch_size == (64 if means_it else 3)
    assert trial.options["task"] == ({"batch_size": 3} if means_it else {})


@pytest.mark.parametrize(
    "trial",
    [
        make(),
        make("add[batch_size=8]"),
        make("add[length=10]", "gru[hidden_size=3]", "adam[betas=(0.5,0.9),eps=1e-7]", seed=4, lr=0.1, epochs=2),
    ],
)
def test_a_request_survives_json(trial):
    again = trial_from_dict(json.loads(json.dumps(trial.as_dict())))
    assert again == trial and again.id == trial.id and again.path == trial.path


def test_ones_own_source_is_part_of_the_identity(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("def net(spec, depth: int = 1): ...")
    before = make(model=f"{path}:net[depth=2]")
    assert before.cell == ("add", "net[depth=2]", "adam")
    assert list(before.fingerprints) == ["model"]
    path.write_text("def net(spec, depth: int = 1): ...  # better")
    assert make(model=f"{path}:net[depth=2]").id != before.id


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200))
@example("量" * 120)
@example("..")
@example("a" * 300)
def test_a_label_becomes_a_name_that_file_systems_take(label):
    name = slug(label)
    assert name and len(name.encode()) <= 255
    assert not set(name) & set('/\\:*?"<>|\0\n') and name not in (".", "..")


def test_the_folder_tells_what_is_in_it():
    trial = make("add[length=10]", "gru", seed=3)
    assert trial.path == f"add[length=10]/gru/adam/{trial.id}"


def test_one_trial_has_one_folder_and_one_set_of_seeds_however_it_is_typed() -> None:
    plain, wordy = make(), make("add[length=100]", "lstm[hidden_size=64]")
    assert (plain.id, plain.path, plain.axis("data")) == (wordy.id, wordy.path, wordy.axis("data"))
    assert wordy.cell == ("add[length=100]", "lstm[hidden_size=64]", "adam")
