"""What a page says of how its trials were trained and tested, in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nnarena.core.count import counted
from nnarena.core.options import render
from nnarena.core.protocol import Protocol
from nnarena.results.store import Store

if TYPE_CHECKING:
    import polars as pl

TESTED = {
    ("samples", "best"): "<b>The test set is read once,</b> by the checkpoint that was best on the validation data.",
    ("samples", "last"): "<b>The test set is read</b> for the result once, by the weights of the last epoch.",
    ("episodes", "best"): "<b>The test is taken once,</b> in episodes of its own, by the checkpoint that was best in "
    "those of the validation. Both are apart from training.",
    ("episodes", "last"): "<b>The test is taken once,</b> in episodes of its own, by the weights of the last epoch. It "
    "is apart from training.",
    ("words", "best"): "<b>The test questions are asked once,</b> of the reading that answered those of the validation "
    "best. No question is read in training.",
    ("words", "last"): "<b>The test questions are asked once,</b> of the last reading. No question is read in "
    "training.",
    **dict.fromkeys(
        [("surfaces", "best"), ("surfaces", "last")],
        "<b>There is no test apart:</b> a surface has nothing to generalise to. Validation and test are the same look "
        "at a place, without noise.",
    ),
}
SHARED = {
    "samples": "saw the same data, the same splits and the same order of batches.",
    "episodes": "began with the same critics, practised in environments of the same seed, and were examined in "
    "episodes that began alike.",
    "words": "read the same corpus and were asked the same questions.",
    "surfaces": "began at the same place and had the same noise at every step.",
}
# Settings of the protocol that are said by name where they are set.
SAID = ("init", "clip_norm", "clip_value", "l1", "l2", "dropout", "input_noise", "weight_noise", "label_smoothing")
SAID += ("label_noise", "bagging", "same_data", "full_batch")


def protocol_line(store: Store, table: pl.DataFrame) -> str:
    """How every trial was trained, in one line."""
    protocol, options, kinds = store.study.protocol, practice_options(store, table), kinds_of_test(store, table)
    plain = "samples" in kinds
    parts = [
        f"{counted(store.study.seeds, 'seed')} each",
        f"at most {counted(protocol.epochs, 'epoch')}" if plain else _epochs(protocol, options, kinds),
        *(
            [f"batches of {protocol.batch_size}{' central words' * (kinds == ['words'])}"]
            if kinds != ["surfaces"]
            else []
        ),
    ]
    if plain:
        train = 1 - protocol.test_fraction - protocol.validation_fraction
        parts.append(
            f"{train:.0%} training, {protocol.validation_fraction:.0%} validation, {protocol.test_fraction:.0%} test, "
            "or the test that a publisher set aside"
        )
    several = len(kinds) > 1
    if "episodes" in kinds:
        each = _of(options, "episodes", ", in")
        parts.append(f"{'of agents, ' * several}validation and test apart from training{each and f'{each} each'}")
    if "words" in kinds:
        parts.append(f"{'of words, ' * several}half of the questions validate, the other half is the test")
    parts += [falls(protocol)] if plain or protocol.schedule != "plateau" else []
    parts += [f"learning rate rising over {counted(protocol.warmup, 'epoch')} first"] if protocol.warmup else []
    parts += [f"end after {counted(protocol.stop_patience, 'epoch')} without progress"] if plain else []
    parts += [f"{name} = {render(value)}" for name in SAID if (value := getattr(protocol, name)) not in (None, False)]
    parts += ["the weights of the last epoch are tested"] if protocol.select == "last" else []
    parts += ["the test watched in every epoch"] if protocol.watch_test else []
    parts += ["the gradients watched"] if protocol.watch_gradient else []
    parts += [f"products in {protocol.precision}"] if protocol.precision != "float32" else []
    parts += [f"{counted(protocol.samples, 'sample')} at most"] if protocol.samples and plain else []
    parts += [f"learning rate {protocol.lr:g}"] if protocol.lr else []
    parts += [f"at most {protocol.timeout:g} s a trial"] if protocol.timeout else []
    return " · ".join(parts)


def practice_options(store: Store, table: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """The options of every task whose models learn from what they do: its results say what their training was like.

    So do others where the protocol watches training, and then there is no task of this kind: they refuse it.
    """
    import polars as pl

    if store.study.protocol.watch_training or store.study.protocol.watch_gradient:
        return {}
    columns = [name for name in table.columns if name.startswith("training.")]
    found = table.filter(pl.any_horizontal(pl.col(columns).is_not_null())) if columns else table.clear()
    return {task: json.loads(options)["task"] for task, options in found.select("task", "options").iter_rows()}


def all_practise(store: Store, table: pl.DataFrame) -> bool:
    """Whether no task of the study has samples, and so no splits of them."""
    options = practice_options(store, table)
    return bool(options) and set(options) == set(table["task"])


def kinds_of_test(store: Store, table: pl.DataFrame) -> list[str]:
    """What the tasks of the study are tested by, as `TESTED` calls it, each kind once."""
    found = dict.fromkeys(map(practice_kind, practice_options(store, table).values()))
    return [*found] if all_practise(store, table) else ["samples", *found]


def practice_kind(options: dict[str, Any]) -> str:
    """What a task without samples is tested by; its options tell it."""
    if {"of", "start", "noise"} <= options.keys():
        return "surfaces"
    return "words" if {"corpus", "tokens", "vocabulary"} <= options.keys() else "episodes"


def _epochs(protocol: Protocol, options: dict[str, dict[str, Any]], kinds: list[str]) -> str:
    """How long a study trains whose tasks have no samples."""
    if kinds != ["words"]:
        return f"{counted(protocol.epochs, 'epoch')}{_of(options, 'steps', ' of')}"
    said = sorted({given["tokens"] for given in options.values()})
    words = f"of at most {' or '.join(f'{value:,}' for value in said)} words"
    return (
        f"1 reading {words}" if protocol.epochs == 1 else f"{protocol.epochs} readings {words}, 1 by models that count"
    )


def _of(options: dict[str, dict[str, Any]], name: str, before: str) -> str:
    """`, 10 episodes`: what tasks say of it, or nothing."""
    said = sorted({given[name] for given in options.values() if name in given})
    return f"{before} {' or '.join(f'{value:,}' for value in said)} {name}" if said else ""


def falls(protocol: Protocol) -> str:
    """When the learning rate falls, and to what."""
    if protocol.schedule == "steps":
        when = f"epoch{'s' * (len(protocol.milestones) > 1)} {listed([*map(str, protocol.milestones)])}"
        return f"learning rate × {protocol.step_factor:g} after {when}"
    if protocol.schedule == "exponential":
        return f"learning rate × {protocol.lr_decay:g} after every epoch"
    if protocol.schedule == "cosine":
        return "learning rate falling to 0 along a cosine"
    patience = counted(protocol.plateau_patience, "epoch")
    return f"learning rate × {protocol.plateau_factor:g} after {patience} without progress"


def listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
