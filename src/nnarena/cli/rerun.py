"""`nnarena rerun DIR TRIAL`: the same trial again, and whether it came out the same."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("trial")
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="Where to compute.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def rerun(folder: Path, trial: str, device: str, as_json: bool) -> int:
    """Do a trial again and compare: weights, curve and test, bit by bit. Exit code 1 if anything differs."""
    from nnarena.launch.progress import progress
    from nnarena.launch.rerun import rerun_trial
    from nnarena.results.store import Store

    store = Store.open(folder)
    comparison = rerun_trial(store, store.find(trial), device, progress(quiet=as_json))
    if as_json:
        click.echo(json.dumps(comparison, indent=1))
    elif comparison["same"]:
        click.echo("The same: every weight, every epoch and every test figure agree to the last bit.")
    else:
        click.echo("Not the same:")
        for line in comparison["differences"]:
            click.echo(f"  {line}")
    return 0 if comparison["same"] else 1
