"""What a model of words has learned, drawn: a map of some words, and the neighbours of others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from nnarena.results.folder import EXHIBIT

WIDTH, HEIGHT, EDGE, RIGHT = 760, 520, 14, 78  # of the map; room at its right for the words
COLORS = 10  # as many as the style sheet has
LINE = 11.0  # pixels that a word is high


def read_words(folder: Path) -> dict[str, Any] | None:
    """What a trial of words shows; None if it shows nothing, or nothing that can be read."""
    try:
        content = json.loads((folder / EXHIBIT).read_text(encoding="utf-8"))
        if content["kind"] != "words":
            return None
        words_map = content["map"]
        count = len(words_map["words"])
        whole = len(words_map["places"]) == count and all(len(place) == 2 for place in words_map["places"])
        if not whole or any(not 0 <= end < count for one, other, _ in words_map["pairs"] for end in (one, other)):
            return None
        return content
    except (OSError, ValueError, KeyError, TypeError):
        return None


def words_html(task: str, shown: Iterable[tuple[str, int, dict[str, Any]]]) -> str:
    """A section with a fold for every competitor (name, seed, what it shows); the first is open."""
    folds = [
        f"<details{' open' if place == 0 else ''}><summary>{escape(name)} <small>seed {seed}</small></summary>"
        f'<div class="learned">{_map(content["map"])}{_neighbours(content["neighbours"])}</div></details>'
        for place, (name, seed, content) in enumerate(shown)
    ]
    if not folds:
        return ""
    return (
        f'<section class="words"><h2>{escape(task)}: what they learned</h2>'
        '<p class="meta">Some words in the plane in which their vectors differ most (principal components of vectors '
        "of length 1); lines join the two words of a pair, and where a relation is a difference of vectors, lines of a "
        f"colour run alike. Beside it, the words with the largest cosine.</p>{''.join(folds)}</section>"
    )


def _map(content: dict[str, Any]) -> str:
    places = _scaled(content["places"])
    groups = list(dict.fromkeys(group for *_, group in content["pairs"]))
    color = {end: groups.index(group) % COLORS for one, other, group in content["pairs"] for end in (one, other)}
    lines = "".join(
        f'<line class="c{color[one]}" x1="{places[one][0]:.1f}" y1="{places[one][1]:.1f}" '
        f'x2="{places[other][0]:.1f}" y2="{places[other][1]:.1f}"/>'
        for one, other, _ in content["pairs"]
    )
    dots = "".join(
        f'<circle class="c{color.get(number, 0)}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(word)}</title></circle>'
        for number, (word, (x, y)) in enumerate(zip(content["words"], places, strict=True))
    )
    texts = "".join(
        f'<text class="c{color.get(number, 0)}" x="{x + 5:.1f}" y="{y + 3.5:.1f}">{escape(content["words"][number])}</text>'
        for number, (x, y) in enumerate(places)
        if number in _readable(content["words"], places)
    )
    share = sum(content["share"])
    key = "".join(
        f'<span class="c{place % COLORS}"><i></i>{escape(group)}</span>' for place, group in enumerate(groups) if group
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Map of words">{lines}{dots}{texts}</svg>'
        f'<figcaption class="key">{key}<span>{share:.0%} of the variance is in this plane</span></figcaption></figure>'
    )


def _scaled(places: list[list[float]]) -> list[tuple[float, float]]:
    """In pixels, both axes by the same factor, the middle in the middle."""
    xs, ys = ([place[axis] for place in places] for axis in (0, 1))
    span = max((max(xs) - min(xs)) / (WIDTH - EDGE - RIGHT), (max(ys) - min(ys)) / (HEIGHT - 2 * EDGE), 1e-9)
    left, top = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [((x - left) / span + (WIDTH + EDGE - RIGHT) / 2, (top - y) / span + HEIGHT / 2) for x, y in zip(xs, ys, strict=True)]


def _readable(words: list[str], places: list[tuple[float, float]]) -> set[int]:
    """Whose names can be written without covering another; the others are told by their dots."""
    taken: list[tuple[float, float, float]] = []
    chosen = set()
    for number, (word, (x, y)) in enumerate(zip(words, places, strict=True)):
        end = x + 8 + 5.8 * len(word)
        if all(end < left or x > right or abs(y - height) >= LINE for left, right, height in taken):
            taken.append((x, end, y))
            chosen.add(number)
    return chosen


def _neighbours(content: dict[str, list[tuple[str, float]]]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(word)}</th><td>"
        + ", ".join(f'<span title="cosine {cosine:.2f}">{escape(near)}</span>' for near, cosine in found)
        + "</td></tr>"
        for word, found in content.items()
    )
    return f'<table class="plain near"><thead><tr><th>word</th><th>nearest</th></tr></thead><tbody>{rows}</tbody></table>'
