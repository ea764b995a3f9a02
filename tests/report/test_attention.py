"""Heat maps of attention: what is drawn, and what cannot be."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest

from nnarena.report.attention import CELL, MOST, attention_html, figure, heat_map, read_maps
from nnarena.results.folder import ATTENTION

MAP = {
    "source": ["a", "b", "<"],
    "target": ["<", "b", "■"],
    "written": ["<", "a", "■"],
    "weights": [[0.0, 0.1, 0.9], [1.0, 0.0, 0.0], [0.001, 0.5, 0.499]],
}
ROW = {"task": "reverse", "model": "m", "optimizer": "adam", "seed": 0, "path": "one"}


def test_a_cell_for_every_weight_that_can_be_seen():
    drawn = figure([MAP], "who & where")
    cells = re.findall(r'<rect x="(\d+)" y="(\d+)" .*?fill-opacity="([\d.]+)"', drawn)
    assert [float(opacity) for *_, opacity in cells] == [0.1, 0.9, 1.0, 0.5, 0.499]
    (x, y), (other_x, other_y) = ((int(a), int(b)) for a, b, _ in cells[1:3])
    assert (x - other_x, other_y - y) == (2 * CELL, CELL)
    assert "who &amp; where" in drawn and "&lt;</text>" in drawn and "<<" not in drawn


def test_words_that_the_target_has_not_are_marked():
    assert re.findall(r"class=wrong>(.)<", heat_map(MAP)) == ["a"]
    assert len(re.findall("class=wrong", heat_map(MAP | {"target": ["<"]}))) == 2


def test_the_page_shows_the_first_seed_of_each_competitor(tmp_path):
    rows = [ROW | {"path": f"{model}{seed}", "model": model, "seed": seed} for model in "mn" for seed in (1, 0)]
    for row in rows[:3]:
        (tmp_path / row["path"]).mkdir()
        of = {"of": "its <last> layer"} if row["model"] == "n" else {}
        (tmp_path / row["path"] / ATTENTION).write_text(json.dumps({"maps": [MAP, MAP, MAP]} | of))
    shown = attention_html(tmp_path, pl.DataFrame(rows))
    captions = re.findall("<figcaption>(.*?)</figcaption>", shown)
    assert captions == ["m on reverse, seed 0", "n on reverse, seed 1: its &lt;last&gt; layer"]
    assert shown.count("<svg") == 6 and "competitors" not in shown
    crowd = [rows[0] | {"model": f"m{place}"} for place in range(MOST + 3)]
    shown = attention_html(tmp_path, pl.DataFrame(crowd))
    assert shown.count("<figure") == MOST and f"The first {MOST} of {MOST + 3} competitors." in shown
    assert attention_html(tmp_path, pl.DataFrame([ROW])) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"maps": [], "of": 3}',
        '{"maps": 3}',
        '{"maps": [3]}',
        json.dumps({"maps": [MAP | {"weights": [[1, 0, 0]]}]}),
        json.dumps({"maps": [MAP | {"weights": [[1, 0], [1, 0], [1, 0]]}]}),
        json.dumps({"maps": [MAP | {"weights": [["<script>", 0, 0]] * 3}]}),
        json.dumps({"maps": [MAP | {"source": [1, 2, 3]}]}),
    ],
)
def test_what_cannot_be_read_is_not_shown(text, tmp_path):
    (tmp_path / ATTENTION).write_text(text)
    assert read_maps(tmp_path) == ([], "")
