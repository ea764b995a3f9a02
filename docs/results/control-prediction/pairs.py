"""Pairs of competitors, seed by seed: python pairs.py DIR…

Rivals with the same seed saw the same episodes, split and batches, so their accuracies are compared in pairs: the mean
of the differences and its 95 % t interval. Two competitors differ where that leaves out zero.
"""

import itertools
import sys
from pathlib import Path

from nnarena.results.store import Store
from nnarena.stats.intervals import estimate

found: dict[str, dict[str, dict[int, float]]] = {}
for folder in map(Path, sys.argv[1:]):
    for trial in Store.open(folder).folders():
        row = trial.result() if trial.is_done else {}
        if row.get("status") == "done":
            found.setdefault(row["task"], {}).setdefault(row["model"], {})[row["seed"]] = row["test"]["accuracy"]

for task, models in sorted(found.items()):
    for one, other in itertools.combinations(sorted(models), 2):
        seeds = sorted(models[one].keys() & models[other].keys())
        if len(seeds) < 2:
            continue
        gap = estimate([100 * (models[one][seed] - models[other][seed]) for seed in seeds])
        print(f"| {task} | {one} − {other} | {gap.mean:+.2f} | [{gap.low:+.2f}, {gap.high:+.2f}] | {len(seeds)} |")
