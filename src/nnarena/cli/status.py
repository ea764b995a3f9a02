"""`nnarena status DIR`: done, running, failed, time left."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nnarena.core.count import counted

if TYPE_CHECKING:
    from nnarena.core.trial import Trial
    from nnarena.results.store import Store


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--trials", is_flag=True, help="List what is done, with the ids that rerun, look and start=… take.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def status(folder: Path, trials: bool, as_json: bool) -> None:
    """What of a study is done, running, failed or still to do, and how long it will take."""
    from nnarena.results.store import Store

    store = Store.open(folder)
    content = describe(store) | ({"done": finished(store)} if trials else {})
    click.echo(json.dumps(content, indent=1) if as_json else render_text(folder, content))


def finished(store: Store) -> list[dict[str, Any]]:
    """Every trial that is done: its id, what it is, and its test."""
    names = ("task", "model", "optimizer", "seed", "test")
    folders = [(trial.id, store.trial_folder(trial)) for trial in store.study.trials()]
    results = [(name, folder.result()) for name, folder in folders if folder.is_done]
    return [
        {"id": name, **{key: result[key] for key in names}} for name, result in results if result["status"] == "done"
    ]


def describe(store: Store) -> dict[str, Any]:
    trials = store.study.trials()
    table = store.table()
    results = {row["path"]: row for row in table.select("path", "status", "error", "seconds_total").to_dicts()}
    counts: Counter[str] = Counter()
    running, failed = [], []
    for trial in trials:
        result = results.get(trial.path)
        if result is None:
            state = _under_way(store, trial)
            counts["running" if state else "pending"] += 1
            running += [state] if state else []
            continue
        counts[result["status"]] += 1
        if result["status"] != "done":
            failed.append({"trial": trial.path, "status": result["status"], "error": result["error"]})
    seconds = [row["seconds_total"] for row in results.values() if row["seconds_total"]]
    left = counts["pending"] + counts["running"]
    mean = sum(seconds) / len(seconds) if seconds else None
    return {
        "study": store.study.name,
        "trials": len(trials),
        "counts": dict(counts),
        "running": running,
        "failed": failed,
        "seconds_left": None if mean is None else mean * left / max(1, len(running)),
    }


def _under_way(store: Store, trial: Trial) -> dict[str, Any] | None:
    folder = store.trial_folder(trial)
    if not folder.path.exists() or not folder.is_locked():
        return None
    curve = folder.curve()
    last = curve[-1] if curve else {"epoch": 0, "validation": {}}
    return {
        "trial": trial.path,
        "epoch": last["epoch"],
        "epochs": trial.protocol.epochs,
        "validation": last["validation"],
    }


def render_text(folder: Path, content: dict[str, Any]) -> str:
    from nnarena.launch.progress import duration, scores

    counts = content["counts"]
    parts = [f"{count} {name}" for name, count in counts.items() if count]
    lines = [f"{content['study']}: {counted(content['trials'], 'trial')}: {', '.join(parts)}."]
    if content["seconds_left"]:
        lines[0] += f" About {duration(content['seconds_left'])} left at the pace so far."
    for item in content.get("done", []):
        who = f"{item['task']} {item['model']} {item['optimizer']} seed {item['seed']}"
        lines.append(f"  {item['id']}  {who}: test {scores(item['test'])}")
    for item in content["running"]:
        lines.append(f"  running  {item['trial']}: epoch {item['epoch']}/{item['epochs']} {scores(item['validation'])}")
    for item in content["failed"]:
        lines.append(f"  {item['status']:8} {item['trial']}: {item['error'] or 'no finite loss'}")
    if counts.get("pending") and not content["running"]:
        lines.append("  Nothing is running: repeat the `nnarena run` command to go on.")
    return "\n".join(lines)
