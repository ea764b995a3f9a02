"""What models with attention looked at, as heat maps: a row for every word that was written, a column for each read."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnarena.results.folder import ATTENTION

if TYPE_CHECKING:
    import polars as pl

CELL = 15  # pixels
LEAST = 0.005  # below which a cell is left white
MOST = 12  # competitors on a page


def attention_html(trials: Path, table: pl.DataFrame) -> str:
    """The maps of every competitor's first seed; nothing where nobody has any."""
    figures: dict[tuple[str, ...], str] = {}
    for trial in table.sort("seed", maintain_order=True).iter_rows(named=True):
        cell = tuple(trial[kind] for kind in ("task", "model", "optimizer"))
        maps, of = ([], "") if cell in figures else read_maps(trials / trial["path"])
        if maps:
            caption = f"{trial['model']} on {trial['task']}, seed {trial['seed']}"
            figures[cell] = figure(maps, f"{caption}: {of}" if of else caption)
    if not figures:
        return ""
    few = f" The first {MOST} of {len(figures)} competitors." if len(figures) > MOST else ""
    return (
        '<section id="attention"><h2>What was looked at</h2><p class="meta">Each row is a word that was written, each '
        "column one that was read; the darker, the more attention. Words that are not those of the target are "
        f'red.{few}</p><div class="heat">{"".join([*figures.values()][:MOST])}</div></section>'
    )


def read_maps(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """What a trial left to show, and which attention that is of, where there are several.

    Nothing if it left nothing, or something that cannot be read.
    """
    try:
        left = json.loads((folder / ATTENTION).read_text(encoding="utf-8"))
        maps, of = left["maps"], left.get("of", "")
    except (OSError, ValueError, KeyError, TypeError):
        return [], ""
    whole = [drawn for drawn in maps if _is_whole(drawn)] if isinstance(maps, list) else []
    return whole, of if isinstance(of, str) else ""


def figure(maps: list[dict[str, Any]], caption: str) -> str:
    """Heat maps side by side, and whose they are."""
    return f"<figure><figcaption>{escape(caption)}</figcaption><div>{''.join(map(heat_map, maps))}</div></figure>"


def heat_map(drawn: dict[str, Any]) -> str:
    """One of them. Colours come from the page's style sheet."""
    source, target, written = drawn["source"], drawn["target"], drawn["written"]
    left, top = 22, 18
    width, height = left + CELL * len(source) + 2, top + CELL * len(written) + 2
    parts = [
        f'<text x="{left + CELL * (place + 0.5)}" y="{top - 5}" text-anchor="middle">{escape(word)}</text>'
        for place, word in enumerate(source)
    ]
    for row, (word, weights) in enumerate(zip(written, drawn["weights"], strict=True)):
        wrong = row >= len(target) or target[row] != word
        y = top + CELL * row
        parts.append(
            f'<text x="{left - 5}" y="{y + CELL - 4}" text-anchor="end"{" class=wrong" * wrong}>{escape(word)}</text>'
        )
        parts += [
            f'<rect x="{left + CELL * column}" y="{y}" width="{CELL}" height="{CELL}" fill-opacity="{weight:.3g}"/>'
            for column, weight in enumerate(weights)
            if weight >= LEAST
        ]
    parts.append(
        f'<path class="frame" d="M{left} {top}h{CELL * len(source)}v{CELL * len(written)}h{-CELL * len(source)}z"/>'
    )
    label = f"{' '.join(source)} was written as {' '.join(written)}"
    return (
        f'<svg class="map" role="img" aria-label="{escape(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def _is_whole(drawn: Any) -> bool:
    try:
        words = [*drawn["source"], *drawn["target"], *drawn["written"]]
        rows = drawn["weights"]
        return (
            all(isinstance(word, str) for word in words)
            and len(rows) == len(drawn["written"])
            and all(len(row) == len(drawn["source"]) for row in rows)
            and all(isinstance(weight, float | int) and 0 <= weight <= 1 for row in rows for weight in row)
        )
    except (KeyError, TypeError):
        return False
