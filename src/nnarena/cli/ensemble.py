"""`nnarena ensemble DIR`: the seeds of every competitor asked together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--device", default="auto", metavar="auto|cpu|cuda", help="Where to compute.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def ensemble(folder: Path, device: str, as_json: bool) -> None:
    """The mean prediction of all seeds of a competitor beside one seed alone; the report shows it from then on.

    The seeds must share their test: run the study with --set same_data=true (and --set bagging=true to bag them).
    """
    from nnarena.launch.ensemble import ensembles
    from nnarena.results.store import Store

    found = ensembles(Store.open(folder), device)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for item in found:
        click.echo(sentence(item))


def sentence(item: dict[str, Any]) -> str:
    """`digits gru adam: 5 together accuracy 0.981, one alone 0.969`."""
    from nnarena.report.numbers import number

    metric = list(item["test"])[-1]
    return (
        f"{item['task']} {item['model']} {item['optimizer']}: {item['members']} together {metric} "
        f"{number(item['test'][metric])}, one alone {number(item['single'][metric])}"
    )
