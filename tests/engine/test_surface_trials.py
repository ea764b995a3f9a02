"""Trials on surfaces: the optimizer's own path, whoever takes it and however often it is stopped."""

from __future__ import annotations

import json
import math

import pytest
import torch
from engine_helpers import Stop, assert_same, bits, make, run, run_together

from nnarena.core.components import catalogue
from nnarena.core.errors import ArenaError, BadOption, UnknownName
from nnarena.core.surfaces import SURFACES
from nnarena.engine.fit import check_fit

SETTINGS = {"epochs": 3, "samples": None, "lr": None, "select": "last"}


def trial(of: str = "rosenbrock", optimizer: str = "sgd[lr=1e-3]", model: str = "point", more: str = "", **settings):
    return make(model, f"surface[of={of},steps=12{more}]", optimizer, **(SETTINGS | settings))


def places(folder) -> list[list[float]]:
    return json.loads((folder / "exhibit.json").read_text())["places"]


@pytest.mark.parametrize(
    ("optimizer", "plain"),
    [
        ("sgd[lr=1e-3]", lambda p: torch.optim.SGD(p, 1e-3)),
        ("nesterov[lr=3e-4]", lambda p: torch.optim.SGD(p, 3e-4, momentum=0.9, nesterov=True)),
        ("adam[lr=0.1]", lambda p: torch.optim.Adam(p, 0.1)),
    ],
)
@pytest.mark.parametrize("of", SURFACES)
def test_the_path_is_that_of_a_plain_loop(tmp_path, of, optimizer, plain):
    result = run(trial(of, optimizer, "point[spread=0]", ",noise=0"), tmp_path)
    surface, theta = SURFACES[of], torch.tensor(SURFACES[of].start, requires_grad=True)
    other, path = plain([theta]), [SURFACES[of].start]
    for _ in range(36):
        other.zero_grad()
        surface.formula(theta[0], theta[1]).backward()
        other.step()
        path.append(tuple(theta.tolist()))
    walked = places(tmp_path)
    assert [step for step, *_ in walked] == list(range(37))
    for (_, x, y, value), (a, b) in zip(walked, path, strict=True):
        assert (x, y) == pytest.approx((a, b), rel=1e-4, abs=1e-4)
        assert value == pytest.approx(surface.formula(a, b), rel=1e-3, abs=1e-3)
    end = theta.double().tolist()
    assert result["test"]["value"] == pytest.approx(surface.formula(*end), rel=1e-5, abs=1e-6)
    assert result["test"]["excess"] == pytest.approx(result["test"]["value"] - surface.least, abs=1e-9)
    away = min(math.dist(end, minimum) for minimum in surface.minima)
    assert result["test"]["distance"] == pytest.approx(away, rel=1e-4)
    assert result["test"] == result["validation"] and result["parameters"] == 2
    assert result["baselines"]["the start"]["value"] == pytest.approx(surface.formula(*surface.start), rel=1e-6)


def test_noise_is_on_the_gradient_and_the_same_for_all_rivals(tmp_path):
    one, other, later = (
        run(trial("ravine", "sgd[lr=1e-2]", "point[spread=0]", more, seed=seed), tmp_path / name)
        for name, more, seed in (("a", ",noise=50", 0), ("b", ",noise=0", 0), ("c", ",noise=50", 1))
    )
    assert one["status"] == other["status"] == later["status"] == "done"
    first = {name: torch.tensor(places(tmp_path / name)[1][1:3]) for name in "abc"}
    assert not torch.equal(first["a"], first["c"])
    # A first step of plain descent and one of Nesterov's differ by the same noise, times the step.
    tilt = first["b"] - first["a"]
    for name, more in (("d", ",noise=50"), ("e", ",noise=0")):
        run(trial("ravine", "nesterov[lr=1e-2]", "point[spread=0]", more), tmp_path / name)
    twice = [torch.tensor(places(tmp_path / name)[1][1:3]) for name in "ed"]
    torch.testing.assert_close(twice[0] - twice[1], 1.9 * tilt, rtol=1e-3, atol=1e-3)


def test_the_noise_is_as_large_as_it_says_and_another_one_every_epoch(tmp_path):
    """On a gradient that hardly changes, steps minus their mean are the noise."""
    run(trial("ravine", "sgd[lr=1e-6]", "point[spread=0]", ",noise=1000", epochs=13), tmp_path)
    path = torch.tensor(places(tmp_path))[:, 1:3]
    assert len(path) == 157
    steps = path.diff(dim=0) / 1e-6
    assert 700 < float(steps.std()) < 1300
    epochs = steps.reshape(13, 12, 2)
    assert not torch.allclose(epochs[0], epochs[1], atol=50)


@pytest.mark.parametrize("optimizer", sorted(catalogue("optimizer")))
def test_every_optimizer_walks_and_one_that_was_stopped_comes_out_with_the_same_bits(tmp_path, optimizer):
    def one():
        return trial("ravine", optimizer, lr=0.01)

    whole = run(one(), tmp_path / "whole")
    assert whole["status"] == "done" and whole["test"]["excess"] < whole["baselines"]["the start"]["excess"]
    with pytest.raises(Stop):
        run(one(), tmp_path / "parts", stop_after=2)
    run(one(), tmp_path / "parts")
    assert bits(tmp_path / "whole", whole) == bits(tmp_path / "parts")
    assert (tmp_path / "whole" / "exhibit.json").read_bytes() == (tmp_path / "parts" / "exhibit.json").read_bytes()


def test_rivals_start_at_one_place_and_seeds_at_others(tmp_path):
    for name, optimizer, seed in (("a", "sgd", 0), ("b", "adam", 0), ("c", "sgd", 1)):
        run(trial("beale", optimizer, seed=seed, epochs=1), tmp_path / name)
    a, b, c = (places(tmp_path / name)[0][1:3] for name in "abc")
    assert a == b != c and math.dist(a, SURFACES["beale"].start) < 0.1


def test_together_or_alone_is_the_same(tmp_path):
    trials = [trial("saddle", seed=seed) for seed in (0, 1)]
    run_together(trials, tmp_path / "together")
    assert bits(tmp_path / "together" / "1") == bits(tmp_path / "alone", run(trials[1], tmp_path / "alone"))


def test_a_long_path_is_thinned_and_keeps_both_ends(tmp_path):
    run(trial(epochs=40), tmp_path)
    steps = [step for step, *_ in places(tmp_path)]
    assert steps[0] == 0 and steps[-1] == 480 and len(steps) <= 162 and steps == sorted(set(steps))


def test_a_walk_that_leaves_for_good_is_a_row(tmp_path):
    assert run(trial("rosenbrock", "sgd[lr=1]"), tmp_path / "at once")["status"] == "diverged"
    # Above 2 / 20 the ravine throws a walk out, slowly: it is shown up to where numbers end.
    assert run(trial("ravine", "sgd[lr=0.5]", epochs=20), tmp_path / "late")["status"] == "diverged"
    walked = places(tmp_path / "late")
    assert walked and all(math.isfinite(number) for place in walked for number in place)
    assert run(trial(timeout=1e-6), tmp_path / "slow")["status"] == "timeout"


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        ("surface[of=rosenbrok]", UnknownName, "There is no surface 'rosenbrok'; did you mean 'rosenbrock'"),
        ("surface[of=beale,start=(9,0)]", BadOption, "lies outside of beale, whose x is from -1 to 4.5 and y from -2"),
        ("surface[start=(nan,0)]", BadOption, "start"),
        ("surface[steps=0]", BadOption, "steps must be at least 1, not 0"),
        ("surface[noise=-1]", BadOption, "noise must be a number that is not negative"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(task, kind, says):
    with pytest.raises(kind, match=says.replace("(", r"\(")):
        check_fit(make("point", task, "sgd", **SETTINGS))


@pytest.mark.parametrize(("model", "task"), [("lstm", "surface"), ("ppmi", "surface"), ("point", "add")])
def test_who_does_not_belong_there_says_so(model, task):
    with pytest.raises(ArenaError, match=" it "):
        check_fit(make(model, task, "sgd", **SETTINGS))


@pytest.mark.parametrize("lr", [0.01, 0.03, 0.055])
def test_plain_descent_never_passes_the_flat_place_of_the_quartic_at_a_rate_that_could_stay_at_its_minimum(
    tmp_path, lr
):
    """x ← x (1 − 4 η x (x + 3)) keeps its sign from x = 1 on if η < 1/16; the minimum holds it only if η < 2/36."""
    run(trial("quartic", f"sgd[lr={lr}]", "point[spread=0]", epochs=8), tmp_path)
    assert all(0 < x <= 1 for _, x, _, _ in places(tmp_path))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adam", "orthadam"])
def test_a_gpu_walks_the_same_path_as_one_graph(tmp_path, optimizer):
    logs: list[str] = []
    run(trial("ravine", optimizer, lr=0.01), tmp_path / "gpu", logs=logs, device=torch.device("cuda"))
    run(trial("ravine", optimizer, lr=0.01), tmp_path / "cpu")
    assert not logs
    assert_same(tmp_path / "gpu", tmp_path / "cpu", 1e-3)
