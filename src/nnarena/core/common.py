"""Options that every model, optimizer or task takes besides its own, and how each is checked.

`mlp[init=he]` sets one for a competitor, `--set init=he` for all of a study that do not say otherwise. The engine does
what they ask for; they never reach the component itself. One that is not set is not part of a trial's identity. Those
of `OF_ONE` are never settings of a whole study, or mean something else there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf

from nnarena.core.errors import BadOption
from nnarena.core.options import Option, Value

COMMON: dict[str, tuple[Option, ...]] = {
    "model": (
        Option("init", "str | None", doc="start values of all weight matrices: `nnarena list initialisers`"),
        Option("l1", "float | None", doc="adds λ Σ|w| of all weights to what is learned"),
        Option("l2", "float | None", doc="adds λ/2 Σ w² of all weights to what is learned"),
        Option("input_noise", "float | None", doc="σ of normal noise on the inputs in training"),
        Option("weight_noise", "float | None", doc="σ of normal noise on the weights at every step of training"),
        Option("label_smoothing", "float | None", doc="share of a label that is spread over all classes in training"),
        Option("start", "str | None", doc="begin with the weights of a finished trial, as in runs/digits/3f2a9c"),
        Option("freeze", "str | None", doc="what is not trained: body is all but the head, else a pattern of names"),
    ),
    "optimizer": (
        Option("lr_of", "str | None", doc="other learning rates, by a part of parameters' names: attention:0.1"),
        Option("clip_norm", "float | None", doc="how long a model's gradient may be at most"),
        Option("clip_value", "float | None", doc="how far from 0 each number of the gradient may be at most"),
        Option("full_batch", "bool | None", doc="every step sees all training samples, so that an epoch is one step"),
    ),
    "task": (Option("batch_size", "int | None", doc="samples a step, in the place of the protocol's"),),
    "initialiser": (),
}
OF_ONE = ("start", "freeze", "lr_of", "batch_size")
COMMON = {
    kind: tuple(Option(item.name, item.annotation, doc=item.doc, rare=True) for item in options)
    for kind, options in COMMON.items()
}


def common_names(kind: str) -> list[str]:
    return [option.name for option in COMMON[kind]]


def check_common(settings: Mapping[str, Value]) -> None:
    """Raise BadOption (or UnknownName) if one of these options has a value that makes no sense."""
    for name, value in settings.items():
        if value is not None and name in CHECKS:
            CHECKS[name](name, value)
    if settings.get("clip_norm") is not None and settings.get("clip_value") is not None:
        raise BadOption("clip_norm and clip_value are two ways to shorten a gradient: set one of them.")


def _initialiser(name: str, value: str) -> None:
    from nnarena.core.components import find

    find("initialiser", value)


def _pattern(name: str, value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise BadOption(f"{name} takes body or a pattern of names, and {value!r} is none: {error}.") from error


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise BadOption(f"{name} must be a number above 0, not {value}.")


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < inf:
        raise BadOption(f"{name} must be a number that is not negative, not {value}.")


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise BadOption(f"{name} must lie between 0 and 1, not {value}.")


CHECKS: dict[str, Callable[[str, Value], None]] = {
    "init": _initialiser,
    "l1": _not_negative,
    "l2": _not_negative,
    "input_noise": _not_negative,
    "weight_noise": _not_negative,
    "label_smoothing": _share,
    "dropout": _share,
    "label_noise": _share,
    "freeze": _pattern,
    "clip_norm": _above_zero,
    "clip_value": _above_zero,
}
