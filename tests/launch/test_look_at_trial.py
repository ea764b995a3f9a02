"""A trained model looked at: the same answers as its record, and the stages of its own layers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from launch_helpers import small
from torch.func import functional_call

from nnarena.core.errors import ArenaError, StoreError
from nnarena.core.options import parse_choices
from nnarena.core.protocol import Protocol
from nnarena.core.study import Grid, Study
from nnarena.core.trial import trial_from_dict
from nnarena.engine.look import staged_layers
from nnarena.engine.prepare import prepare
from nnarena.engine.tensors import load, save
from nnarena.launch.look import look_at_trial
from nnarena.launch.run import run_study
from nnarena.nn import attention_wise
from nnarena.nn.attention_wise_net import AttentionWiseNet
from nnarena.results.folder import LOOK, LOOK_PAGE, MODEL, RESULT, TRIAL, TrialFolder

CPU = torch.device("cpu")
SETTINGS = {"samples": 400, "batch_size": 20, "epochs": 2, "lr": 0.005}


def trained(folder, task, model, **settings) -> TrialFolder:
    grid = Grid(*(tuple(parse_choices([part])) for part in (task, model, "adam")))
    study = Study("looks", (grid,), protocol=Protocol.of(SETTINGS | settings))
    outcome = run_study(study, folder, device="cpu", jobs=1)
    return outcome.store.trial_folder(study.trials()[0])


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> TrialFolder:
    options = "heads=3,layers=2,norm=true,bias=true"
    return trained(tmp_path_factory.mktemp("images"), "digits_image", f"attention_wise[{options}]")


@pytest.fixture(scope="module")
def sequence(tmp_path_factory) -> TrialFolder:
    return trained(tmp_path_factory.mktemp("sequence"), "digits", "attention_wise_1d[features=5,norm=true]")


def rebuilt(folder: TrialFolder):
    """The model with its weights, and its test samples, by hand."""
    ready = prepare(trial_from_dict(json.loads((folder.path / TRIAL).read_text())), CPU)
    weights, _ = load(folder.path / MODEL)
    ready.model.load_state_dict(weights)
    data = ready.parts["test"]
    return ready.model.eval(), *data.batch(torch.arange(len(data)))


@pytest.mark.parametrize("kind", ["images", "sequence"])
def test_answers_are_those_of_the_record(kind, request) -> None:
    folder = request.getfixturevalue(kind)
    trial, look = look_at_trial(folder, "cpu")
    model, inputs, targets = rebuilt(folder)
    with torch.no_grad():
        expected = model(*inputs).softmax(-1)
    np.testing.assert_allclose(look.probabilities, expected, atol=1e-5)
    np.testing.assert_array_equal(look.targets, targets)
    accuracy = (look.probabilities.argmax(1) == look.targets).mean()
    assert accuracy == pytest.approx(folder.result()["test"]["accuracy"], abs=1e-6)
    assert trial.id == folder.path.name
    assert look.classes == tuple("0123456789")


@pytest.mark.data
def test_real_clothes_have_names_and_the_answers_of_the_record(tmp_path) -> None:
    folder = trained(tmp_path, "fashion_mnist", "attention_wise[config=single]", samples=2100, batch_size=50)
    _, look = look_at_trial(folder, "cpu")
    assert look.classes[-1] == "ankle boot" and look.inputs.shape == (300, 1, 28, 28) and look.white == 255
    accuracy = (look.probabilities.argmax(1) == look.targets).mean()
    assert accuracy == pytest.approx(folder.result()["test"]["accuracy"], abs=1e-6)


@pytest.mark.parametrize("kind", ["images", "sequence"])
def test_stages_are_those_of_the_model_layer_by_layer(kind, request) -> None:
    folder = request.getfixturevalue(kind)
    _, look = look_at_trial(folder, "cpu", images=3, seed=5)
    model, inputs, _ = rebuilt(folder)
    x = inputs[0][torch.from_numpy(look.followed)]
    assert [layer.name for layer in look.layers] == ["layers.0", "layers.1"]
    with torch.no_grad():
        x = model.shrink(x) if kind == "images" else model.embed(x)
        for layer, seen in zip(model.layers, look.layers, strict=True):
            np.testing.assert_allclose(seen.inputs, x, atol=1e-5)
            stages = layer.stages(x)._asdict()
            assert list(seen.stages) == list(stages)
            for name, value in stages.items():
                np.testing.assert_allclose(seen.stages[name], value, rtol=1e-4, atol=1e-5)
            names = ["weight_x", "weight_y", *(["bias_x", "bias_y"] if kind == "images" else [])]
            assert list(seen.arrays) == names
            np.testing.assert_array_equal(seen.arrays["weight_y"], layer.attention.weight_y)
            x = layer(x)
            np.testing.assert_allclose(seen.stages["output"], x, atol=1e-5)


@torch.no_grad()
def test_stages_are_there_where_kernels_compute_the_layer_without_them(monkeypatch) -> None:
    torch.manual_seed(0)
    net = AttentionWiseNet([attention_wise.AttentionWise2d(1, 4, 5, 2, std=1.0) for _ in range(2)], 3).eval()
    weights, x = dict(net.state_dict()), torch.randn(2, 1, 4, 5)
    plain = staged_layers(net, weights, (x,))
    monkeypatch.setattr(attention_wise, "can_fuse", lambda x: True)  # in Triton's interpreter
    monkeypatch.setattr(attention_wise.AttentionWise2d, "_convolved", counted := Counted())
    fused = staged_layers(net, weights, (x,))
    assert counted.calls == 2 and [layer.name for layer in fused] == ["layers.0", "layers.1"]
    for one, other in zip(fused, plain, strict=True):
        for name in other.stages:
            np.testing.assert_allclose(one.stages[name], other.stages[name], rtol=1e-4, atol=1e-5)
    assert not any(module._forward_pre_hooks for module in net.modules())


class Counted:
    """`AttentionWise2d._convolved`, and how often it was called."""

    def __init__(self) -> None:
        self.calls, self.true = 0, attention_wise.AttentionWise2d._convolved

    def __get__(self, layer, kind=None):
        def call(x):
            self.calls += 1
            return self.true(layer, x)

        return call


def test_rows_and_columns_sum_to_one(images, sequence) -> None:
    for folder in (images, sequence):
        for layer in look_at_trial(folder, "cpu")[1].layers:
            np.testing.assert_allclose(layer.stages["rows"].sum(-1), 1, atol=1e-5)
            np.testing.assert_allclose(layer.stages["columns"].sum(-2), 1, atol=1e-5)


def test_the_seed_decides_which_samples_are_followed(images) -> None:
    one, same, other = (look_at_trial(images, "cpu", images=6, seed=seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.followed, same.followed)
    assert not np.array_equal(one.followed, other.followed)
    assert len(set(one.followed)) == 6 and len(one.layers[0].inputs) == 6
    everything = look_at_trial(images, "cpu", images=10_000)[1]
    assert sorted(everything.followed) == list(range(len(everything.targets)))


def test_samples_are_told_by_their_place_among_all(images) -> None:
    _, look = look_at_trial(images, "cpu")
    ready = prepare(trial_from_dict(json.loads((images.path / TRIAL).read_text())), CPU)
    np.testing.assert_array_equal(look.inputs, ready.samples.inputs[look.samples])
    np.testing.assert_array_equal(look.targets, ready.samples.targets[look.samples])
    assert look.white == 16


def test_looking_changes_nothing_and_leaves_no_hook(images) -> None:
    before = {path: path.read_bytes() for path in images.path.iterdir()}
    state = torch.random.get_rng_state()
    look_at_trial(images, "cpu")
    assert before == {path: path.read_bytes() for path in images.path.iterdir()}
    assert torch.equal(state, torch.random.get_rng_state())


def test_views_at_test_time_are_averaged_as_in_the_record(tmp_path) -> None:
    folder = trained(tmp_path, "digits_image[test_views=shift]", "attention_wise[heads=1]")
    _, look = look_at_trial(folder, "cpu")
    accuracy = (look.probabilities.argmax(1) == look.targets).mean()
    assert accuracy == pytest.approx(folder.result()["test"]["accuracy"], abs=1e-6)
    np.testing.assert_allclose(look.probabilities.sum(1), 1)
    model, inputs, _ = rebuilt(folder)
    with torch.no_grad():
        assert not np.allclose(look.probabilities, functional_call(model, {}, inputs).softmax(-1), atol=1e-6)


def test_numbers_to_predict_have_stages_but_no_classes(tmp_path) -> None:
    folder = trained(tmp_path, "add[length=6]", "attention_wise_1d")
    _, look = look_at_trial(folder, "cpu")
    assert look.probabilities is None and look.classes == ()
    assert len(look.layers) == 2 and look.layers[0].stages["rows"].shape == (4, 2, 6, 16)


def test_what_cannot_be_looked_at_is_told_in_a_sentence(images, tmp_path) -> None:
    study = small("lstm[hidden_size=6]", epochs=1)
    outcome = run_study(study, tmp_path / "lstm", device="cpu", jobs=1)
    with pytest.raises(ArenaError, match=r"no pictures of lstm\[hidden_size=6\] on add\[length=4\]"):
        look_at_trial(outcome.store.trial_folder(study.trials()[0]), "cpu")

    def copy(name: str) -> TrialFolder:
        folder = tmp_path / name / images.path.name
        folder.mkdir(parents=True)
        for path in images.path.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return TrialFolder(folder)

    running = copy("running")
    (running.path / RESULT).unlink()
    with pytest.raises(StoreError, match="is not finished"):
        look_at_trial(running, "cpu")
    empty = copy("empty")
    (empty.path / MODEL).unlink()
    with pytest.raises(StoreError, match=r"no model to look at: it is done and left no model\.safetensors"):
        look_at_trial(empty, "cpu")
    other = copy("other")
    weights, _ = load(other.path / MODEL)
    save(other.path / MODEL, {name: value for name, value in weights.items() if name != "head.bias"})
    with pytest.raises(StoreError, match="does not fit the model"):
        look_at_trial(other, "cpu")
    cut = copy("cut")
    (cut.path / MODEL).write_bytes((cut.path / MODEL).read_bytes()[:-9])
    with pytest.raises(StoreError, match="is damaged"):
        look_at_trial(cut, "cpu")


def test_a_model_of_ones_own_that_has_changed_is_not_taken_for_the_old_one(tmp_path) -> None:
    file = tmp_path / "mine.py"
    code = (
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, spec):\n        super().__init__()\n"
        "        self.dense = nn.Linear(64, 10)\n\n    def forward(self, x):\n        return self.dense(x.flatten(1))\n"
    )
    file.write_text(code)
    folder = trained(tmp_path / "store", "digits_image", f"{file}:Net", samples=200, epochs=1)
    _, look = look_at_trial(folder, "cpu")
    assert look.probabilities.shape == (20, 10)
    record = json.loads((folder.path / TRIAL).read_text())
    record["fingerprints"]["model"] = "0" * 12
    (folder.path / TRIAL).write_text(json.dumps(record))
    with pytest.raises(StoreError, match="another version of a file of yours"):
        look_at_trial(folder, "cpu")


def test_a_trial_that_is_forgotten_takes_its_pictures_along(images, tmp_path) -> None:
    folder = TrialFolder(tmp_path)
    for name in (LOOK, LOOK_PAGE, RESULT):
        (tmp_path / name).write_text("{}")
    folder.forget()
    assert list(tmp_path.iterdir()) == []
