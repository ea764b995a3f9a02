"""Maps and neighbours in the report."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from nnarena.report.page import build_page
from nnarena.report.words import (
    DOT,
    EDGE,
    HEIGHT,
    LETTER,
    SIDE,
    WIDTH,
    _box,
    _overlap,
    _readable,
    read_words,
    words_html,
)
from nnarena.results.store import Store

MAP = {
    "group": "capi<tals",
    "words": ["france", "paris", "italy", "<rome>"],
    "places": [[0.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 1.1]],
    "pairs": [[0, 1], [2, 3]],
    "share": 0.5,
}
SHOWN = {"kind": "words", "maps": [MAP], "neighbours": {"france": [["paris", 0.9], ["it&aly", 0.5]]}}


def test_a_map_has_every_word_and_pair_inside_of_it():
    html = words_html("analogy", [("ppmi", 0, SHOWN), ("lsa", 1, SHOWN)])
    assert html.count("<details open>") == 1 and html.count("<details") == 2
    assert html.count("<line") == 4 and html.count("<circle") == 8 and html.count('class="second"') == 4
    assert "&lt;rome&gt;" in html and "<rome>" not in html and "capi&lt;tals" in html and "it&amp;aly" in html
    assert "50% of the variance" in html and "<span>paris <small>0.90</small></span>" in html
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', html)]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places)
    (x1, y1), (x2, y2), (x3, y3), (x4, y4) = places[:4]
    assert (x2 - x1, y2 - y1) == pytest.approx((x4 - x3, y4 - y3), abs=0.11)  # lines that are alike stay so
    assert y3 < y1  # up is up
    assert words_html("analogy", []) == ""


def test_words_at_one_place_are_written_around_it():
    words = [f"word{number}" for number in range(8)]
    same = {"group": "g", "words": words, "places": [[0.0, 0.0]] * 8, "pairs": [[0, 1]], "share": 0.0}
    html = words_html("t", [("m", 0, SHOWN | {"maps": [same]})])
    assert html.count("<circle") == 8 and html.count("<text") == 4  # left, right, above and below; no more


def test_names_cover_neither_names_nor_dots_and_stay_on_the_map():
    rng = np.random.default_rng(0)
    words = ["long" * int(length) for length in rng.integers(1, 5, 60)]
    places = [(float(x), float(y)) for x, y in rng.uniform((SIDE, EDGE), (WIDTH - SIDE, HEIGHT - EDGE), (60, 2))]
    written = list(_readable(words, places, {}))
    boxes = [_box(anchor, x, y, LETTER * len(word)) for word, x, y, anchor in written]
    assert 30 < len(written) < 60
    assert not any(_overlap(one, other) for one, other in combinations(boxes, 2))
    dots = [(x - DOT, x + DOT, y - DOT, y + DOT) for x, y in places]
    assert not any(_overlap(box, dot) for box in boxes for dot in dots)
    assert all(left >= 0 and right <= WIDTH and top >= 0 and bottom <= HEIGHT for left, right, top, bottom in boxes)


def test_a_name_stands_away_from_its_line_if_it_can():
    places = [(200.0, 100.0), (300.0, 100.0)]
    ends = [(word, anchor) for word, _, _, anchor in _readable(["one", "two"], places, {0: True, 1: False})]
    assert ends == [("one", "end"), ("two", "start")]


def test_words_that_are_as_far_as_any_are_no_neighbours():
    html = words_html("t", [("one_hot", 0, SHOWN | {"neighbours": {"france": [["a", 0.0], ["b", 0.0]]}})])
    assert "no cosine is above 0" in html and "<span>" not in html


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps({"kind": "faces"}),
        json.dumps(SHOWN | {"maps": [MAP | {"pairs": [[0, 9]]}]}),
        json.dumps(SHOWN | {"maps": [MAP | {"places": [[0.0, 0.0]]}]}),
        json.dumps(SHOWN | {"neighbours": [1]}),
    ],
)
def test_what_cannot_be_read_is_not_shown(tmp_path: Path, content: str):
    assert read_words(tmp_path) is None
    (tmp_path / "exhibit.json").write_text(content)
    assert read_words(tmp_path) is None


def test_what_can_be_read_is(tmp_path: Path):
    (tmp_path / "exhibit.json").write_text(json.dumps(SHOWN))
    assert read_words(tmp_path) == json.loads(json.dumps(SHOWN))


def test_the_page_shows_it_below_the_board_of_its_task(arena: Store):
    assert 'class="words"' not in build_page(arena)
    folders = [folder for folder in arena.folders() if folder.is_done and folder.result()["status"] == "done"]
    for folder in folders[:3]:
        (folder.path / "exhibit.json").write_text(json.dumps(SHOWN))
    task, models = folders[0].result()["task"], {folder.result()["model"] for folder in folders[:3]}
    page = build_page(arena)
    section = page[page.index('<section class="words">') :]
    assert section.index(f"{task}: what they learned") > 0 and page.count('<section class="words">') == 1
    assert section.count("<summary>") == len(models)


def test_letters_on_a_map_can_be_read_and_one_map_does_not_fill_the_page(browser, arena: Store, tmp_path: Path):
    folder = next(folder for folder in arena.folders() if folder.is_done and folder.result()["status"] == "done")
    for maps in ([MAP] * 4, [MAP]):
        (folder.path / "exhibit.json").write_text(json.dumps(SHOWN | {"maps": maps}))
        (tmp_path / "report.html").write_text(build_page(arena))
        for width in (1300, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto((tmp_path / "report.html").as_uri())
            drawn = page.evaluate("() => [...document.querySelectorAll('.planes svg')].map((svg) => svg.clientWidth)")
            page.close()
            assert len(drawn) == len(maps) and all(12 * wide / WIDTH >= 10 for wide in drawn)
            assert all(wide < 700 for wide in drawn)
