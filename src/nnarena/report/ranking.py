"""A summary as leaderboards: one a task, competitors with their rank, trivial baselines where their value stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nnarena.report.numbers import interval, number, whole, with_spread
from nnarena.report.published import BEST_ON_TEST, COLLAPSED, TRAINING
from nnarena.stats.metrics import rank_key

ABOUT_COLLAPSED = "Collapsed: a model that gives all test samples, or almost all, the same class."
WATCHED = "The test metrics of every epoch were recorded (watch_test); nothing was chosen by them."


@dataclass(frozen=True)
class Line:
    """A row of a leaderboard. `rank` is None for a baseline and for a competitor without results."""

    name: str
    rank: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    test: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    @property
    def is_baseline(self) -> bool:
        return not self.row

    def score(self, metric: str, what: str = "mean") -> float | None:
        return self.test.get(metric, {}).get(what)


@dataclass(frozen=True)
class Board:
    """One task's leaderboard; `metrics` has the ranking one first."""

    task: str
    metrics: list[str]
    lines: list[Line]

    @property
    def optimizers(self) -> list[str]:
        return sorted({line.row["optimizer"] for line in self.lines if line.row})

    @property
    def beside(self) -> list[str]:
        """Headings of what stands beside the test metrics, in any row."""
        return list(dict.fromkeys(name for line in self.lines for name in line.row.get("beside", {})))

    @property
    def has_published(self) -> bool:
        return any(line.row.get("published") for line in self.lines)


def boards(summary: Mapping[str, Any]) -> list[Board]:
    """All leaderboards, tasks in the summary's order."""
    tasks: dict[str, list[Mapping[str, Any]]] = {}
    for row in summary["rows"]:
        tasks.setdefault(row["task"], []).append(row)
    return [_board(task, rows, summary) for task, rows in tasks.items()]


def _board(task: str, rows: list[Mapping[str, Any]], summary: Mapping[str, Any]) -> Board:
    ranking = summary["ranked_by"].get(task)
    if ranking is None:
        return Board(task, [], [Line(row["model"], row=row) for row in rows])
    metrics = [ranking, *(name for name in rows[0]["test"] if name != ranking)]
    lines = [Line(row["model"], row=row, test=row["test"]) for row in rows]
    lines += [
        Line(baseline["name"], test={name: {"mean": value} for name, value in baseline["test"].items()})
        for baseline in summary["baselines"].get(task, [])
    ]
    # Stable, and at equal values a baseline stands above a competitor: that one has shown nothing yet.
    lines.sort(key=lambda line: (*rank_key(ranking, line.score(ranking)), not line.is_baseline))
    ranks = iter(range(1, len(lines) + 1))
    ranked = [
        line if line.is_baseline or line.score(ranking) is None else Line(line.name, next(ranks), line.row, line.test)
        for line in lines
    ]
    return Board(task, metrics, ranked)


def verdict_sentence(metric: str, row: Mapping[str, Any]) -> str:
    """`published 0.935 ± 0.006, ours 0.936 [0.930, 0.942]: reproduced`."""
    figure = row["published"][metric]
    theirs = published_figure(metric, figure)
    scores = dict(row["test"])
    for prefix, part in ((BEST_ON_TEST, "best_on_test"), (TRAINING, "training")):
        scores |= {prefix + name: score for name, score in row.get(part, {}).items()}
    if metric in scores:
        ours = scores[metric]
        text = f"{number(ours['mean'])} {interval(ours['low'], ours['high'])}" if ours["mean"] is not None else "none"
    elif metric == COLLAPSED:
        text = f"{row[metric]} of {row['trials']}"
    else:
        text = whole(row[metric]) if metric == "parameters" else number(row[metric])
    why = f" ({figure['why']})" if figure["verdict"] in ("undecided", "not comparable") and figure.get("why") else ""
    return f"published {theirs}, ours {text}: {figure['verdict']}{why}"


def published_figure(metric: str, figure: Mapping[str, Any]) -> str:
    """A published figure with the digits that were printed, as far as a float keeps them."""
    if metric == "parameters":
        return whole(figure["mean"])
    if metric == COLLAPSED:
        return "yes" if figure["mean"] else "no"
    if 0 < abs(figure["mean"]) < 1e-3 and figure["std"] is None:
        return number(figure["mean"], len(f"{figure['mean']:e}".partition("e")[0].strip("-").rstrip("0")) - 1)
    places = max(3, *(len(f"{figure[key] or 0:g}".partition(".")[2]) for key in ("mean", "std")))
    mean = f"{figure['mean']:.{places}f}"
    return mean if figure["std"] is None else f"{mean} ± {figure['std']:.{places}f}"


def notes(summary: Mapping[str, Any]) -> list[str]:
    """Sentences that belong under every leaderboard."""
    found = []
    if not summary["exclusive_timing"] and summary["rows"]:
        found.append("~ The seconds were measured while other trials ran on the same device.")
    if summary["watch_test"]:
        found.append(WATCHED)
    if any(row.get("collapsed") for row in summary["rows"]):
        found.append(ABOUT_COLLAPSED)
    if summary["pending"]:
        count = summary["pending"]
        found.append("One trial of the study is not finished." if count == 1 else f"{count} trials are not finished.")
    if summary["missing"]:
        found.append(f"This version lacks models of the study: {', '.join(summary['missing'])}.")
    return found


def trial_remarks(row: Mapping[str, Any]) -> list[str]:
    """What is to be said of a row's trials beside how many there are: `1 failed`, `2 of 3 collapsed`."""
    return [*([f"{row['failed']} failed"] if row["failed"] else []), *collapsed_text(row)]


def collapsed_text(row: Mapping[str, Any]) -> list[str]:
    """`2 of 3 collapsed`, or nothing."""
    return [f"{row['collapsed']} of {row['trials']} collapsed"] if row.get("collapsed") else []


def beside_text(line: Line, name: str) -> str:
    """`mean ± std` of what stands beside the test metrics."""
    score = line.row.get("beside", {}).get(name, {})
    return with_spread(score.get("mean"), score.get("std")) if score else ""


def score_texts(line: Line, metric: str) -> tuple[str, str]:
    """`mean ± std` and `[low, high]` of one metric."""
    score = line.test.get(metric, {})
    return with_spread(score.get("mean"), score.get("std")), interval(score.get("low"), score.get("high"))
