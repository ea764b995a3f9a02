"""Paths on surfaces, in the page and in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_stores import make_study, trials, write

from nnarena.core.surfaces import SURFACES
from nnarena.report.page import build_page, write_page
from nnarena.report.paths import HEIGHT, WIDTH, read_path
from nnarena.results.store import Store

OPTIMIZERS = ["sgd[lr=0.01]", "adam[lr=0.1]", "nesterov[lr=0.01]"]
TASK = {"of": "beale", "steps": 50, "start": None, "noise": None}


def path_of(surface: str, share: float = 1.0, steps: int = 100) -> dict[str, Any]:
    """A straight walk from the start towards a minimum."""
    (x, y), (a, b) = SURFACES[surface].start, SURFACES[surface].minima[0]
    places = []
    for step in range(0, steps + 1, 10):
        part = share * step / steps
        place = x + part * (a - x), y + part * (b - y)
        places.append([step, *place, SURFACES[surface].formula(*place)])
    return {"kind": "path", "surface": surface, "steps": steps, "places": places}


@pytest.fixture
def walks(tmp_path: Path) -> Store:
    """Two surfaces and three optimizers, one seed each."""
    tasks = ["surface[of=beale]", "surface[of=saddle]"]
    store = Store.create(tmp_path / "store", make_study(tasks, ["point"], OPTIMIZERS))
    for place, trial in enumerate(trials(store.study)):
        surface, lr = str(trial.task.options["of"]), trial.optimizer.options["lr"]
        test = {"value": 1.0 + place, "distance": 2.0, "excess": 1.0 + place}
        options = {"task": TASK | {"of": surface}, "model": {}, "optimizer": {"lr": lr}}
        write(store, trial, test=test, options=options, training={"gradient": 1.0}, baselines={"the start": test})
        exhibit = path_of(surface, share=1 - 0.2 * (place % 3))
        (store.trial_folder(trial).path / "exhibit.json").write_text(json.dumps(exhibit))
    return store


def test_there_are_as_many_paths_as_trials_and_each_begins_at_the_start(walks):
    page = build_page(walks)
    assert page.count('<section class="tuned">') == 2 and page.count('<g class="walk') == 6
    for name in ("beale", "saddle"):
        section = page[page.index(f"surface[of={name}]: paths") :]
        section = section[: section.index("</section>")]
        lines = re.findall(r'<polyline points="([^"]+)"', section)
        assert len(lines) == 3 and len({line.split()[0] for line in lines}) == 1
        surface = SURFACES[name]
        x, y = map(float, lines[0].split()[0].split(","))
        (x0, y0), (x1, y1) = surface.low, surface.high
        assert (x0 + x / WIDTH * (x1 - x0), y1 - y / HEIGHT * (y1 - y0)) == pytest.approx(surface.start, abs=0.02)
        assert section.count('class="minimum"') == len(surface.minima)
        assert len(set(re.findall(r'class="walk (c\d dash\d)"', section))) == 3
        assert section.count('<path style="opacity') >= 8


def test_the_page_says_what_a_surface_has_and_what_not(walks):
    page = build_page(walks)
    line = re.search('<p class="protocol">(.*?)</p>', page)
    assert line is not None and "epochs of 50 steps" in line[1]
    assert not any(words in line[1] for words in ("%", "batches", "apart from training"))
    assert "There is no test apart" in page and "began at the same place" in page


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "words"},
        {"surface": "moon"},
        {"places": []},
        {"places": [[0, 1.0, 2.0]]},
        {"places": [[0, None, 1.0, 2.0]]},
        {"places": "here"},
    ],
)
def test_what_cannot_be_read_is_not_shown(tmp_path, change):
    assert read_path(tmp_path) is None
    (tmp_path / "exhibit.json").write_text(json.dumps(path_of("beale") | change))
    assert read_path(tmp_path) is None
    (tmp_path / "exhibit.json").write_text("{")
    assert read_path(tmp_path) is None


def test_places_far_away_stay_out_of_sight(tmp_path):
    path = path_of("beale")
    path["places"][-1] = [100, 1e30, -1e30, 1e38]
    (tmp_path / "exhibit.json").write_text(json.dumps(path))
    assert read_path(tmp_path) == path


@pytest.fixture
def opened(browser, walks, tmp_path):
    def open_(**how):
        file = tmp_path / "report.html"
        write_page(walks, file)
        page = browser.new_page(viewport={"width": 1200, "height": 900}, **how)
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(file.as_uri())
        made.append(page)
        return page

    made: list[Any] = []
    yield open_
    for page in made:
        assert not page.errors
        page.close()


def lengths(page) -> list[int]:
    return (
        page.locator("section.tuned")
        .first.locator("polyline")
        .evaluate_all("lines => lines.map((line) => line.getAttribute('points').split(' ').length)")
    )


def slide(page, step: int) -> None:
    page.locator("section.tuned").first.locator("input").evaluate(
        "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')); }", step
    )


def test_the_slider_moves_the_paths(opened):
    page = opened(reduced_motion="reduce")
    section = page.locator("section.tuned").first
    assert page.locator("g.walk").count() == 6 and lengths(page) == [11, 11, 11]
    seen = []
    for step, points in ((0, 1), (34, 4), (50, 6), (100, 11)):
        slide(page, step)
        assert lengths(page) == [points] * 3 and section.locator("output").inner_text() == f"step {step} of 100"
        seen.append(section.locator("g.walk circle").first.get_attribute("cx"))
    assert len(set(seen)) == 4
    values = section.locator("td.now").all_inner_texts()
    slide(page, 0)
    assert values != section.locator("td.now").all_inner_texts()
    assert len(set(section.locator("td.now").all_inner_texts())) == 1  # all stand at the start


def test_it_plays_pauses_and_goes_on(opened):
    page = opened(reduced_motion="reduce")
    page.wait_for_timeout(300)
    assert lengths(page) == [11, 11, 11]  # nothing moves by itself where less motion is asked for
    button = page.locator("section.tuned").first.locator(".play")
    button.click()
    page.wait_for_function(
        "() => { const s = document.querySelector('.tuned input'); return s.value > 5 && s.value < 95 }"
    )
    assert button.inner_text() == "pause"
    button.click()
    assert button.inner_text() == "play"
    there = page.locator(".tuned input").first.input_value()
    page.wait_for_timeout(200)
    assert page.locator(".tuned input").first.input_value() == there


def test_it_plays_once_when_it_comes_into_view(opened):
    page = opened(reduced_motion="no-preference")
    page.locator("section.tuned svg").first.scroll_into_view_if_needed()
    page.wait_for_function(
        "() => { const s = document.querySelector('.tuned input'); return s.value > 0 && s.value < 90 }"
    )


def test_the_filter_hides_paths_and_a_row_lights_its_own(opened):
    page = opened(reduced_motion="reduce")
    page.locator("#filter").fill("adam")
    assert page.locator("g.walk:visible").count() == 2 and page.locator(".rates tr[data-who]:visible").count() == 2
    page.locator("#filter").fill("")
    page.locator(".rates tr[data-who]").first.hover()
    assert page.locator("section.tuned.lit").count() == 1 and page.locator("g.walk.lit").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_does_not_scroll_sideways(opened, scheme):
    page = opened(reduced_motion="reduce", color_scheme=scheme)
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 380
    box = page.locator("section.tuned svg").first.bounding_box()
    assert box is not None and box["width"] > 280 and box["x"] >= 0
