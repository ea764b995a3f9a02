"""What a model of words has learned, drawn: maps of some words, and the neighbours of others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from nnarena.results.folder import EXHIBIT

WIDTH, HEIGHT, SIDE, EDGE = 560, 360, 84, 14  # of a map; room at its sides for the words
COLORS = 10  # as many as the style sheet has
DOT, GAP = 3.0, 6.0  # pixels: the radius of a dot, and from its middle to where its word begins
LINE, LETTER = 12.0, 6.4  # pixels that a line of text is high, and a letter is wide at most
Box = tuple[float, float, float, float]  # left, right, top, bottom


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
        f'<div class="planes">{"".join(map(_map, content["maps"], range(COLORS)))}</div>'
        f"{_neighbours(content['neighbours'])}</details>"
        for place, (name, seed, content) in enumerate(shown)
    ]
    if not folds:
        return ""
    return (
        f'<section class="words"><h2>{escape(task)}: what they learned</h2>'
        '<p class="meta">Words in the plane in which their vectors, taken of length 1, differ most (principal '
        "components). Lines join the two words of a pair, from a full dot to an open one: where their relation is a "
        "difference of vectors, the lines run alike. A dot without a name has no room for it: point at it. Below, the "
        f"words with the largest cosine to some of them.</p>{''.join(folds)}</section>"
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
        f'<circle class="{"second" if number in seconds else ""}" cx="{x:.1f}" cy="{y:.1f}" r="{DOT:g}">'
        f"<title>{escape(word)}</title></circle>"
        for number, (word, (x, y)) in enumerate(zip(words, places, strict=True))
    )
    away = {end: places[end][0] < places[other][0] for pair in content["pairs"] for end, other in (pair, pair[::-1])}
    texts = "".join(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(word)}</text>'
        for word, x, y, anchor in _readable(words, places, away)
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
) -> Iterator[tuple[str, float, float, str]]:
    """Names that cover neither each other nor a dot, where each is written, and which end of it is there.

    Beside its dot, away from its line, if there is room; else on the other side, above or below. `away` says of a
    dot whether its line runs to the right. Words that find no room are told by their dots.
    """
    dots = [(x - DOT, x + DOT, y - DOT, y + DOT) for x, y in places]
    taken: list[Box] = []
    for number, (word, place) in enumerate(zip(words, places, strict=True)):
        others = [dot for other, dot in enumerate(dots) if other != number]
        for anchor, x, y in _around(*place, left=away.get(number, False)):
            box = _box(anchor, x, y, LETTER * len(word))
            if _inside(box) and not any(_overlap(box, other) for other in [*taken, *others]):
                taken.append(box)
                yield word, x, y, anchor
                break


def _around(x: float, y: float, left: bool) -> list[tuple[str, float, float]]:
    """Where the name of a dot may stand, the best place first: the end of it that is at (x, y), x and y."""
    beside = [("end", x - GAP, y + LINE / 3), ("start", x + GAP, y + LINE / 3)]
    return [*(beside if left else beside[::-1]), ("middle", x, y - LINE * 0.7), ("middle", x, y + LINE * 1.4)]


def _box(anchor: str, x: float, y: float, width: float) -> Box:
    """What a name covers; its letters stand on y."""
    start = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
    return start, start + width, y - LINE * 0.8, y + LINE * 0.2


def _inside(box: Box) -> bool:
    return box[0] >= 0 and box[1] <= WIDTH and box[2] >= 0 and box[3] <= HEIGHT


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _neighbours(content: dict[str, list[tuple[str, float]]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(word)}</th><td>{_near(found)}</td></tr>' for word, found in content.items()
    )
    return (
        f'<table class="plain near"><thead><tr><th>word</th><th>nearest, with the cosine</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _near(found: list[tuple[str, float]]) -> str:
    """The words with a cosine above 0; where there is none, any order of them would be chance."""
    shown = [f"<span>{escape(word)} <small>{cosine:.2f}</small></span>" for word, cosine in found if cosine > 0]
    return " ".join(shown) or "<i>none: no cosine is above 0</i>"
