"""The protocol: the published defaults, and what it refuses."""

from __future__ import annotations

import json

import pytest

from nnarena.core.errors import BadOption
from nnarena.core.protocol import PUBLISHED, Protocol


def test_the_defaults_are_the_published_protocol():
    assert PUBLISHED.as_dict() == {
        "epochs": 128,
        "batch_size": 128,
        "full_batch": None,
        "samples": None,
        "lr": None,
        "test_fraction": 0.1,
        "validation_fraction": 0.1,
        "stop_patience": 5,
        "plateau_patience": 2,
        "plateau_factor": 0.1,
        "min_delta": 1e-4,
        "schedule": "plateau",
        "milestones": (),
        "step_factor": 0.1,
        "lr_decay": 0.95,
        "warmup": 0,
        "clip_norm": None,
        "clip_value": None,
        "select": "best",
        "watch_test": False,
        "watch_gradient": False,
        "precision": "float32",
        "init": None,
        "l1": None,
        "l2": None,
        "dropout": None,
        "input_noise": None,
        "weight_noise": None,
        "label_smoothing": None,
        "label_noise": None,
        "bagging": False,
        "same_data": False,
        "watch_training": False,
        "timeout": None,
        "threads": 1,
    }
    assert PUBLISHED.settings() == {}


def test_settings_are_checked_and_only_the_changes_are_kept():
    protocol = Protocol.of({"epochs": 3.0, "lr": 1, "timeout": None, "batch_size": 128})
    assert protocol.settings() == {"epochs": 3, "lr": 1.0}
    assert isinstance(protocol.epochs, int) and isinstance(protocol.lr, float)
    assert Protocol.of(protocol.settings()) == protocol == Protocol.of(protocol.as_dict())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"forcing": "teacher"}, r"no option 'forcing': .* in brackets, as in encoder_decoder\[forcing=teacher\]\."),
        ({"epoch": 3}, "the protocol has no option 'epoch'; did you mean 'epochs'"),
        ({"epochs": 2.5}, "the protocol: option 'epochs' takes a whole number, not 2.5"),
        ({"epochs": True}, "takes a whole number, not true"),
        ({"lr": "fast"}, "option 'lr' takes a number or none, not fast"),
        ({"epochs": 0}, "epochs must be above 0, not 0"),
        ({"batch_size": -1}, "batch_size must be above 0"),
        ({"samples": 0}, "samples must be above 0"),
        ({"threads": 0}, "threads must be above 0"),
        ({"lr": 0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"timeout": -1}, "timeout must be above 0"),
        ({"stop_patience": 0}, "stop_patience must be above 0"),
        ({"plateau_patience": 0}, "plateau_patience must be above 0"),
        ({"plateau_factor": 1}, "plateau_factor must lie between 0 and 1"),
        ({"step_factor": 1}, "step_factor must lie between 0 and 1"),
        ({"schedule": "cosin"}, "option 'schedule' takes plateau or steps or exponential or cosine, not cosin"),
        ({"lr_decay": 0.5}, "lr_decay belongs to schedule=exponential"),
        ({"schedule": "exponential", "lr_decay": 1.0}, "lr_decay must lie between 0 and 1"),
        ({"warmup": 10, "epochs": 10}, "warmup must be fewer epochs than all, which are 10, not 10"),
        ({"warmup": -1}, "warmup must be fewer epochs than all"),
        ({"clip_norm": 0}, "clip_norm must be a number above 0, not 0"),
        ({"clip_value": float("inf")}, "clip_value must be a number above 0"),
        ({"l1": -1e-3}, "l1 must be a number that is not negative"),
        ({"l2": float("inf")}, "l2 must be a number that is not negative"),
        ({"input_noise": float("nan")}, "input_noise must be a number that is not negative"),
        ({"weight_noise": -1}, "weight_noise must be"),
        ({"dropout": 1}, "dropout must lie between 0 and 1"),
        ({"label_smoothing": 1}, "label_smoothing must lie between 0 and 1"),
        ({"label_noise": 1.5}, "label_noise must lie between 0 and 1"),
        ({"clip_norm": 1, "clip_value": 1}, "clip_norm and clip_value are two ways"),
        ({"schedule": "steps"}, "schedule=steps and milestones belong together"),
        ({"milestones": (3, 5)}, "schedule=steps and milestones belong together"),
        ({"schedule": "steps", "milestones": (5, 3)}, r"milestones must be epochs that grow, .* not \(5,3\)"),
        ({"schedule": "steps", "milestones": (0, 3)}, "milestones must be epochs that grow"),
        ({"schedule": "steps", "milestones": (2.5,)}, "option 'milestones' takes"),
        ({"select": "first"}, "option 'select' takes best or last, not first"),
        ({"precision": "fp16"}, "option 'precision' takes float32 or tf32 or bf16, not fp16"),
        ({"test_fraction": 0}, "test_fraction must lie between 0 and 1"),
        ({"test_fraction": 0.5, "validation_fraction": 0.5}, "leave nothing to train on"),
        ({"min_delta": -1e-9}, "min_delta must not be negative"),
        ({"min_delta": float("nan")}, "min_delta must"),
    ],
)
def test_a_wrong_setting_is_a_sentence(settings, sentence):
    with pytest.raises(BadOption, match=sentence):
        Protocol.of(settings)


def test_milestones_are_a_tuple_however_they_were_written():
    protocol = Protocol.of({"schedule": "steps", "milestones": [81, 122]})
    assert protocol.milestones == (81, 122)
    assert Protocol.of(json.loads(json.dumps(protocol.as_dict()))) == protocol


def test_every_setting_is_explained():
    assert all(option.doc for option in Protocol.options())
    assert {option.name for option in Protocol.options()} == set(PUBLISHED.as_dict())
