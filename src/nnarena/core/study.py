"""A study: a set of trials and the protocol they share; a small TOML file, or made on the command line.

    name = "my-study"                # also the first axis of all seeds
    title = "Which cell remembers longest?"
    tasks = ["add[length=[100,400]]"]
    models = ["lstm", "gru", "my_file.py:MyCell"]
    optimizers = ["adam"]            # this is the default
    seeds = 3

    [protocol]                       # what differs from the published protocol
    epochs = 20

    [quick]                          # what `--quick` changes: protocol settings, seeds, tasks, models, optimizers
    epochs = 1

Instead of one product of tasks, models and optimizers there can be several: `[[grid]]` tables with these three keys.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnarena.core.components import PACKAGE, Kind, catalogue, tidy
from nnarena.core.errors import ArenaError, UnknownName, suggestion
from nnarena.core.options import Choice, Value, parse_choices
from nnarena.core.protocol import PUBLISHED, Protocol
from nnarena.core.trial import Trial, make_trial

STUDIES = PACKAGE / "studies"
QUICK: Mapping[str, Value] = {"epochs": 1, "samples": 1280, "seeds": 1}
GRID_KEYS = ("tasks", "models", "optimizers")
STUDY_KEYS = ("name", "title", "seeds", "published", "grid", "protocol", "quick", *GRID_KEYS)


@dataclass(frozen=True)
class Grid:
    """All combinations of some tasks, models and optimizers."""

    tasks: tuple[Choice, ...]
    models: tuple[Choice, ...]
    optimizers: tuple[Choice, ...] = (Choice("adam"),)


@dataclass(frozen=True)
class Study:
    """Grids, seeds and protocol. `source` is what a person types to name it; empty when made on the command line.

    `quick` are the settings of a rehearsal, `rehearsed` the tasks, models or optimizers that take the place of the
    study's in it. `missing` names models that the study lists and this version does not have.
    """

    name: str
    grids: tuple[Grid, ...]
    seeds: int = 1
    protocol: Protocol = PUBLISHED
    title: str = ""
    source: str = ""
    published: str = ""
    quick: Mapping[str, Value] = field(default_factory=lambda: QUICK)
    rehearsed: Mapping[str, tuple[Choice, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ArenaError(f"A study needs at least one seed, not {self.seeds}.")

    def trials(self) -> list[Trial]:
        """Every trial, all competitors of one task and seed next to each other. Raises ArenaError if one is wrong."""
        found: dict[str, Trial] = {}
        for cell in self.cells():
            for trial in (replace(cell, seed=seed) for seed in range(self.seeds)):
                found.setdefault(trial.id, trial)
        order = {task: place for place, task in enumerate(dict.fromkeys(trial.task for trial in found.values()))}
        return sorted(found.values(), key=lambda trial: (order[trial.task], trial.seed))

    def cells(self) -> list[Trial]:
        """The first trial of every (task, model, optimizer)."""
        return [
            make_trial(self.name, task, model, optimizer, self.protocol, seed=0)
            for grid in self.grids
            for task, model, optimizer in itertools.product(grid.tasks, grid.models, grid.optimizers)
        ]

    def tidied(self) -> Study:
        """The study with every choice in its one spelling, as the labels of its trials have it."""
        kinds: tuple[Kind, ...] = ("task", "model", "optimizer")
        grids = [
            Grid(
                *(
                    tuple(tidy(kind, item) for item in part)
                    for kind, part in zip(kinds, vars(grid).values(), strict=True)
                )
            )
            for grid in self.grids
        ]
        return replace(self, grids=tuple(grids))

    def quickly(self) -> Study:
        """The study at the size of a rehearsal."""
        changes = dict(self.quick)
        seeds = changes.pop("seeds", 1)
        grids = tuple(dict.fromkeys(replace(grid, **self.rehearsed) for grid in self.grids))
        return replace(self, grids=grids).with_(seeds=int(seeds), **changes)

    def with_(self, seeds: int | None = None, **settings: Value) -> Study:
        """The study with more or fewer seeds and other protocol settings."""
        protocol = Protocol.of(self.protocol.settings() | settings)
        return replace(self, seeds=self.seeds if seeds is None else seeds, protocol=protocol)

    def narrowed(self, tasks: list[Choice], models: list[Choice], optimizers: list[Choice]) -> Study:
        """Only the named part of the study; a name that the study does not list joins all its grids.

        Options add to those of the study: `activity[source=watch]` is its activity, with another source.
        """
        asked = dict(zip(GRID_KEYS, (tasks, models, optimizers), strict=True))
        grids = [
            Grid(**{key: self._part(key, getattr(grid, key), names) for key, names in asked.items()})
            for grid in self.grids
        ]
        asked_for = {choice.ref for choice in models}
        missing = tuple(name for name in self.missing if name in asked_for or not models)
        if models and missing:
            raise ArenaError(f"The study {self.name!r} lists {missing[0]!r}, but this version does not have it yet.")
        named = [key for key, names in asked.items() if names]
        rehearsed = {key: part for key, part in self.rehearsed.items() if key not in named}
        grids = tuple(grid for grid in grids if all(vars(grid).values()))
        return replace(self, grids=grids, missing=missing, rehearsed=rehearsed)

    def _part(self, key: str, listed: tuple[Choice, ...], asked: list[Choice]) -> tuple[Choice, ...]:
        if not asked:
            return listed
        known = {choice.ref for grid in self.grids for choice in getattr(grid, key)}
        part: list[Choice] = []
        for choice in asked:
            same = [item for item in listed if item.ref == choice.ref]
            if choice.options and choice in same:
                same = [choice]
            merged = [Choice(item.ref, {**item.options, **choice.options}) for item in same]
            part += merged if choice.ref in known else [choice]
        return tuple(dict.fromkeys(part))

    def as_dict(self) -> dict[str, Any]:
        """The request as `study.toml` keeps it."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "seeds": self.seeds,
            "published": self.published,
            "missing": list(self.missing),
            "protocol": self.protocol.settings(),
            "grid": [{key: [str(item) for item in getattr(grid, key)] for key in GRID_KEYS} for grid in self.grids],
        }


def built_in_studies() -> dict[str, Path]:
    return {path.stem: path for path in sorted(STUDIES.glob("*.toml"))}


def find_study(name: str) -> Study:
    """A built-in study by name, or a person's own by the path of its TOML file."""
    if name in built_in_studies():
        return read_study(built_in_studies()[name], source=name)
    if not name.endswith(".toml"):
        raise UnknownName("study", name, built_in_studies(), "(Your own is a .toml file.)")
    if not Path(name).is_file():
        raise ArenaError(f"There is no study file {name!r}.")
    return read_study(Path(name), source=name)


def read_study(path: Path, source: str) -> Study:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArenaError(f"The study file {path} is not TOML: {error}.") from error
    try:
        return _study(table, name=path.stem, source=source)
    except ArenaError as error:
        raise ArenaError(f"In the study file {path}: {error}") from error


def _study(table: dict[str, Any], name: str, source: str) -> Study:
    _known_keys(table, STUDY_KEYS)
    kinds = {"name": str, "title": str, "published": str, "seeds": int, "protocol": dict, "quick": dict}
    for key, kind in kinds.items():
        _typed(table, key, kind)
    grids = _typed(table, "grid", list) or [{key: table[key] for key in GRID_KEYS if key in table}]
    if "grid" in table and any(key in table for key in GRID_KEYS):
        raise ArenaError("tasks, models and optimizers stand either at the top or in [[grid]] tables, not in both.")
    missing: dict[str, None] = {}
    skip = missing if source in built_in_studies() else None
    quick = dict(table.get("quick", QUICK))
    _typed(quick, "seeds", int)
    protocol = Protocol.of(table.get("protocol", {}))
    small = {key: quick.pop(key) for key in GRID_KEYS if key in quick}
    Protocol.of(protocol.settings() | {key: value for key, value in quick.items() if key != "seeds"})
    return Study(
        name=table.get("name", name),
        title=table.get("title", ""),
        source=source,
        seeds=table.get("seeds", 1),
        published=table.get("published", ""),
        protocol=protocol,
        quick=quick,
        rehearsed=_names(small),
        grids=tuple(_grid(grid, skip) for grid in grids),
        missing=tuple(missing),
    )


def _grid(table: Any, missing: dict[str, None] | None) -> Grid:
    if not isinstance(table, dict):
        raise ArenaError("A [[grid]] is a table with tasks, models and optimizers.")
    _known_keys(table, GRID_KEYS)
    parts = _names({key: table.get(key, ["adam"] if key == "optimizers" else []) for key in GRID_KEYS})
    if missing is not None:
        known = catalogue("model")
        missing.update({choice.ref: None for choice in parts["models"] if choice.ref not in known})
        parts["models"] = tuple(choice for choice in parts["models"] if choice.ref in known)
    return Grid(**parts)


def _names(table: Mapping[str, Any]) -> dict[str, tuple[Choice, ...]]:
    """Lists of names as choices."""
    for key, names in table.items():
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ArenaError(f'{key} must be a list of names such as {key} = ["…"].')
    return {key: tuple(parse_choices(names)) for key, names in table.items()}


def _known_keys(table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise ArenaError(f"there is no key {key!r}{suggestion(key, known)}")


def _typed(table: Mapping[str, Any], key: str, kind: type) -> Any:
    value = table.get(key)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ArenaError(f"{key} must be {'a table' if kind is dict else f'of type {kind.__name__}'}, not {value!r}.")
    return value


def dump_toml(study: Study) -> str:
    """The frozen request, in the words of a study file (and a few of its own)."""
    table = study.as_dict()
    grids, protocol = table.pop("grid"), table.pop("protocol")
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    lines += ["", "[protocol]", *(f"{key} = {_toml(value)}" for key, value in protocol.items())]
    for grid in grids:
        lines += ["", "[[grid]]", *(f"{key} = {_toml(value)}" for key, value in grid.items())]
    return "\n".join(lines) + "\n"


def load_toml(text: str) -> Study:
    """The study that `dump_toml` wrote."""
    table = tomllib.loads(text)
    grids = tuple(Grid(**{key: tuple(parse_choices(grid[key])) for key in GRID_KEYS}) for grid in table.pop("grid", []))
    protocol = Protocol.of(table.pop("protocol"))
    return Study(grids=grids, protocol=protocol, missing=tuple(table.pop("missing")), **table)


def _toml(value: Value) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # JSON's word for inf is not TOML's
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
