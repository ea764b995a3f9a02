"""The page in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from report_stores import WICKED, make_study, trials, write

from nnarena.core.protocol import Protocol
from nnarena.report.page import build_page, embedded, write_page
from nnarena.results.store import Store


@pytest.fixture
def page(browser: Browser, arena: Store, tmp_path: Path) -> Iterator[Page]:
    """The report of `arena`, opened from its file. In the end: nothing was fetched and nothing went wrong."""
    file = tmp_path / "report.html"
    write_page(arena, file)
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    troubles: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert troubles == []
    assert requests == [file.as_uri()]


def names(page: Page, task: int = 0) -> list[str]:
    """The rows of a task that can be seen, from top to bottom."""
    rows = page.locator(f"#task-{task} .board tbody tr:visible .name")
    return rows.all_inner_texts()


def pixels(page: Page, task: int = 0) -> str:
    return page.evaluate("task => document.querySelectorAll('canvas')[task].toDataURL()", task)


def view(page: Page, task: int = 0) -> Any:
    return page.evaluate("task => window.nnarena.charts[task].view", task)


def middle(page: Page, task: int = 0) -> tuple[float, float]:
    canvas = page.locator("canvas").nth(task)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_it_shows_what_the_study_says(page: Page) -> None:
    text = page.locator("body").inner_text()
    assert page.title() == "Who <remembers> longest? · NNArena"
    assert page.locator("h1").inner_text() == "Who <remembers> longest?"
    for expected in ("dream_net", "majority class", "15\ntrials done", "2\nfailed", "1\nto come", "at most 12 epochs"):
        assert expected in text
    assert names(page) == ["MyCell[depth=2]", "lstm", "gru_cell", "majority class"]
    assert names(page, 1) == ["gru_cell", "lstm", "mean", "MyCell[depth=2]"]
    badges = page.locator("#task-0 .badge").all_inner_texts()
    assert badges == ["reproduced", "not reproduced: worse"]


def test_wicked_text_stays_text(page: Page) -> None:
    assert WICKED in page.locator("#failures").inner_text()
    assert page.locator("#failures b").count() == 0


def test_a_click_on_a_heading_sorts_both_ways(page: Page) -> None:
    head = page.locator("#task-0 th", has_text="accuracy")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(page) == ["majority class", "gru_cell", "lstm", "MyCell[depth=2]"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names(page) == ["MyCell[depth=2]", "lstm", "gru_cell", "majority class"]
    assert page.locator("#task-0 th[aria-sort=descending]").count() == 1


def test_headings_sort_from_the_keyboard_and_text_sorts_as_text(page: Page) -> None:
    page.locator("#task-0 th", has_text="model").get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert names(page) == ["gru_cell", "lstm", "majority class", "MyCell[depth=2]"]
    # What has no value stays at the end either way.
    for _ in range(2):
        page.locator("#task-0 th", has_text="parameters").get_by_role("button").click()
        assert names(page)[-1] == "majority class"


def test_the_filter_hides_rows_and_curves(page: Page) -> None:
    before = pixels(page)
    page.get_by_role("searchbox").fill("gru")
    assert names(page) == ["gru_cell", "majority class"]
    assert page.evaluate("window.nnarena.charts[0].visible().length") == 3
    after = pixels(page)
    assert after != before
    page.get_by_role("searchbox").fill("gru, LSTM")
    assert names(page) == ["lstm", "gru_cell", "majority class"]
    page.get_by_role("searchbox").fill("")
    assert pixels(page) == before


def test_chips_hide_and_show_one_competitor(page: Page) -> None:
    chip = page.locator("#chips").get_by_role("button", name="lstm")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert "lstm" not in names(page) and "lstm" not in names(page, 1)
    page.get_by_role("button", name="show all").click()
    assert chip.get_attribute("aria-pressed") == "true" and "lstm" in names(page)
    chip.dblclick()
    assert names(page) == ["lstm", "majority class"]


def test_wheel_drag_and_keys_zoom_and_a_double_click_resets(page: Page) -> None:
    x, y = middle(page)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(400)  # the page scrolls
    assert view(page) is None  # one who only scrolls past is not held up
    x, y = middle(page)
    page.mouse.click(x, y)
    page.mouse.wheel(0, -300)
    page.wait_for_function("window.nnarena.charts[0].view !== null")
    wheeled = view(page)
    page.keyboard.press("+")
    assert view(page)["x1"] - view(page)["x0"] < wheeled["x1"] - wheeled["x0"]
    page.mouse.dblclick(x, y)
    assert view(page) is None
    before = pixels(page)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 120, y + 60, steps=4)
    page.mouse.up()
    zoomed = view(page)
    assert zoomed is not None and pixels(page) != before
    page.get_by_role("button", name="Reset zoom").first.click()
    assert view(page) is None


def test_hovering_a_curve_tells_whose_it_is(page: Page) -> None:
    middle(page, 1)
    place = page.evaluate(
        """() => { const chart = window.nnarena.charts[1], curve = chart.visible()[0];
        const box = chart.canvas.getBoundingClientRect();
        return [box.x + chart.px(curve.epoch[4]), box.y + chart.py(chart.scaled(curve.values[chart.key][4]))]; }"""
    )
    page.mouse.move(*place)
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert re.search(
        r"(lstm|gru_cell|MyCell\[depth=2\])\nseed \d, epoch 5\nvalidation mse 0\.\d+\n5 s", tip.inner_text()
    )
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_quantity_scale_and_axis_can_be_chosen(page: Page) -> None:
    section = page.locator("#task-0")
    assert section.locator(".quantity option").all_inner_texts() == [
        *("training loss", "validation cross_entropy", "validation accuracy", "learning rate")
    ]
    seen = {pixels(page)}
    section.locator(".quantity").select_option("loss")
    seen.add(pixels(page))
    section.get_by_label("log scale").click()
    seen.add(pixels(page))
    section.locator(".over").select_option("seconds")
    seen.add(pixels(page))
    assert len(seen) == 4


def test_a_row_unfolds_to_its_command_and_its_trials(page: Page, arena: Store) -> None:
    page.locator("#task-0").get_by_role("button", name="lstm").click()
    detail = page.locator("#task-0 tr.detail")
    commands = detail.locator("code").all_inner_texts()
    assert commands[0] == "nnarena run -t 'digits[rows=8]' -m lstm -o adam --seeds 3 --set epochs=12"
    ids = [trial.id for trial in trials(arena.study) if trial.cell[:2] == ("digits[rows=8]", "lstm")]
    assert [command.rsplit(" ", 1)[-1] for command in commands[1:]] == ids
    assert all(command.startswith("nnarena rerun ") for command in commands[1:])
    detail.locator(".copy").first.click()
    detail.get_by_text("copied").wait_for(timeout=5000)
    # It follows its row when that is sorted, hides with it, and folds again.
    page.locator("#task-0 th", has_text="accuracy").get_by_role("button").click()
    assert page.evaluate(
        "document.querySelector('tr.detail').previousElementSibling.querySelector('.name').innerText"
    ) == ("lstm")
    page.get_by_role("searchbox").fill("gru")
    assert not detail.is_visible()
    page.get_by_role("searchbox").fill("")
    page.locator("#task-0").get_by_role("button", name="lstm").click()
    assert detail.count() == 0


def test_what_collapsed_and_a_watched_gradient_can_be_seen(browser: Browser, tmp_path: Path) -> None:
    study = make_study(["digits"], ["lstm"], ["adam"], seeds=2)
    store = Store.create(tmp_path / "store", study)
    for trial in trials(study):
        write(store, trial, collapsed=trial.seed == 0, epochs=0)
        for epoch, sign in enumerate([1, -1, 1]):
            line = {"epoch": epoch + 1, "loss": 2.3, "validation": {"accuracy": 0.1}, "lr": 0.1, "seconds": 1.0}
            line["training"] = {"gradient": 1e-4, "last_gradient": sign * 1e-5}
            store.trial_folder(trial).append(line)
    write_page(store, tmp_path / "report.html")
    page = browser.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    page.locator("#task-0").get_by_role("button", name="lstm").click()
    assert page.locator("tr.detail tbody td:nth-child(2)").all_inner_texts() == ["done, collapsed", "done"]
    assert "1 of 2 collapsed" in page.locator("#task-0 tr.who").inner_text()
    for quantity, log in (("training gradient", True), ("training last_gradient", False), ("training loss", True)):
        page.locator(".quantity").select_option(label=quantity)
        assert page.locator(".log").is_checked() is log, "what has a sign has no logarithm"
        assert page.evaluate("window.nnarena.charts[0].whole() !== null")
    page.close()


def test_narrow_and_dark(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_nothing_in_the_data_can_end_its_script() -> None:
    text = embedded({"reason": "</script><!--", "value": float("nan")})
    assert "<" not in text and json.loads(text) == {"reason": "</script><!--", "value": None}


def test_a_large_store_is_thinned_and_says_so(tmp_path: Path) -> None:
    study = make_study(["add"], ["lstm", "gru"], ["adam", "sgd"], seeds=2)
    store = Store.create(tmp_path / "store", study)
    for trial in trials(study):
        write(store, trial, epochs=30)
    text = build_page(store, budget=80)
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    points = [len(trial["curve"]["epoch"]) for row in data["rows"] for trial in row["trials"]]
    assert points == [10] * 8
    assert "thinned to 10 epochs each" in text and "at most 80 points" in text
    assert "thinned" not in build_page(store)
    assert "gru · sgd" in data["who"]
    assert "<h1>lstm and gru on add</h1>" in text


def test_a_store_without_results_has_a_page(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", make_study(["add"], ["lstm"], ["adam"]))
    write_page(store, tmp_path / "deep" / "report.html")
    assert "No trial of this study is finished yet." in (tmp_path / "deep" / "report.html").read_text()


# ------------------------------------------------------------------------------------------------------------- agents

AGENT = {"steps": 500, "episodes": 7}


WORDS = {"corpus": "grammar", "tokens": 50_000, "vocabulary": 10_000}


def agents(folder: Path, tasks: list[str]) -> Store:
    """A study in which `pendulum` and `analogy` have no samples."""
    store = Store.create(folder, make_study(tasks, ["mlp", "gru"], ["adam"], seeds=2))
    own = {"pendulum": AGENT, "analogy": WORDS}
    for trial in trials(store.study):
        if trial.task.name in own:
            write(store, trial, steps=500, options={"task": own[trial.task.name], "model": {}, "optimizer": {}})
        else:
            write(store, trial)
    return store


def test_agents_have_episodes_and_no_splits(tmp_path):
    text = build_page(agents(tmp_path, ["pendulum"]))
    line = re.search('<p class="protocol">(.*?)</p>', text)
    assert line is not None and "epochs of 500 steps" in line[1] and "in 7 episodes each" in line[1]
    assert not any(words in line[1] for words in ("%", "publisher", "without progress"))
    assert "examined in episodes that began alike" in text and "same splits" not in text


def told(folder: Path, task: str, options: dict, protocol: Protocol, **result) -> str:
    """The page of a study of one task."""
    store = Store.create(folder, make_study([task], ["mlp"], ["adam"], protocol=protocol))
    for trial in trials(store.study):
        write(store, trial, options={"task": options, "model": {}, "optimizer": {}}, **result)
    return build_page(store)


@pytest.mark.parametrize("watch", ["watch_training", "watch_gradient"])
def test_training_that_was_watched_makes_no_agents(watch, tmp_path):
    text = told(tmp_path, "digits", {}, Protocol(**{watch: True}), training={"accuracy": 0.99, "gradient": 1.0})
    assert "80% training" in text and "The test set is read once" in text and "same splits" in text


def test_beside_agents_samples_keep_their_splits(tmp_path):
    text = build_page(agents(tmp_path, ["pendulum", "add"]))
    line = re.search('<p class="protocol">(.*?)</p>', text)
    assert line is not None and "80% training" in line[1] and "of agents, validation and test apart" in line[1]
    assert "same splits" in text


def test_words_are_read_and_asked_about(tmp_path):
    text = build_page(agents(tmp_path, ["analogy"]))
    line = re.search('<p class="protocol">(.*?)</p>', text)
    assert line is not None and re.search(r"\d+ readings of at most 50,000 words, 1 by models that count", line[1])
    assert "central words" in line[1] and "half of the questions validate, the other half is the test" in line[1]
    assert not any(words in line[1] for words in ("%", "epochs", "apart from training", "agents", "of words,"))
    assert "read the same corpus" in text and "No question is read in training" in text
    assert "episodes that began alike" not in text and "same splits" not in text


def test_where_all_kinds_meet_each_is_said(tmp_path):
    text = build_page(agents(tmp_path, ["analogy", "pendulum", "add"]))
    line = re.search('<p class="protocol">(.*?)</p>', text)
    assert line is not None and "of words, half of the questions" in line[1] and "of agents, validation" in line[1]
    assert "80% training" in line[1] and "central words" not in line[1]
    for said in (
        "order of batches. They ",
        "read the same corpus",
        "episodes that began alike",
        "test set is read once",
    ):
        assert said in text


def test_returns_are_drawn_over_steps_and_without_logarithms(browser, tmp_path):
    file = tmp_path / "report.html"
    write_page(agents(tmp_path / "store", ["pendulum", "add"]), file)
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.goto(file.as_uri())
    agent, plain = page.locator("#task-1"), page.locator("#task-0")
    if "pendulum" in plain.locator("h2").inner_text():
        agent, plain = plain, agent
    assert agent.locator(".over option").all_inner_texts() == ["steps", "epochs", "seconds"]
    assert plain.locator(".over option").all_inner_texts() == ["epochs", "seconds"]
    assert agent.locator(".quantity").input_value() == "validation.return"
    log = agent.get_by_label("log scale")
    assert not log.is_checked() and log.is_disabled()
    agent.locator(".quantity").select_option("validation.cost")
    assert log.is_checked() and log.is_enabled()
    agent.locator(".quantity").select_option("training.reward_per_step")
    assert not log.is_checked()
    charts = page.evaluate("() => window.nnarena.charts.map((chart) => [chart.x, chart.whole().x0, chart.whole().x1])")
    assert sorted(charts) == [["epoch", 1, 12], ["steps", 0, 6000]]
    page.close()


@pytest.mark.parametrize(("select", "words"), [("best", "best on the validation"), ("last", "weights of the last")])
def test_the_page_says_which_weights_were_tested(select, words, tmp_path) -> None:
    study = make_study(["add"], ["lstm"], ["adam"], protocol=Protocol(select=select))
    store = Store.create(tmp_path / "store", study)
    assert words in build_page(store)
