"""Options that every model or optimizer takes: on the command line, in the protocol, and in a trial's identity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nnarena.core.common import COMMON, OF_ONE, common_names
from nnarena.core.components import check, tidy
from nnarena.core.errors import ArenaError, UnknownName
from nnarena.core.options import Choice, parse_choice
from nnarena.core.protocol import LATER, PUBLISHED, Protocol
from nnarena.core.trial import make_trial, trial_from_dict


def trial(model="gru", optimizer="adam", task="digits", **settings):
    choices = [parse_choice(name)[0] for name in (task, model, optimizer)]
    return make_trial("tests", *choices, Protocol.of(settings), 0)


@pytest.mark.parametrize("kind", COMMON)
def test_each_is_a_setting_of_the_protocol_too_and_counts_only_where_it_is_set(kind):
    for option in COMMON[kind]:
        assert option.rare and option.default is None and option.doc
        if option.name in OF_ONE:
            assert option.name == "batch_size" or not hasattr(PUBLISHED, option.name)
            continue
        assert option.name in LATER and getattr(PUBLISHED, option.name) is None
        assert option.name not in PUBLISHED.identity()


def test_a_component_knows_its_own_options_from_the_common_ones():
    component, options = check("model", Choice("gru", {"init": "he", "hidden_size": 4}))
    assert options == {"hidden_size": 4, "init": "he"}
    assert component.own(options) == {"hidden_size": 4} and component.common(options) == {"init": "he"}
    assert component.resolve({}) == {"hidden_size": 80}
    assert "init" in common_names("model") and "init" not in common_names("optimizer")


def test_the_protocol_reaches_every_model_that_says_nothing_else():
    assert trial(init="he").options["model"]["init"] == "he"
    assert trial("gru[init=uniform]", init="he").options["model"]["init"] == "uniform"
    assert "init" not in trial("gru[init=none]", init="he").options["model"]
    assert "init" not in trial().options["model"]


def test_identity_and_names():
    plain, set_ = trial(), trial("gru[init=he]")
    assert plain.id != set_.id and set_.cell[1] == "gru[init=he]"
    assert trial(init="he").id not in (plain.id, set_.id)
    assert trial("gru[init=he]", init="he").name_of("model") == "gru", "what goes without saying is not in the name"
    assert plain.axis("start") == set_.axis("start"), "rivals share their seeds"
    for one in (plain, set_, trial(init="he")):
        assert trial_from_dict(one.as_dict()).id == one.id
    assert (
        tidy("model", Choice("gru", {"init": "he", "hidden_size": 80.0}))
        == parse_choice("gru[hidden_size=80,init=he]")[0]
    )


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ("gru[init=hee]", {}, "There is no initialiser 'hee'; did you mean 'he'"),
        ("gru", {"init": "nothing"}, "There is no initialiser 'nothing'; there are glorot_normal, "),
        ("gru", {"init": "my_file.py:mine"}, "There is no initialiser 'my_file.py:mine'"),
        ("gru[init=3]", {}, "gru: option 'init' takes a text or none, not 3"),
        ("gru[l2=-1]", {}, "l2 must be a number that is not negative, not -1"),
        ("gru[label_smoothing=1]", {}, "label_smoothing must lie between 0 and 1, not 1"),
        ("gru", {"dropout": 0.2}, "gru has no option dropout, so dropout=0.2 cannot reach it"),
        (
            "gru",
            {"l2": 1e-3, "optimizer": "adamw"},
            r"l2 and adamw's weight_decay=0.01 both shrink .* adamw\[weight_decay=0\]",
        ),
        (
            "gru[l2=0.1]",
            {"optimizer": "sgd[weight_decay=0.1]"},
            "l2 and sgd's weight_decay=0.1 both shrink the weights",
        ),
        ("gru", {"clip_value": 1, "optimizer": "sgd[clip_norm=1]"}, "clip_norm and clip_value are two ways"),
    ],
)
def test_a_wrong_value_is_a_sentence(model, settings, sentence):
    with pytest.raises(ArenaError, match=sentence):
        trial(model, **settings)
    assert issubclass(UnknownName, ArenaError)


def test_an_option_of_ones_own_hides_the_common_one(tmp_path):
    (tmp_path / "own.py").write_text("def net(spec, init: int = 3): ...")
    component, options = check("model", Choice(f"{tmp_path}/own.py:net", {"init": 4}))
    assert component.own(options) == {"init": 4} and component.common(options) == {}


def test_where_the_name_means_something_else_the_protocol_still_asks():
    """`attention_wise[init=scaled]` is its own option."""
    one = trial("attention_wise[init=scaled]", task="digits_image", init="he")
    assert one.options["model"]["init"] == "scaled" and one.common("model") == {"init": "he"}
    assert trial("attention_wise", task="digits_image").common("model") == {}
    assert trial("gru[init=uniform]", init="he").common("model") == {"init": "uniform"}


def test_dropout_reaches_who_has_it_and_says_nothing_else():
    assert trial("attention_split", dropout=0.3).options["model"]["dropout"] == 0.3
    assert trial("attention_split[dropout=0]", dropout=0.3).options["model"]["dropout"] == 0
    assert trial("attention_split").options["model"]["dropout"] == 0


def test_decay_without_l2_and_l2_without_decay_are_fine():
    assert trial(optimizer="adamw[weight_decay=0]", l2=1e-3).common("model") == {"l2": 1e-3}
    assert trial("gru[l2=0]", optimizer="adamw", l2=1e-3).common("model") == {"l2": 0.0}


def test_seeds_may_share_their_data_and_nothing_else():
    one, two = (replace(trial(same_data=True), seed=seed) for seed in (0, 1))
    for purpose in ("data", "split", "label_noise"):
        assert one.axis(purpose) == two.axis(purpose)
        assert replace(trial(), seed=1).axis(purpose) != trial().axis(purpose)
    for purpose in ("start", "init", "order", "noise", "bagging"):
        assert one.axis(purpose, 0) != two.axis(purpose, 0)
