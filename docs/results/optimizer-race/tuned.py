"""Every optimizer at its best learning rate: python docs/results/optimizer-race/tuned.py DIR

The rate is chosen by validation alone, as on the page (`nnarena.report.tuned`); the figures are the test's, mean ±
sample standard deviation over seeds. A rate with † is one at which a trial diverged; a best rate with * is at an end of
those that were tried, so that a better one may lie beyond.
"""

import sys
from pathlib import Path

from nnarena.report.numbers import with_spread
from nnarena.report.summary import current_trials, summarise_table
from nnarena.report.tuned import Tuned, tuned
from nnarena.results.store import Store
from nnarena.stats.intervals import mean, sample_std


def score(one: Tuned, metric: str) -> str:
    values = one.values(metric)
    return with_spread(mean(values), sample_std(values)) if values else "–"


def main(folder: Path) -> None:
    store = Store.open(folder)
    table = current_trials(store)
    summary = summarise_table(store, table)
    for task, metric in summary["ranked_by"].items():
        metrics = next(list(row["test"]) for row in summary["rows"] if row["task"] == task and row["test"])
        metrics = [metric, *(name for name in metrics if name != metric)]
        print(f"\n{task}\n\n| optimizer | rate | {' | '.join(metrics)} | tried |")
        print(f"|---|---:|{'---:|' * len(metrics)}---|")
        for one in tuned(table, task, metric):
            end = "*" if len(one.rates) > 1 and one.lr in (one.rates[0], one.rates[-1]) else ""
            tried = ", ".join(f"{rate:g}{' †' if rate in one.failed else ''}" for rate in one.rates if rate is not None)
            scores = " | ".join(score(one, name) for name in metrics)
            print(f"| {one.optimizer} | {one.lr or 0:g}{end} | {scores} | {tried} |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python docs/results/optimizer-race/tuned.py DIR")
    main(Path(sys.argv[1]))
