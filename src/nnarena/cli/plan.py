"""`nnarena run … --plan`: the matrix, what is already done, an estimate of the cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from nnarena.core.count import counted
from nnarena.core.study import Study


def show_plan(study: Study, folder: Path, device: str, jobs: int | None, population: int | None, as_json: bool) -> None:
    from nnarena.launch.plan import make_plan

    tell = sys.stderr.isatty() and not as_json

    def measuring(name: str) -> None:
        if tell:
            click.echo(f"\r\033[Kmeasuring {name} …", nl=False, err=True)

    plan = make_plan(study, folder, device, jobs, population, measuring)
    if tell:
        click.echo("\r\033[K", nl=False, err=True)
    click.echo(json.dumps(plan, indent=1) if as_json else render_text(plan))


def render_text(plan: dict[str, Any]) -> str:
    from nnarena.launch.progress import duration

    rows = [("task", "model", "optimizer", "parameters", "trials", "done", "an epoch", "at most")]
    for cell in plan["cells"]:
        rows.append(
            (
                cell["task"],
                cell["model"],
                cell["optimizer"],
                f"{cell['parameters']:,}",
                str(cell["trials"]),
                str(cell["done"]),
                duration(cell["seconds_per_epoch"]),
                duration(cell["seconds_left"]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            text.ljust(width) if place < 3 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(click.style("  ".join(cells).rstrip(), bold=number == 0))
    lines.append("")
    trials, left = counted(plan["trials"], "trial"), duration(plan["seconds_left"])
    lines.append(
        f"{trials}, {plan['done']} done; at most {left} on {plan['device']}, {plan['jobs']} at a time, "
        f"if none stops early. Folder: {plan['folder']}"
    )
    lines += [f"Before it can run: {text}" for text in plan["obstacles"]]
    return "\n".join(lines)
