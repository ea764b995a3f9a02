"""A diagnosis as tables and as a page in a real browser."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from nnarena.report.diagnosis import arrow, flow_rows, share, terminal, verdict
from nnarena.report.diagnosis_figures import Bars, Curve, around_one_axis, curves
from nnarena.report.diagnosis_page import build_diagnosis, write_diagnosis

WICKED = "<script>alert('x')</script>"


def measured(factor: float, gradient: float = 1.0) -> dict[str, Any]:
    norms = [2.0 * factor**k for k in range(50)]
    statistics = {"mean": 0.1, "std": 0.5, "low": -1.0, "high": 1.0}
    radius = {"mean": factor, "low": 0.9 * factor, "high": 1.1 * factor}
    return {
        "precision": "float64",
        "loss": gradient,
        "flow": [
            {"name": "input", "of": "input", "norms": [0.0, *norms[1:]], "ratio": math.nan, "factor": math.nan},
            {"name": WICKED, "of": "state", "norms": norms, "ratio": factor**49, "factor": factor},
        ],
        "jacobian": [{"name": WICKED, "size": 1200, "count": 8, "radius": radius, "norm": radius}],
        "too_large": ["giant"],
        "layers": [
            {"name": WICKED, "kind": "LSTM", **statistics, "dead": 0.25, "saturated": 0.004, "gradient": gradient},
            {"name": "head", "kind": "Linear", **statistics, "dead": 0.0, "saturated": None, "gradient": math.inf},
        ],
        "parameters": [
            {"name": f"weight {place}", "shape": [3, 4], **statistics, "gradient": gradient, "relative": math.nan}
            for place in range(60)
        ],
    }


def diagnosis(after: bool) -> dict[str, Any]:
    return {
        "model": WICKED,
        "task": "add",
        "optimizer": "adam",
        "study": "arena",
        "seed": 0,
        "samples": 32,
        "losses": "last",
        "training": {"status": "done", "epochs": 3, "best_epoch": 2} if after else None,
        "before": measured(0.7),
        "after": measured(1.0, 0.01) if after else None,
    }


def test_words_for_ratios_and_shares() -> None:
    cases = {1e-4: "vanishes", 0.5: "arrives", 2e3: "explodes", 0.0: "is cut off", math.nan: "no gradient"}
    assert all(verdict(ratio) == word for ratio, word in cases.items())
    assert verdict(None) == "no gradient"
    assert [share(value) for value in (None, 0.0, 0.004, 0.25, 1.0)] == ["–", "0", "<1%", "25%", "100%"]
    assert arrow({"a": 1.0}, {"a": 2.0}, "a") == "1.00 → 2.00" and arrow({"a": 1.0}, None, "a") == "1.00"
    assert arrow({"a": 1.0}, {"a": 1.0001}, "a") == "1.00"
    rounded, small = {"mean": -2e-17, "std": 1.0}, {"mean": -2e-17, "std": 1e-16}
    assert arrow(rounded, small, "mean") == "0 → -2.00e-17"
    assert arrow({"mean": None, "std": None}, None, "mean") == "–"


def test_a_short_axis_has_marks_between_its_decades() -> None:
    def marks(*ends: float) -> list[str]:
        return re.findall(r'text-anchor="end">(.*?)<', curves([Curve("a", ends, 0, False)], "x", "y"))

    assert marks(0.16, 0.11) == ["0.05", "0.1", "0.2"]
    assert marks(1.0, 30.0) == ["1", "2", "5", "10", "20"]
    assert marks(1.0, 1e-6) == ["10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1"]


def test_tables_hold_both_moments_and_long_ones_are_cut() -> None:
    text = terminal(diagnosis(after=True), 200)
    assert "adam, 3 epochs" in text and "loss 1.00 before, 0.0100 after" in text
    assert "and 20 more" in text and "weight 39" in text and "weight 40" not in text
    assert "The state of giant is too large" in text and "The state of giant" in build_diagnosis(diagnosis(after=True))
    assert "vanishes" in text and "arrives" in text and "no gradient" in text
    assert [row[1] for row in flow_rows(diagnosis(after=False))[1:]] == ["before", "before"]
    lost = diagnosis(after=False) | {"training": {"status": "diverged", "epochs": 1, "best_epoch": 0}}
    assert "adam, 1 epoch, diverged · no weights were left" in terminal(lost, 200)


def test_a_curve_goes_down_where_its_values_do_and_gaps_stay_open() -> None:
    drawn = curves([Curve("a", [1.0, 0.1, 0.01], 0, False), Curve("b", [1.0, None, 0.0, 1.0, 2.0], 1, True)], "x", "y")
    falling, broken = re.findall(r'<path class="curve[^"]*" d="([^"]*)"', drawn)
    places = [tuple(map(float, point.split())) for point in re.split("[ML]", falling)[1:]]
    xs, ys = zip(*places, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2) and ys[0] < ys[1] < ys[2]
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.2)  # equal factors, equal steps
    assert broken.count("M") == 2 and broken.count("L") == 1
    assert "no gradient to draw" in curves([Curve("a", [0.0, 0.0], 0, False)], "x", "y")


def test_axes_hold_what_is_drawn() -> None:
    assert around_one_axis([]) == pytest.approx((0.96, 1.04))
    bars = Bars([1.0, 100.0, None, math.inf, 0.0], log=True)
    assert 0 < bars.length(1.0) < bars.length(10.0) < bars.length(100.0) <= 120
    assert bars.length(None) == bars.length(0.0) == 0
    assert Bars([], log=True).length(3.0) > 0 and Bars([2.0, 4.0], log=False).length(2.0) == 60


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.fail("This test opens the page in a browser, and there is none.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 420])
def test_the_page_opens_offline_in_light_and_dark(browser: Browser, tmp_path: Path, scheme: Any, width: int) -> None:
    file = tmp_path / "page.html"
    write_diagnosis(diagnosis(after=True), file)
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    assert page.locator("h1").inner_text() == f"{WICKED} on add"
    assert page.locator(".curve").count() == 4 and page.locator(".curve.before").count() == 2
    assert page.locator(".strip").count() == 2 and page.locator(".bar").count() == 2 * (2 * 2 + 60)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 60) == (scheme == "dark")
    page.close()
    assert troubles == [] and requests == [file.as_uri()]


def test_an_image_has_no_steps_and_an_untrained_model_no_after() -> None:
    plain = diagnosis(after=False)
    plain["before"] |= {"flow": [], "jacobian": [], "too_large": []}
    page = build_diagnosis(plain)
    assert (
        "Nothing here goes from step to step" in page
        and "What one step does" not in page
        and "before above after" not in page
    )
