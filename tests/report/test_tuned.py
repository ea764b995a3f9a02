"""Learning rates are chosen by validation, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_stores import make_study, trials, write

from nnarena.report.page import build_page, write_page
from nnarena.report.summary import current_trials
from nnarena.report.tuned import is_tuned, tuned, without_rate
from nnarena.results.store import Store

# By rate: validation, test, status.
ADAM = {0.1: (0.7, 0.99, "done"), 0.01: (0.9, 0.6, "done"), 1.0: (0.95, 0.97, "diverged")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    rates = [f"adam[lr={rate}]" for rate in ADAM]
    store = Store.create(tmp_path, make_study(["digits"], ["mlp"], [*rates, "sgd"], seeds=2))
    for trial in trials(store.study):
        lr = dict(trial.optimizer.options).get("lr", 1e-3)
        validation, test, status = ADAM.get(lr, (0.8, 0.8, "done"))  # type: ignore[arg-type]
        shift = 0.01 * trial.seed
        scores = [{"cross_entropy": 1 - value, "accuracy": value + shift} for value in (validation, test)]
        options = {"task": {}, "model": {}, "optimizer": {"lr": lr}}
        bad = status if trial.seed else "done"
        write(store, trial, validation=scores[0], test=scores[1], options=options, status=bad)
    return store


def test_the_best_rate_is_that_of_the_best_validation_at_which_all_ended_well(store):
    adam, sgd = tuned(current_trials(store), "digits", "accuracy")
    assert (adam.optimizer, adam.lr, adam.rates, adam.failed) == ("adam", 0.01, (0.01, 0.1, 1.0), (1.0,))
    assert adam.values("accuracy") == pytest.approx([0.6, 0.61])
    assert adam.values("accuracy", "validation") == pytest.approx([0.9, 0.91])
    assert (sgd.optimizer, sgd.lr, sgd.label) == ("sgd", 1e-3, "sgd") and is_tuned([adam, sgd]) and not is_tuned([sgd])


def test_a_loss_is_better_when_lower(store):
    adam, _ = tuned(current_trials(store), "digits", "cross_entropy")
    assert adam.lr == 0.01


def test_the_page_has_a_table_of_it_and_none_without_a_choice(store, arena):
    page = build_page(store)
    section = page[page.index('<section class="tuned">') :]
    section = section[: section.index("</section>")]
    assert section.count("<tr data-who") == 2 and "0.01, 0.1, 1 †" in section and "0.6050 ± 0.0071" in section
    assert "on the validation data" in section and "<svg" not in section
    assert 'class="tuned"' not in build_page(arena)


def test_a_button_shows_only_these_in_colours_that_differ(browser, store, tmp_path):
    write_page(store, tmp_path / "report.html")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())

    def colors() -> list[str]:
        return page.locator("#task-0 tr.who:visible").evaluate_all("rows => rows.map((row) => row.className)")

    before = colors()
    page.get_by_role("button", name="show only these above").click()
    names = page.locator("#task-0 tr.who:visible").all_inner_texts()
    assert len(colors()) == 2 and any("adam[lr=0.01]" in name for name in names)
    rows = page.locator(".rates tr[data-who]").evaluate_all(
        "rows => rows.map((row) => [row.dataset.who, row.className])"
    )
    for who, look in rows:
        assert set(look.split()) <= set(
            page.locator(f'#task-0 tr.who[data-who="{who}"]').get_attribute("class").split()
        )
        number = int(look[1])
        assert page.evaluate(f"() => nnarena.color({who}) === style('--c{number}')")
    page.get_by_role("button", name="show all").click()
    assert colors() == before and len(before) == 4
    page.close()


@pytest.mark.parametrize(
    ("label", "bare"),
    [
        ("adam", "adam"),
        ("adam[lr=0.1]", "adam"),
        ("adam[lr=0.1,eps=1e-07]", "adam[eps=1e-07]"),
        ("my_file.py:Mine[lr=3]", "Mine"),
        ("[[", "[["),
    ],
)
def test_a_name_without_its_rate(label, bare):
    assert without_rate(label) == bare
