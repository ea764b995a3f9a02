"""`nnarena report`: tables and the page, from what lies in a study's folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nnarena.results.store import Store

FORMATS = ["html", "md", "csv", "json", "latex"]
PAGE = "report.html"
WIDE = 140  # columns where there is no terminal


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="html", show_default=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; stdout, or DIR/report.html.")
def report(folder: Path, form: str, output: Path | None) -> None:
    """Leaderboards with intervals, learning curves, failures, and the command behind every number."""
    from nnarena.core.files import write_text
    from nnarena.results.store import Store

    store = Store.open(folder)
    if form == "html":
        from nnarena.report.page import write_page

        output = output or folder / PAGE
        write_page(store, output)
        click.echo(output)
        return
    from nnarena.report.summary import summarise
    from nnarena.report.tables import render

    text = render(summarise(store), form)
    if output is None:
        click.echo(text.rstrip("\n"))
    else:
        write_text(output, text.rstrip("\n") + "\n")
        click.echo(output)


def show_end(store: Store, as_json: bool) -> None:
    """After a run: the leaderboard, and where the page lies. Trials need less than tables do: that may be elsewhere."""
    if importlib.util.find_spec("polars") is None:
        click.echo(f"No tables without polars: pip install polars, then nnarena report {store.folder}.", err=True)
        return
    from nnarena.report.page import write_page
    from nnarena.report.summary import summarise
    from nnarena.report.tables import terminal

    summary = summarise(store)
    write_page(store, store.folder / PAGE)
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
    width, _ = shutil.get_terminal_size((WIDE, 0))
    click.echo(terminal(summary, width if sys.stdout.isatty() else WIDE, color=sys.stdout.isatty()))
    click.echo(f"\nReport: {store.folder / PAGE}")
