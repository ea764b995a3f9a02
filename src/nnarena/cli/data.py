"""`nnarena data list|get|import`: real data sets, verified."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nnarena.data.download import Progress

PLAIN_EVERY = 2.0  # seconds between lines where there is no terminal


@click.group()
def data() -> None:
    """Real data sets: what there is, get them, import files at hand."""


@data.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_(as_json: bool) -> None:
    """What there is, and what is here."""
    from nnarena.data import catalogue

    entries = catalogue()
    if as_json:
        click.echo(json.dumps([vars(entry) | {"path": str(entry.path)} for entry in entries], indent=1))
        return
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        state = str(entry.path) if entry.present else f"not here: `nnarena data get {entry.name}`"
        click.echo(f"{entry.name:{width}}  {entry.summary}")
        click.echo(f"{'':{width}}  {entry.size}; {entry.licence}; {entry.source}")
        click.echo(f"{'':{width}}  {state}")


@data.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Get it again even if it is here.")
def get(names: tuple[str, ...], force: bool) -> None:
    """Download data sets, verify them, and keep them."""
    from nnarena.data import get as get_set
    from nnarena.data.sets import find

    for name in names:
        find(name)
    for name in names:
        with _progress(name) as progress:
            path = get_set(name, force=force, progress=progress)
        click.echo(f"{name}: {path}")


@data.command("import")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
def import_(name: str, files: tuple[Path, ...]) -> None:
    """Take a data set from files at hand, verified like a download."""
    from nnarena.data import import_files

    path, difference = import_files(name, files)
    click.echo(f"{name}: {path}")
    if difference:
        click.echo(f"Note: this is not the published data set: {difference}.", err=True)


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """A bar on a terminal, now and then a plain line elsewhere."""
    if not sys.stderr.isatty():
        yield _plain_lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(name, total=None)
        yield lambda here, total: bars.update(bar, completed=here, total=total)


def _plain_lines(name: str) -> Progress:
    last = time.monotonic()

    def progress(here: int, total: int | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PLAIN_EVERY:
            last = now
            of = f" of {total / 1e6:.1f}" if total else ""
            click.echo(f"{name}: {here / 1e6:.1f}{of} MB", err=True)

    return progress
