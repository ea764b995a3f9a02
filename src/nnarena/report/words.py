"""What a model of words has learned, drawn: maps of some words, and the neighbours of others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from nnarena.results.folder import EXHIBIT

WIDTH, HEIGHT, SIDE, EDGE = 440, 300, 72, 12  # of a map; room at its sides for the words
COLORS = 10  # as many as the style sheet has
LEFT = ' text-anchor="end"'
LINE, LETTER = 11.0, 5.8  # pixels that a line of text is high, and a letter is wide


def read_words(folder: Path) -> dict[str, Any] | None:
    """What a trial of words shows; None if it shows nothing, or nothing that can be read."""
    try:
        content = json.loads((folder / EXHIBIT).read_text(encoding="utf-8"))
        if content["kind"] != "words":
            return None
        words_html("", [("", 0, content)])
        return content
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def words_html(task: str, shown: Iterable[tuple[str, int, dict[str, Any]]]) -> str:
    """A section with a fold for every competitor (name, seed, what it shows); the first is open."""
    folds = [
        f"<details{'' if place else ' open'}><summary>{escape(name)} <small>seed {seed}</small></summary>"
        f'<div class="learned"><div class="maps">{"".join(map(_map, content["maps"], range(COLORS)))}</div>'
        f"{_neighbours(content['neighbours'])}</div></details>"
        for place, (name, seed, content) in enumerate(shown)
    ]
    if not folds:
        return ""
    return (
        f'<section class="words"><h2>{escape(task)}: what they learned</h2>'
        '<p class="meta">Words in the plane in which their vectors, taken of length 1, differ most (principal '
        "components). Lines join the two words of a pair: where their relation is a difference of vectors, the lines "
        f"run alike. Beside them, the words with the largest cosine.</p>{''.join(folds)}</section>"
    )


def _map(content: dict[str, Any], color: int) -> str:
    words, places = content["words"], _scaled(content["places"])
    lines = "".join(
        f'<line x1="{places[one][0]:.1f}" y1="{places[one][1]:.1f}" x2="{places[other][0]:.1f}" '
        f'y2="{places[other][1]:.1f}"/>'
        for one, other in content["pairs"]
    )
    seconds = {other for _, other in content["pairs"]}
    dots = "".join(
        f'<circle class="{"second" if number in seconds else ""}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        f"<title>{escape(word)}</title></circle>"
        for number, (word, (x, y)) in enumerate(zip(words, places, strict=True))
    )
    away = {end: places[end][0] < places[other][0] for pair in content["pairs"] for end, other in (pair, pair[::-1])}
    texts = "".join(
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}"{LEFT if left else ""}>{escape(word)}</text>'
        for word, x, y, left in _readable(words, places, away)
    )
    name = escape(str(content["group"]))
    return (
        f'<figure class="c{color}"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Map of {name}">'
        f"{lines}{dots}{texts}</svg>"
        f"<figcaption><b>{name}</b> {content['share']:.0%} of the variance</figcaption></figure>"
    )


def _scaled(places: list[list[float]]) -> list[tuple[float, float]]:
    """In pixels, both axes by the same factor, the middle in the middle."""
    xs, ys = ([float(place[axis]) for place in places] for axis in (0, 1))
    span = max((max(xs) - min(xs)) / (WIDTH - 2 * SIDE), (max(ys) - min(ys)) / (HEIGHT - 2 * EDGE), 1e-9)
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [
        ((x - middle_x) / span + WIDTH / 2, (middle_y - y) / span + HEIGHT / 2) for x, y in zip(xs, ys, strict=True)
    ]


def _readable(
    words: list[str], places: list[tuple[float, float]], away: dict[int, bool]
) -> Iterator[tuple[str, float, float, bool]]:
    """Names that cover no other, where they are written, and whether to the left of it, away from the line.

    The others are told by their dots.
    """
    taken: list[tuple[float, float, float]] = []
    for number, (word, (x, y)) in enumerate(zip(words, places, strict=True)):
        left = away.get(number, False)
        start, width = (x - 6 if left else x + 6), LETTER * len(word)
        low, high = (start - width, start) if left else (start, start + width)
        if all(high < first or low > last or abs(y - height) >= LINE for first, last, height in taken):
            taken.append((low, high, y))
            yield word, start, y, left


def _neighbours(content: dict[str, list[tuple[str, float]]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(word)}</th><td>'
        + ", ".join(f'<span title="cosine {cosine:.2f}">{escape(near)}</span>' for near, cosine in found)
        + "</td></tr>"
        for word, found in content.items()
    )
    return (
        f'<table class="plain near"><thead><tr><th>word</th><th>nearest</th></tr></thead><tbody>{rows}</tbody></table>'
    )
