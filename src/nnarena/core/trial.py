"""A trial: one (task, model, optimizer, options, seed), the unit of work and of storage."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nnarena.core.common import OF_ONE, check_common, common_names
from nnarena.core.components import Component, Kind, check, take_batch_size, tidy
from nnarena.core.errors import BadOption, Unfit
from nnarena.core.options import Choice, Value, parse_choice, render
from nnarena.core.protocol import Protocol
from nnarena.core.seeds import derive
from nnarena.core.start import origin

KINDS: tuple[Kind, ...] = ("task", "model", "optimizer")
OF_DATA = ("data", "split", "label_noise")  # purposes that all seeds share with `same_data`


@dataclass(frozen=True)
class Trial:
    """What determines a trial's result, and nothing else.

    `study` is the first axis of all seeds. `options` holds every option of the three components, resolved, and
    `fingerprints` the source hashes of a person's own. `names` are the labels without what goes without saying, so
    that one trial has one folder and one set of seeds however it was typed; of weights to start with they say
    which, not where. `components` are where to find them.
    """

    study: str
    task: Choice
    model: Choice
    optimizer: Choice
    protocol: Protocol
    seed: int
    options: Mapping[str, Mapping[str, Value]]
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict, compare=False)
    components: Mapping[str, Component] = field(default_factory=dict, compare=False, repr=False)

    @property
    def id(self) -> str:
        """A hash of all that determines the trial."""
        request = self.as_dict() | {kind: getattr(self, kind).ref for kind in KINDS}
        request["protocol"] = self.protocol.identity()
        if self.components and "start" in self.common("model"):
            request["options"]["model"]["start"] = origin(self.options["model"]["start"])[1]
        text = json.dumps(request, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def cell(self) -> tuple[str, str, str]:
        """Task, model and optimizer as tables call them; the seeds of a cell are repetitions of it."""
        return self.task.label, self.model.label, self.optimizer.label

    def name_of(self, kind: str) -> str:
        return self.names.get(kind, getattr(self, kind).label)

    @property
    def path(self) -> str:
        """The trial's folder inside its store's `trials/`."""
        return "/".join([*(slug(self.name_of(kind)) for kind in KINDS), self.id])

    def axis(self, *purpose: str | int) -> int:
        """A seed for one purpose, the same for every rival on this task with this seed."""
        seed = 0 if self.protocol.same_data and purpose[0] in OF_DATA else self.seed
        return derive(self.study, self.name_of("task"), seed, *purpose)

    def common(self, kind: Kind) -> dict[str, Value]:
        """Of the options that every component of a kind takes, what is asked for: by its own word, or by the protocol.

        Where a component has an option of the same name and another meaning, the protocol alone can ask.
        """
        component = self.components[kind]
        own, said = {option.name for option in component.options}, component.common(self.options[kind])
        values = {
            name: getattr(self.protocol, name) if name in own and name not in OF_ONE else said.get(name)
            for name in common_names(kind)
        }
        return {name: value for name, value in values.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "task": str(self.task),
            "model": str(self.model),
            "optimizer": str(self.optimizer),
            "options": {kind: dict(options) for kind, options in self.options.items()},
            "protocol": self.protocol.as_dict(),
            "seed": self.seed,
            "fingerprints": dict(self.fingerprints),
        }


def make_trial(study: str, task: Choice, model: Choice, optimizer: Choice, protocol: Protocol, seed: int) -> Trial:
    """A trial with every name and option checked.

    The protocol's samples, lr and what else it says of all models and optimizers reach who has such an option. The
    other way round, a batch size that the task is named with becomes the protocol's of this trial: a smaller batch is
    no other task, and leaves its name and its seeds as they are.
    """
    components: dict[str, Component] = {}
    options: dict[str, dict[str, Value]] = {}
    asked: dict[str, Choice] = {}
    names: dict[str, str] = {}
    common: dict[str, dict[str, Value]] = {
        "task": {"samples": protocol.samples},
        "model": {"dropout": protocol.dropout},
        "optimizer": {"lr": protocol.lr},
    }
    for kind, choice in zip(KINDS, (task, model, optimizer), strict=True):
        component, resolved = check(kind, choice)
        usual = {option.name: option.default for option in component.takes}
        own = {option.name for option in component.options}
        shared = common.get(kind, {}) | {
            name: getattr(protocol, name) for name in common_names(kind) if name not in (*own, *OF_ONE)
        }
        for setting, value in shared.items():
            if value is not None and setting in usual:
                usual[setting] = value
                resolved |= {} if setting in choice.options else {setting: value}
        check_common(component.common(resolved))
        components[kind], options[kind], asked[kind] = component, resolved, tidy(kind, choice)
        news = {key: item for key, item in asked[kind].options.items() if item != usual[key]}
        if kind == "task" and (batch_size := take_batch_size(component, resolved)) is not None:
            protocol = replace(protocol, batch_size=batch_size)
            del news["batch_size"]
        if kind == "model" and "start" in component.common(news):
            news["start"] = origin(news["start"])[1]
        names[kind] = Choice(choice.ref, news).label
    _check_together(components, options, protocol)
    return Trial(
        study=study,
        **asked,
        protocol=protocol,
        seed=seed,
        options=options,
        fingerprints={kind: item.fingerprint for kind, item in components.items() if item.fingerprint},
        names=names,
        components=components,
    )


def _check_together(
    components: Mapping[str, Component], options: Mapping[str, Mapping[str, Value]], protocol: Protocol
) -> None:
    """Raise ArenaError where one part's options contradict another's."""
    model, optimizer = components["model"], components["optimizer"]
    if protocol.dropout is not None and "dropout" not in options["model"]:
        raise Unfit(
            f"{model.name} has no option dropout, so dropout={protocol.dropout:g} cannot reach it: "
            f"set it for those that have one, as in deep_mlp[dropout={protocol.dropout:g}]."
        )
    decay = options["optimizer"].get("weight_decay")
    if model.common(options["model"]).get("l2") and decay:
        raise BadOption(
            f"l2 and {optimizer.name}'s weight_decay={render(decay)} both shrink the weights: set one of them, "
            f"as in {optimizer.name}[weight_decay=0]."
        )


def trial_from_dict(request: Mapping[str, Any]) -> Trial:
    """The trial that `as_dict` described; every component is found again by its reference."""
    task, model, optimizer = (parse_choice(request[kind])[0] for kind in KINDS)
    protocol = Protocol.of(request["protocol"])
    return make_trial(request["study"], task, model, optimizer, protocol, request["seed"])


def slug(label: str) -> str:
    """A label as a folder's name on any file system."""
    name = re.sub(r"[^\w.\[\]=,()+-]", "_", label).encode()[:120].decode(errors="ignore")
    return name if name.strip(".") else "_"
