"""`nnarena list`: what there is, without importing any of it."""

from __future__ import annotations

import json
from typing import Any

import click

from nnarena.core.components import ROOMS, catalogue
from nnarena.core.options import render
from nnarena.core.study import built_in_studies, find_study

KINDS = ["models", "tasks", "optimizers", "initialisers", "studies", "data"]


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def list_(kind: str | None, as_json: bool) -> None:
    """Models, tasks, optimizers, initialisers, studies and data sets."""
    listed = {name: entries(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        click.echo(json.dumps(listed[kind] if kind else listed, indent=1))
        return
    width = max(len(item["name"]) for items in listed.values() for item in items)
    for name, items in listed.items():
        if not kind:
            click.secho(name, bold=True)
        for item in items:
            click.echo(f"  {item['name']:{width}}  {item['summary']}")
    if not kind:
        click.echo("`nnarena show NAME` says more of each.")


def entries(kind: str) -> list[dict[str, Any]]:
    if kind == "studies":
        return [{"name": name, "summary": find_study(name).title} for name in built_in_studies()]
    if kind == "data":
        from nnarena.data import catalogue as data_sets

        return [
            {"name": item.name, "summary": item.summary, "present": item.present, "path": str(item.path)}
            for item in data_sets()
        ]
    component_kind = next(singular for singular in ROOMS if f"{singular}s" == kind)
    return [
        {
            "name": component.name,
            "summary": component.summary,
            "options": {option.name: render(option.default) for option in component.options},
            "reference": component.reference,
        }
        for component in catalogue(component_kind).values()
    ]
