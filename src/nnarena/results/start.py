"""Which weights a study's models start with: found in the stores they come from, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nnarena.core.components import check
from nnarena.core.count import counted
from nnarena.core.errors import StoreError
from nnarena.core.options import Choice
from nnarena.core.start import MARK, digest_of, origin
from nnarena.core.study import Study
from nnarena.results.folder import MODEL, TRIAL, TrialFolder
from nnarena.results.store import NAMED, STUDY, Store


def settle(study: Study, out: Path) -> Study:
    """The study with the hash of its weights behind every `start`.

    Where the weights are gone and the store in `out` began with some from there, these are the ones that are meant: it
    has copies, and can go on.
    """
    began = _began(out)
    grids = tuple(
        replace(grid, models=tuple(_settle_model(choice, began) for choice in grid.models)) for grid in study.grids
    )
    return replace(study, grids=grids)


def settle_start(start: str, began: dict[str, str] | None = None) -> str:
    """`place@hash` of a place. StoreError if there are no weights of a finished trial."""
    place, digest = origin(start)
    try:
        found = digest_of(weights_at(place))
    except StoreError:
        if began is None or place not in began:
            raise
        found = began[place]
    if digest and found != digest:
        raise StoreError(f"start={place}: its weights are {found}, not {digest}.")
    return f"{place}{MARK}{found}"


def weights_at(place: str) -> Path:
    """The weights of a finished trial: a trial's folder, or a store and an id (or the beginning of one)."""
    path = Path(place)
    if (path / TRIAL).is_file():
        folder = TrialFolder(path)
    elif (path.parent / STUDY).is_file():
        folder = Store.open(path.parent).find(path.name)
    elif (path / STUDY).is_file():
        raise StoreError(f"start={place}: which trial of it? {_some_trials(path)}")
    else:
        raise StoreError(
            f"start={place}: there is no such trial; write the folder of a store and the id of a trial, as in "
            "runs/digits/3f2a9c."
        )
    name = folder.path.name
    if not folder.is_done:
        raise StoreError(f"start={place}: the trial {name} is not finished, so that it has no weights to start with.")
    if not (folder.path / MODEL).is_file():
        status = folder.result()["status"]
        raise StoreError(f"start={place}: the trial {name} has no weights to start with; it ended as {status!r}.")
    return folder.path / MODEL


def _some_trials(store: Path) -> str:
    """A sentence on which trials there are."""
    names = [str(store / folder.path.name) for folder in Store.open(store).folders()]
    more = f", … of {counted(len(names), 'trial')}" if len(names) > NAMED else ""
    return f"As in {', '.join(names[:NAMED])}{more}." if names else "It has none yet."


def _settle_model(choice: Choice, began: dict[str, str]) -> Choice:
    component, resolved = check("model", choice)
    start = component.common(resolved).get("start")
    if start is None:
        return choice
    return Choice(choice.ref, {**choice.options, "start": settle_start(start, began)})


def _began(out: Path) -> dict[str, str]:
    """What the store's models started with: hashes by place."""
    if not (out / STUDY).is_file():
        return {}
    models = [choice for grid in Store.open(out).study.grids for choice in grid.models]
    starts = [str(choice.options["start"]) for choice in models if "start" in choice.options]
    return dict(origin(start) for start in starts)
