from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from report_stores import WICKED, make_study, trials, write

from nnarena.core.protocol import Protocol
from nnarena.results.store import Store

QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.fail(f"These tests open the page in a browser, and none of {', '.join(names)} is installed.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def arena(tmp_path: Path) -> Store:
    """Two tasks, three models, three seeds; a failure, a divergence, published figures, one trial to come."""
    study = make_study(
        ["digits[rows=8]", "add"],
        ["lstm", "gru_cell", "my_file.py:MyCell[depth=2]"],
        ["adam"],
        seeds=3,
        title="Who <remembers> longest?",
        protocol=Protocol(epochs=12),
        missing=("dream_net",),
    )
    store = Store.create(tmp_path / "store", study)
    (store.folder / "published.csv").write_text(
        "task,model,metric,mean,std,runs\n"
        "digits,lstm,parameters,20241,,3\ndigits,lstm,epochs,12.000,1.000,3\ndigits,lstm,seconds_total,9,1,3\n"
        "digits,lstm,accuracy,0.935,0.006,3\ndigits,gru_cell,accuracy,0.990,0.001,3\n"
        "digits,gru_cell,parameters,5,,3\n"
    )
    values = {
        ("digits[rows=8]", "lstm"): [0.93, 0.936, 0.941],
        ("digits[rows=8]", "gru_cell"): [0.90, 0.91, 0.92],
        ("digits[rows=8]", "MyCell[depth=2]"): [0.95, 0.96, 0.05],
        ("add", "lstm"): [0.02, 0.03, 0.025],
        ("add", "gru_cell"): [0.0011, 0.0012, 0.0013],
        ("add", "MyCell[depth=2]"): [0.25, 0.26, 0.27],
    }
    for trial in trials(study):
        task, model, _ = trial.cell
        value = values[task, model][trial.seed]
        test = {"mse": value} if task == "add" else {"cross_entropy": 1.5 - value, "accuracy": value}
        if (task, model, trial.seed) == ("digits[rows=8]", "MyCell[depth=2]", 2):
            write(store, trial, status="failed", test={}, validation={}, epochs=3, error=WICKED)
        elif (task, model, trial.seed) == ("add", "MyCell[depth=2]", 2):
            continue
        elif (task, model, trial.seed) == ("add", "MyCell[depth=2]", 1):
            write(store, trial, status="diverged", test=test, epochs=7)
        else:
            write(store, trial, test=test, epochs=10 + trial.seed * 2)
    return store
