"""Networks for images in the engine: alone, as a population, stopped and continued, in bfloat16."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from engine_helpers import CPU, assert_same, bits, curve, make, run, run_together

from nnarena.core.protocol import Protocol
from nnarena.engine.device import computing_with
from nnarena.engine.fit import check_fit
from nnarena.engine.members import Member
from nnarena.engine.prepare import prepare
from nnarena.engine.stack import NEAR, Stacked
from nnarena.engine.trainer import Alone
from nnarena.results.folder import TrialFolder

NAMES = ["resnet18", "densenet121", "resnext50_32x4d"]
SLOW = pytest.mark.slow
DROPS = ["alexnet", *(pytest.param(name, marks=SLOW) for name in ("zfnet", "googlenet"))]
NETS = ["resnet18", *(pytest.param(name, marks=SLOW) for name in NAMES[1:])]
TASK = "digits_image[size=32,augment=pad_crop]"
# Three steps an epoch.
SHORT = {"samples": 40, "batch_size": 8, "epochs": 1, "lr": 1e-3, "test_fraction": 0.2, "validation_fraction": 0.2}


def trial(model: str, seed: int = 0, optimizer: str = "sgd", **more):
    return make(model, TASK, optimizer, seed, **SHORT | more)


@pytest.mark.parametrize("model", [*NETS, *DROPS])
def test_a_population_is_its_trials(model, tmp_path):
    """In float64: batch norm divides by deviations that are nearly zero where images are black, and makes much of the
    rounding of float32, however it comes in."""
    trials, logs = [trial(f":Exact[net={model}]", seed) for seed in range(2)], []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, one in enumerate(trials):
        run(one, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place), 1e-6)


@pytest.mark.parametrize("model", NETS)
def test_the_first_step_of_a_population_in_float32(model, tmp_path):
    members = [Member(trial(model, seed), TrialFolder(tmp_path / str(seed)), CPU, True) for seed in range(2)]
    for member in members:
        member.prepare(print)
    orders = [member.order()[:1].repeat(3, 1) for member in members]
    apart = [Alone(member, 8, CPU, print) for member in members]
    together = Stacked(members[0].trial, members, 8, CPU, print)
    together.train(orders)
    for place, trainer in enumerate(apart):
        trainer.train([orders[place]])
        torch.testing.assert_close(trainer.losses_S[0, 0], together.losses_S[0, place], rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "optimizer", ["orthadam", pytest.param("adamw", marks=SLOW), pytest.param("adamp", marks=SLOW)]
)
def test_stopped_and_continued_is_the_same(optimizer, tmp_path):
    made = trial("resnet18", optimizer=optimizer, epochs=2)
    run(made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "stopped", stop_after=1)
    run(made, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


@pytest.mark.slow
def test_it_learns(tmp_path):
    # Small images on purpose: seconds instead of minutes.
    made = make("resnet18", "digits_image[size=16]", "adamw", samples=640, batch_size=16, epochs=3, lr=1e-3)
    assert run(made, tmp_path)["test"]["accuracy"] > 0.7


def test_channels_lie_last_where_a_model_does_not_mind():
    batch = prepare(trial("resnet18"), CPU).parts["train"].batch(torch.arange(4))[0][0]
    assert batch.is_contiguous(memory_format=torch.channels_last)
    coloured = "digits_image[channels=3]"
    for model, last in (("resnet18", True), (":pixels", False)):
        made = make(model, coloured, **SHORT)
        (x,), _ = prepare(made, CPU).parts["train"].batch(torch.arange(4))
        assert x.is_contiguous(memory_format=torch.channels_last) is last
        assert x.is_contiguous() is not last


@pytest.mark.parametrize("model", ["resnet18", "lstm[hidden_size=6]", "transformer[d_model=4]", "ct_rnn"])
def test_bfloat16(model, tmp_path):
    task = TASK if model == "resnet18" else "add[length=4]"
    plain, half = (make(model, task, "sgd", **SHORT | {"epochs": 2, "precision": name}) for name in ("float32", "bf16"))
    assert check_fit(half) == check_fit(plain)
    logs = []
    for made, name in ((plain, "plain"), (half, "half")):
        run(made, tmp_path / name, logs=logs)
    lines = [curve(tmp_path / name) for name in ("plain", "half")]
    assert lines[0] != lines[1], "it is another precision"
    assert lines[1][0]["loss"] == pytest.approx(lines[0][0]["loss"], rel=0.2)
    assert not logs
    with pytest.raises(KeyboardInterrupt):
        run(half, tmp_path / "stopped", stop_after=1)
    run(half, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "half")


@pytest.mark.parametrize(
    "model", [*(pytest.param(name, marks=SLOW) for name in ("resnet18", "alexnet")), "zfnet[init=scaled]"]
)
def test_a_population_in_bfloat16(model, tmp_path):
    trials, logs = [trial(model, seed, precision="bf16") for seed in range(2)], []
    run_together(trials, tmp_path / "together", logs=logs)
    assert not logs
    for place, one in enumerate(trials):
        run(one, tmp_path / "alone" / str(place))
        lines = [curve(tmp_path / way / str(place)) for way in ("together", "alone")]
        assert lines[0][0]["loss"] == pytest.approx(lines[1][0]["loss"], rel=0.2)


def test_tf32_holds_for_the_trial_alone():
    def settings():
        return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()

    before = settings()
    with computing_with(1, CPU, "tf32"):
        assert settings() == (True, "high")
        with computing_with(1, CPU):
            assert settings() == (False, "highest")
    assert settings() == before


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_and_answers_stay_float32(precision):
    ready = prepare(trial("resnet18", precision=precision), CPU)
    inputs, _ = ready.parts["train"].batch(torch.arange(8))
    seen = []
    ready.model.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    assert ready.model(*inputs).dtype == torch.float32
    assert seen == [torch.float32 if precision == "float32" else torch.bfloat16]
    assert {tensor.dtype for tensor in ready.state.params.values()} == {torch.float32}


def test_a_population_is_checked_whatever_products_are_computed_in():
    assert set(NEAR) == set(get_args(get_type_hints(Protocol)["precision"]))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("model", [*NAMES, "alexnet", "googlenet", "vgg16[norm=true]"])
def test_on_a_gpu_every_step_is_recorded(model, precision, tmp_path):
    device, logs = torch.device("cuda"), []
    trials = [trial(model, seed, "adamw", precision=precision) for seed in range(2)]
    run_together(trials, tmp_path / "together", logs=logs, device=device)
    run(trials[0], tmp_path / "alone", logs=logs, device=device)
    assert not logs
    assert curve(tmp_path / "together" / "0")[0]["loss"] == pytest.approx(curve(tmp_path / "alone")[0]["loss"], rel=0.2)
