"""What people import: `nnarena.run` and `nnarena.build`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnarena.core.components import check, lend, take_batch_size
from nnarena.core.errors import BadOption
from nnarena.core.options import Choice, parse_choice, parse_choices
from nnarena.core.start import origin
from nnarena.core.study import Grid, Study, find_study
from nnarena.results.start import weights_at
from nnarena.results.store import Store

if TYPE_CHECKING:
    import pandas
    from torch import nn

Named = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
AD_HOC = "arena"  # the name of a study that is made on the spot


class Result:
    """What came out of a study: numbers as a table, as a page, or as they lie on the disk."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def folder(self) -> Path:
        return self.store.folder

    def summary(self) -> dict[str, Any]:
        """What `nnarena report --format json` prints."""
        from nnarena.report.summary import summarise

        return summarise(self.store)

    def leaderboard(self) -> pandas.DataFrame:
        """One row a competitor and task: mean, spread and interval of every test metric."""
        import pandas

        rows = []
        for row in self.summary()["rows"]:
            flat = {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
            for metric, figures in row["test"].items():
                flat |= {metric if part == "mean" else f"{metric} {part}": value for part, value in figures.items()}
            rows.append(flat)
        return pandas.DataFrame(rows)

    def save_html(self, path: str | Path) -> Path:
        """One page that opens offline."""
        from nnarena.report.page import write_page

        write_page(self.store, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        return f"Result({str(self.folder)!r})"


def run(
    study: str | Study | None = None,
    *,
    tasks: Named = (),
    models: Named = (),
    optimizers: Named = (),
    seeds: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    jobs: int | None = None,
    population: int | None = None,
    quick: bool = False,
    retry: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> Result:
    """Run a study and return its results; what is done already is not done again.

    `tasks`, `models` and `optimizers` are names as on the command line, or your own classes and functions. `settings`
    are protocol settings: `epochs=20, batch_size=64, samples=10_000, lr=1e-3, …`. So many seeds of a competitor as
    `population` says are trained as one model: all on a GPU and one on the CPU if it is not said. So many of those as
    `jobs` says run at once: one a core on the CPU, and up to four on a GPU that processes can share.

        result = nnarena.run(tasks=["add"], models=["lstm", MyCell], seeds=5)
        result.leaderboard()
    """
    from nnarena.launch.progress import progress
    from nnarena.launch.run import run_study

    request = (
        study if isinstance(study, Study) else make_study(study, tasks, models, optimizers, seeds, quick, settings)
    )
    folder = Path(out) if out else default_folder(request)
    outcome = run_study(
        request, folder, device=device, jobs=jobs, population=population, retry=retry, watcher=progress(quiet)
    )
    return Result(outcome.store)


def build(model: str, *, task: str, **options: Any) -> nn.Module:
    """A competitor as it would enter a task, with its published configuration and the `options` given.

    `init="he"` gives it other start values; they come from torch's random numbers, as its own do. With
    `start="runs/digits/3f2a9c"` it has what a trial has learned; with `freeze="body"` its head alone can be trained.
    """
    choice = parse_choice(model)[0]
    component, resolved = check("model", Choice(choice.ref, {**choice.options, **options}))
    task_component, task_options = check("task", parse_choice(task)[0])
    take_batch_size(task_component, task_options)
    spec, own, settings = (
        task_component.load()(**task_options).spec,
        component.own(resolved),
        component.common(resolved),
    )
    built = component.load()(spec, **own)
    init = settings.get("init")
    if init is not None:
        import torch

        from nnarena.engine.start import set_start

        set_start(built, init, int(torch.randint(2**62, ())))
    if "start" in settings or "freeze" in settings:
        from nnarena.engine.transfer import begin

        weights = weights_at(origin(settings["start"])[0]) if "start" in settings else None
        begin(
            built, settings, weights, lambda: component.load()(replace(spec, output_size=spec.output_size + 1), **own)
        )
    return built


def make_study(
    name: str | None,
    tasks: Named = (),
    models: Named = (),
    optimizers: Named = (),
    seeds: int | None = None,
    quick: bool = False,
    settings: dict[str, Any] | None = None,
) -> Study:
    """A built-in study or a file, whole or in part; or one made of the tasks and models named."""
    parts = [choices(named) for named in (tasks, models, optimizers)]
    if name:
        study = find_study(name)
        if any(parts):
            study = study.narrowed(*parts)
    else:
        for kind, part in zip(("task", "model"), parts, strict=False):
            if not part:
                raise BadOption(f"Name a study, or at least one {kind}: nnarena run -t add -m lstm,gru.")
        grid = Grid(*map(tuple, parts)) if parts[2] else Grid(tuple(parts[0]), tuple(parts[1]))
        study = Study(AD_HOC, (grid,))
    if quick:
        study = study.quickly()
    return study.with_(seeds=seeds, **(settings or {}))


def choices(named: Named) -> list[Choice]:
    """Names, `name[option=value]`, and objects, as choices."""
    if isinstance(named, str) or callable(named):
        named = [named]
    found: list[Choice] = []
    lent: dict[str, Any] = {}
    for item in named:
        if isinstance(item, str):
            found += parse_choices([item])
            continue
        ref = lend(item)
        if lent.setdefault(ref, item) is not item:
            raise BadOption(f"Two different things are called {item.__name__}: give one of them another name.")
        found.append(Choice(ref))
    return found


def default_folder(study: Study) -> Path:
    """Where a study goes if nobody says: the same command always gets the same folder."""
    settings = study.protocol.settings()
    if study.source:
        stem = Path(study.source).stem
        changed = settings != find_study(study.source).protocol.settings()
        return Path("runs") / (f"{stem}-{_digest(settings)}" if changed else stem)
    request = study.as_dict() | {"seeds": 0}
    names = dict.fromkeys(choice.name for grid in study.grids for choice in (*grid.tasks, *grid.models))
    return Path("runs") / f"{'-'.join(names)[:60]}-{_digest(request)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
