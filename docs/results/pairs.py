"""Pairs of competitors, seed by seed: python docs/results/pairs.py DIR…

Rivals with the same seed saw the same data, split and batches, so their accuracies are compared in pairs: the mean of
the differences, in points, and its 95 % t interval. Two competitors differ where that leaves out zero.
"""

import itertools
import sys
from pathlib import Path

from nnarena.results.store import Store
from nnarena.stats.intervals import estimate

found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
for folder in map(Path, sys.argv[1:]):
    for trial in Store.open(folder).folders():
        row = trial.result() if trial.is_done else {}
        if row.get("status") == "done":
            rivals = found.setdefault(row["task"], {})
            rivals.setdefault((row["model"], row["optimizer"]), {})[row["seed"]] = row["test"]["accuracy"]

print("| task | pair | difference | 95 % interval | seeds |\n|---|---|---:|---:|---:|")
for task, rivals in sorted(found.items()):
    for one, other in itertools.combinations(sorted(rivals), 2):
        seeds = sorted(rivals[one].keys() & rivals[other].keys())
        if len(seeds) < 2:
            continue
        gap = estimate([100 * (rivals[one][seed] - rivals[other][seed]) for seed in seeds])
        # What both have in common goes without saying.
        names = [
            " ".join(part for part, same in zip(rival, other_, strict=True) if part != same)
            for rival, other_ in ((one, other), (other, one))
        ]
        print(
            f"| {task} | {names[0]} − {names[1]} | {gap.mean:+.2f} | [{gap.low:+.2f}, {gap.high:+.2f}] | {len(seeds)} |"
        )
