"""What `nnarena look` writes, of models that were really trained: figures, pictures, and the pages in a browser."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from png_reader import read_png, values_of

from nnarena.core.look import Layer, Look
from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study
from nnarena.launch.look import look_at_trial
from nnarena.launch.run import run_study
from nnarena.report.look import MISTAKES_SHOWN, seen
from nnarena.report.look_html import confusion_html, percent
from nnarena.report.look_page import build_look_page, recount
from nnarena.report.page import build_page
from nnarena.results.folder import LOOK
from nnarena.results.store import Store

MODELS = {
    "attention": ("digits_image", "attention_wise[heads=3,layers=2,norm=true]"),
    "no_skip": ("digits_image", "attention_wise[config=no_skip,heads=2]"),
    "coloured": ("digits_image[channels=3]", "attention_wise[heads=2,layers=1]"),
    "plain": ("digits_image", "control_vgg"),
    "sequence": ("digits", "attention_wise_1d[features=5]"),
    "numbers": ("add[length=6]", "attention_wise_1d"),
}


@pytest.fixture(scope="module")
def looks(tmp_path_factory) -> Callable[[str], SimpleNamespace]:
    """`looks("attention")`: a trained trial, what was seen of it, and what is made of that, each made once."""
    made: dict[str, SimpleNamespace] = {}

    def of(name: str) -> SimpleNamespace:
        if name not in made:
            grid = Grid(*(tuple(parse_choices([part])) for part in (*MODELS[name], "adam")))
            size = {"samples": 200, "epochs": 1} if name == "plain" else {"samples": 400, "epochs": 2}
            protocol = Protocol.of({"batch_size": 20, "lr": 0.005} | size)
            study = Study("looks", (grid,), protocol=protocol)
            store = run_study(study, tmp_path_factory.mktemp(name), device="cpu", jobs=1).store
            folder = store.trial_folder(study.trials()[0])
            trial, look = look_at_trial(folder, "cpu", images=2)
            content = seen(look, trial, folder.path.name, folder.result())
            made[name] = SimpleNamespace(store=store, folder=folder, look=look, content=content, trial=trial)
        return made[name]

    return of


@pytest.mark.parametrize("name", ["attention", "plain", "sequence"])
def test_figures_are_counted_by_hand(looks, name) -> None:
    look, figures = looks(name).look, looks(name).content["figures"]
    answers = [int(np.argmax(row)) for row in look.probabilities]
    counts = [[0] * 10 for _ in range(10)]
    for true, said in zip(look.targets, answers, strict=True):
        counts[true][said] += 1
    assert figures["confusion"] == counts
    assert sum(map(sum, counts)) == figures["test_samples"] == len(look.targets)
    wrong = [place for place, said in enumerate(answers) if said != look.targets[place]]
    assert figures["accuracy"] == pytest.approx(1 - len(wrong) / len(answers))
    assert figures["accuracy"] == pytest.approx(figures["test"]["accuracy"], abs=1e-6)
    assert sorted(item["sample"] for item in figures["mistakes"]) == sorted(int(look.samples[i]) for i in wrong)
    sure = [item["confidence"] for item in figures["mistakes"]]
    assert sure == sorted(sure, reverse=True)
    for item in figures["mistakes"]:
        place = int(np.flatnonzero(look.samples == item["sample"])[0])
        assert (item["true"], item["answered"]) == (str(look.targets[place]), str(answers[place]))
        assert item["confidence"] == look.probabilities[place].max() > item["probability_of_true"]
    for k, item in enumerate(figures["per_class"]):
        assert (item["samples"], item["right"]) == (sum(counts[k]), counts[k][k])
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.parametrize("name", ["attention", "no_skip", "coloured", "sequence", "numbers"])
def test_pixels_are_the_numbers_of_the_stages(looks, name) -> None:
    look, pictures = looks(name).look, looks(name).content["pictures"]
    for row, sample in enumerate(pictures["followed"]):
        for layer, story in zip(look.layers, sample["layers"], strict=True):
            shown = {line["stage"]: line for line in story["rows"]}
            heads = len(layer.arrays["weight_x"])
            expected = {"input": layer.inputs, **layer.stages}
            assert set(expected) - set(shown) == ({"summed"} if name == "no_skip" else set())
            for stage, line in shown.items():
                per_head = stage in ("rows", "columns", "relevance", "attended")
                assert len(line["pictures"]) == (heads if per_head else 1)
                parts = expected[stage][row].reshape(len(line["pictures"]), *layer.inputs.shape[1:])
                for part, png in zip(parts, line["pictures"], strict=True):
                    check_pixels(png, part, line["scale"])
    for layer, learned in zip(look.layers, pictures["learned"], strict=True):
        assert [line["stage"] for line in learned["rows"]] == ["weight_x", "weight_y"]
        for line in learned["rows"]:
            for part, png in zip(layer.arrays[line["stage"]], line["pictures"], strict=True):
                check_pixels(png, part, line["scale"])


def check_pixels(data: str, part: np.ndarray, scale: dict[str, Any]) -> None:
    """The picture has the size of the array, is not blank, and tells its numbers to a 254th of its scale."""
    png = read_png(data)
    channels = part if part.ndim == 3 else part.T[None]
    count, height, width = channels.shape
    assert png.pixels.shape == (height, count * width + count - 1)
    kept = png.pixels != 255
    assert png.pixels[kept].std() > 0 or part.std() == 0
    back, expected = values_of(png, scale), np.full(png.pixels.shape, np.nan)
    for place, channel in enumerate(channels):
        expected[:, place * (width + 1) : place * (width + 1) + width] = channel
    assert np.array_equal(kept, np.isfinite(expected))
    if scale["log"]:
        expected = np.log(np.maximum(expected, scale["low"]))
        room = np.log(scale["high"] / scale["low"])
        back = np.log(back)
    else:
        room = scale["high"] - scale["low"]
    if room > 0:
        np.testing.assert_allclose(back[kept], expected[kept], atol=room / 507 + 1e-9)


def test_mistakes_are_shown_as_the_images_they_are(looks) -> None:
    look, content = looks("plain").look, looks("plain").content
    mistakes, pictures = content["figures"]["mistakes"], content["pictures"]["mistakes"]
    assert len(pictures) == min(len(mistakes), MISTAKES_SHOWN) > 5
    for item, data in zip(mistakes, pictures, strict=False):
        image = look.inputs[np.flatnonzero(look.samples == item["sample"])[0], 0]
        np.testing.assert_allclose(read_png(data).colours[..., 0], image / 16 * 255, atol=1)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """A page of a text. In the end: nothing was fetched and nothing went wrong."""
    troubles: list[str] = []
    requests: list[str] = []
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    file = tmp_path / "look.html"
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))

    def show(text: str) -> Page:
        file.write_text(text, encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield show
    page.close()
    assert troubles == []
    assert {url for url in requests if not url.startswith("data:")} == {file.as_uri()}


def loaded(page: Page) -> int:
    """How many images there are, all of which the browser could read."""
    sizes = page.evaluate(
        "Promise.all([...document.images].map((image) => image.decode().then(() => image.naturalWidth)))"
    )
    assert all(size > 0 for size in sizes)
    return len(sizes)


def test_the_page_tells_the_way_of_an_image(opened, looks) -> None:
    page = opened(build_look_page(looks("attention").content))
    assert page.locator("h1").inner_text() == "attention_wise[heads=3,layers=2,norm=true] on digits_image"
    text = page.locator("body").inner_text()
    assert "Pictures choose nothing." in text and "choose by the test" in text
    assert "Counted here, the accuracy is that of the record" in text
    first = page.locator("details.sample").first
    assert first.get_attribute("open") is not None
    stages = first.locator(".stage").evaluate_all("rows => rows.map((row) => row.dataset.stage)")
    order = ["input", "rows", "columns", "relevance", "attended", "convolved", "summed", "normed", "output"]
    assert stages == order * 2
    assert first.locator("[data-stage=rows] img").count() == 6
    assert page.locator("#learned [data-stage=weight_x] img").count() == 6
    second = page.locator("details.sample").nth(1)
    assert not second.locator(".stage").first.is_visible()
    second.locator("summary").click()
    assert second.locator(".stage").first.is_visible()
    figures = looks("attention").content["figures"]
    mistakes = min(len(figures["mistakes"]), MISTAKES_SHOWN)
    assert loaded(page) == 2 * (1 + 2 * (4 * 3 + 5)) + 2 * 2 * 3 + mistakes
    assert page.locator(".mistake").count() == mistakes


def test_the_matrix_in_the_page_is_the_matrix(opened, looks) -> None:
    content = looks("attention").content
    page = opened(build_look_page(content))
    cells = page.evaluate(
        "[...document.querySelectorAll('.matrix tbody tr')].map((row) => [...row.cells].slice(1, -1)"
        ".map((cell) => Number(cell.querySelector('b')?.textContent ?? 0)))"
    )
    assert cells == content["figures"]["confusion"]
    own = page.locator(".matrix td.own").all_inner_texts()
    assert own == [percent(item["accuracy"]) for item in content["figures"]["per_class"]]


@pytest.mark.parametrize("name", list(MODELS))
def test_it_is_readable_narrow_and_dark(opened, looks, name) -> None:
    page = opened(build_look_page(looks(name).content))
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    parts = page.locator("section.looked").evaluate_all("all => all.map((part) => part.id)")
    inside = [] if name == "plain" else ["followed", "learned"]
    answers = [] if name == "numbers" else ["confusion", "mistakes"]
    assert parts == inside + answers
    assert loaded(page) > 0


def test_sequences_are_told_from_images(looks) -> None:
    assert "time runs to the right" in build_look_page(looks("sequence").content)
    assert "Each step sums to 1" in build_look_page(looks("sequence").content)
    assert "red, green, blue" in build_look_page(looks("coloured").content)
    assert "Each row sums to 1" in build_look_page(looks("coloured").content)


def invented(classes: int, *names: str) -> dict[str, Any]:
    """What was seen of answers that were drawn at random; `names` are those of the first classes."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(classes), 300)
    look = Look(
        classes=(*names, *map(str, range(len(names), classes))),
        inputs=rng.integers(0, 256, (300, 3, 6, 6), np.uint8),
        white=255.0,
        targets=rng.integers(0, classes, 300),
        probabilities=probabilities,
        samples=np.arange(300),
        followed=np.arange(2),
        layers=(),
    )
    labels = {kind: SimpleNamespace(label=kind) for kind in ("task", "model", "optimizer")}
    trial: Any = SimpleNamespace(study="s", seed=0, **labels)
    result = {"test": {"accuracy": 0.9}, "status": "done", "parameters": 5, "epochs": 2, "best_epoch": 1}
    return seen(look, trial, "abc", result)


def test_many_classes_are_a_picture_and_wicked_names_stay_text(opened) -> None:
    wicked = "</b><script>alert(1)</script>"
    content = invented(40, wicked)
    page = opened(build_look_page(content))
    assert page.locator(".matrix.drawn img").count() == 1 and page.locator("script").count() == 0
    assert wicked in page.locator("#mistakes").inner_text() + page.locator(".classes").text_content()
    png = read_png(re.findall(r"base64,([^\"]+)", confusion_html(content["figures"]))[0])
    counts = np.array(content["figures"]["confusion"])
    np.testing.assert_array_equal(png.pixels, np.rint(counts / np.maximum(counts.sum(1, keepdims=True), 1) * 254))
    assert "and the record has 90.000 %: more than rounding" in page.locator("body").inner_text()
    more = len(content["figures"]["mistakes"]) - MISTAKES_SHOWN
    assert more > 0 and f"And {more:,} more" in page.locator("#mistakes").inner_text()


def test_a_recount_that_differs_is_told_by_how_much() -> None:
    figures = {"accuracy": 0.9, "test": {"accuracy": 0.9 + 5e-8}}
    assert recount(figures) == "Counted here, the accuracy is that of the record: 90.0 %."
    assert "another device or version rounds another way" in recount(figures | {"accuracy": 0.9004})
    assert "the data or the code are not those of the trial" in recount(figures | {"accuracy": 0.7})
    assert recount({"accuracy": None, "test": {"mse": 1.0}}) == recount({"accuracy": 0.9, "test": {}}) == ""


def test_a_layer_that_learned_nothing_and_a_number_that_is_none_have_pictures() -> None:
    zeros = np.zeros((1, 1, 3, 3), np.float32)
    broken = np.array([[[[np.nan, 1.0, 2.0]] * 3]], np.float32)
    layer = Layer("layer", zeros, {"rows": zeros[:, None], "output": broken}, {"weight_x": zeros})
    look = Look((), zeros, 0.0, np.zeros(1), None, np.arange(1), np.arange(1), (layer,))
    labels = {kind: SimpleNamespace(label=kind) for kind in ("task", "model", "optimizer")}
    trial: Any = SimpleNamespace(study="s", seed=0, **labels)
    content = seen(look, trial, "abc", {"test": {}})
    json.dumps(content, allow_nan=False)
    rows = content["pictures"]["followed"][0]["layers"][0]["rows"]
    assert read_png(rows[-1]["pictures"][0]).pixels[0].tolist() == [255, 0, 254]
    assert "Layer 1" in build_look_page(content)


def test_the_report_shows_what_was_looked_at(opened, looks, tmp_path) -> None:
    one = looks("attention")
    before = build_page(one.store)
    assert 'id="looked"' not in before and ".stage" not in before
    file = one.folder.path / LOOK
    try:
        file.write_text(json.dumps(one.content))
        page = opened(build_page(one.store))
        card = page.locator("#looked details.look")
        assert one.trial.id in card.inner_text() and "Pictures choose nothing." in page.locator("#looked").inner_text()
        assert card.locator(".matrix td.right").count() > 3
        assert card.locator(".mistake").count() == min(len(one.content["figures"]["mistakes"]), 16)
        assert card.locator("[data-stage=relevance] img").count() == 2 * 3
        assert card.locator("[data-stage=weight_y] img").count() == 2 * 3
        assert loaded(page) > 20
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for text, sentence in (("{", "is damaged"), ('{"format": 0}', "is of another version"), ("[]", "version")):
            file.write_text(text)
            again = build_page(one.store)
            assert sentence in again and f"pictures of {one.trial.id} again" in again
    finally:
        file.unlink(missing_ok=True)
    assert build_page(Store.open(one.store.folder)) == before


def test_pictures_are_plain_base64_png(looks) -> None:
    text = build_look_page(looks("attention").content)
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert len(found) > 50 and all(base64.b64decode(data, validate=True)[1:4] == b"PNG" for data in found)
    assert not re.search(r'(src|href)="(?!data:|#)', text) and "http" not in text.replace("http-equiv", "")
