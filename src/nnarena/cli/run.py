"""`nnarena run`: a built-in study, a TOML file, or one made on the spot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from nnarena.cli.completion import complete_components, complete_studies
from nnarena.core.errors import BadOption
from nnarena.core.options import parse_setting


@click.command()
@click.argument("study", required=False, shell_complete=complete_studies)
@click.option(
    "-t",
    "--task",
    "tasks",
    multiple=True,
    metavar="NAMES",
    shell_complete=complete_components("task"),
    help="Tasks, separated by commas; name[option=value] sets options, a list makes a grid.",
)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    metavar="NAMES",
    shell_complete=complete_components("model"),
    help="Models; your own is file.py:Name or package.module:Name.",
)
@click.option(
    "-o",
    "--optimizer",
    "optimizers",
    multiple=True,
    metavar="NAMES",
    shell_complete=complete_components("optimizer"),
    help="Optimizers; adam if none is named.",
)
@click.option("--seeds", type=int, help="Repetitions of every combination.")
@click.option("--epochs", type=int, help="Epochs at most.")
@click.option("--batch-size", type=int, help="Samples a step.")
@click.option("--samples", type=int, help="Samples at most, for every task.")
@click.option("--lr", type=float, help="Learning rate, for every optimizer.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting that `nnarena show protocol` lists.",
)
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="Where to compute.", show_default=True)
@click.option("--jobs", type=int, help="Processes at a time; one a core on the CPU, up to four on a GPU if not said.")
@click.option(
    "--population", type=int, help="Seeds of a cell trained as one; all on a GPU, one on the CPU if not said."
)
@click.option("--engine", default="local", type=click.Choice(["local"]), help="Where trials run.", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="The study's folder; runs/… if not said.")
@click.option("--quick", is_flag=True, help="A rehearsal: the whole study at a small size.")
@click.option("--plan", is_flag=True, help="Only show what would run, what is done, and what it would cost.")
@click.option("--retry", is_flag=True, help="Do those trials again that failed; one that diverged is a result.")
@click.option("--json", "as_json", is_flag=True, help="With --plan or at the end: machine-readable.")
def run(
    study: str | None,
    tasks: tuple[str, ...],
    models: tuple[str, ...],
    optimizers: tuple[str, ...],
    seeds: int | None,
    settings: tuple[str, ...],
    out: Path | None,
    quick: bool,
    plan: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a study: every model on every task with every seed. Repeating the command continues where it stopped.

    \b
    nnarena run quickstart
    nnarena run -t add -m lstm,gru,my_file.py:MyCell --seeds 5
    nnarena run -t "add[length=[100,400]]" -m "lstm[hidden_size=[64,128]]" --plan
    nnarena run poster -t mnist -m gru
    """
    from nnarena.api import default_folder, make_study

    chosen: dict[str, Any] = {}
    flags = [(key, options.pop(key)) for key in ("epochs", "batch_size", "samples", "lr")]
    for key, value in [*(flag for flag in flags if flag[1] is not None), *map(parse_setting, settings)]:
        if chosen.setdefault(key, value) != value:
            raise BadOption(f"{key} is set twice, to {chosen[key]} and to {value}.")
    request = make_study(study, tasks, models, optimizers, seeds, quick, chosen)
    folder = out or default_folder(request)
    if request.missing:
        click.echo(f"Not in this version yet, so left out: {', '.join(request.missing)}.", err=True)
    if plan:
        from nnarena.cli.plan import show_plan

        show_plan(request, folder, options["device"], options["jobs"], options["population"], as_json)
        return 0
    request.cells()  # a mistyped name is told at once, before torch is loaded
    if sys.stderr.isatty():
        click.echo(f"Checking the study {request.name!r} …", err=True)
    from nnarena.cli.report import show_end
    from nnarena.launch.progress import progress
    from nnarena.launch.run import run_study

    options.pop("engine")
    outcome = run_study(request, folder, watcher=progress(), **options)
    show_end(outcome.store, as_json)
    if outcome.failed:
        counts = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
        click.echo(f"Trials: {counts}. `nnarena status {folder}` shows why; --retry does failed ones again.", err=True)
    return 1 if outcome.failed else 0
