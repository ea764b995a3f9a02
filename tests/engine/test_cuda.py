"""What only a GPU can show. Run with `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch

from nnarena.core.options import Choice
from nnarena.core.protocol import Protocol
from nnarena.core.trial import Trial, make_trial
from nnarena.engine.prepare import prepare
from nnarena.engine.step import train_step
from nnarena.engine.trial import run_trial
from nnarena.nn import GRU, LSTM
from nnarena.results.folder import MODEL, TrialFolder

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def small_trial(model: str) -> Trial:
    protocol = Protocol(epochs=3, batch_size=32, samples=640)
    return make_trial("test", Choice("add", {"length": 20}), Choice(model), Choice("adam"), protocol, seed=0)


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_cudnn_agrees_with_the_steps_in_float64_without_a_warning(layer: type) -> None:
    torch.manual_seed(0)
    ours = layer(5, 7, device=CUDA)
    exact = layer(5, 7, dtype=torch.float64, backend="eager")
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(3, 11, 5, dtype=torch.float64)
    torch.backends.cudnn.allow_tf32 = False
    outputs = [ours(x.float().to(CUDA))[0], exact(x)[0]]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0].cpu().double(), outputs[1], atol=1e-5, rtol=1e-5)
    for (name, param), wanted in zip(ours.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(param.grad.cpu().double(), wanted.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_training_steps_never_wait_for_the_device(model: str) -> None:
    arena = prepare(small_trial(model), CUDA)
    order = torch.arange(64, device=CUDA).view(2, 32)
    train_step(arena.model, arena.task, arena.state, *arena.parts["train"].batch(order[0]))  # libraries load here
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in order.unbind():
            train_step(arena.model, arena.task, arena.state, *arena.parts["train"].batch(index))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_a_trial_starts_from_the_same_weights_and_data_as_on_the_cpu(model: str) -> None:
    here, there = (prepare(small_trial(model), device) for device in (torch.device("cpu"), CUDA))
    for name, param in here.state.params.items():
        assert torch.equal(param, there.state.params[name].cpu()), name
    assert torch.equal(here.parts["train"].inputs[0], there.parts["train"].inputs[0].cpu())


@pytest.mark.parametrize("model", ["lstm", "gru", "transformer"])
def test_a_stopped_trial_goes_on_as_if_nothing_had_happened(model: str, tmp_path) -> None:
    trial = small_trial(model)
    whole = run_trial(trial, TrialFolder(tmp_path / "whole"), CUDA)
    stopped = TrialFolder(tmp_path / "stopped")

    class Stop(BaseException):
        pass

    def stop(line: dict) -> None:
        if line["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        run_trial(trial, stopped, CUDA, on_epoch=stop)
    continued = run_trial(trial, stopped, CUDA)
    assert continued["test"]["mse"] == pytest.approx(whole["test"]["mse"], rel=1e-4)
    assert whole["peak_memory"] > 0
    print(model, "same bits:", (tmp_path / "whole" / MODEL).read_bytes() == (stopped.path / MODEL).read_bytes())


def test_out_of_memory_is_a_row(tmp_path) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-4)
    try:
        result = run_trial(small_trial("lstm"), TrialFolder(tmp_path), CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result["status"] == "out_of_memory"
