"""The gradient of every weight, from the output back to the input, as the page draws it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_stores import make_study, trials, write

from nnarena.core.protocol import Protocol
from nnarena.report.gradients import gradients_html, read_gradients
from nnarena.report.page import build_page
from nnarena.results.folder import CURVE
from nnarena.results.store import Store


def curve(folder: Path, *epochs: dict) -> Path:
    (folder / CURVE).write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    return folder


def test_the_first_epoch_is_read_and_a_trial_without_is_none(tmp_path):
    assert read_gradients(tmp_path) is None
    assert read_gradients(curve(tmp_path, {"epoch": 1})) is None
    assert read_gradients(curve(tmp_path, {"gradients": {"a": 0.5, "b": 2.0}}, {"gradients": {"a": 9.0}})) == [0.5, 2.0]
    assert read_gradients(curve(tmp_path, {"gradients": {"a": None}})) is None
    (tmp_path / CURVE).write_text('{"epoch": 1, "gra')
    assert read_gradients(tmp_path) is None


def test_a_line_is_the_mean_of_its_seeds_on_a_logarithmic_axis():
    shown = gradients_html(
        "a & b", [("one", 0, [[1e-4, 1.0], [3e-4, 1.0]]), ("two", 11, [[1.0, 1.0]]), ("three", 2, [])]
    )
    assert "a &amp; b" in shown and "one: from 0.000200 to 1.00" in shown and "three" not in shown
    assert re.findall('class="(curve [^"]*)"', shown) == ["curve c0", "curve c1 before"], "beyond ten colours is dashed"
    assert gradients_html("a", [("one", 0, [])]) == ""


@pytest.mark.parametrize("watched", [True, False])
def test_the_page_draws_them_where_they_were_watched(watched, tmp_path):
    study = make_study(["digits"], ["mlp", "gru"], ["sgd"], seeds=2, protocol=Protocol(watch_gradient=watched))
    store = Store.create(tmp_path, study)
    for trial in trials(study):
        write(store, trial)
        curve(store.trial_folder(trial).path, {"epoch": 1, "seconds": 1.0, "gradients": {"w": 1e-3, "v": 1.0}})
    page = build_page(store)
    assert (page.count('<path class="curve') == 2) == watched
    assert (".figure .grid" in page) == ("the gradient on its way back" in page) == watched
