"""Trials that start with what another one has learned: alone, as one, stopped, and with the other one gone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from engine_helpers import COMPETITORS, CPU, assert_same, bits, make, run, run_together

from nnarena.core.components import catalogue
from nnarena.core.errors import StoreError, Unfit
from nnarena.core.spec import TaskSpec
from nnarena.core.trial import Trial
from nnarena.engine.fit import check_fit
from nnarena.engine.members import Member
from nnarena.engine.prepare import prepare
from nnarena.engine.tensors import load, save
from nnarena.engine.transfer import begin, find_head, freeze, take_weights, tensors_of
from nnarena.results.folder import MODEL, START, TrialFolder
from nnarena.results.start import settle_start

LSTM = "lstm[hidden_size=6]"
NORMED = ":normed"


def first(path: Path, model: str = LSTM, task: str = "add[length=4]", **more) -> str:
    """Train a trial; returns what others write to start with it."""
    run(make(model, task, seed=7, **more), path)
    return settle_start(str(path))


def from_(start: str, model: str = LSTM, task: str = "add[length=6]", freeze: str = "", **more) -> Trial:
    name, bracket, options = model.partition("[")
    said = [options[:-1]] if bracket else []
    said += [f"start='{start}'"] if start else []
    said += [f"freeze='{freeze}'"] if freeze else []
    return make(f"{name}[{','.join(said)}]", task, **more)


def test_every_tensor_is_taken_and_the_seed_changes_none(tmp_path):
    start = first(tmp_path / "first")
    learned = load(tmp_path / "first" / MODEL)[0]
    for seed in range(2):
        weights = prepare(from_(start, seed=seed), CPU).state.weights()
        assert weights.keys() == learned.keys()
        assert all(torch.equal(tensor, learned[name]) for name, tensor in weights.items())
    plain = prepare(make(LSTM, "add[length=6]"), CPU).state.weights()
    assert not torch.equal(plain["head.weight"], learned["head.weight"])


def test_a_new_head_for_another_number_of_outputs(tmp_path):
    start, logs = first(tmp_path / "first"), []
    task = ":sums[classes=3]"
    made = from_(start, task=task, epochs=1)
    result = run(made, tmp_path / "second", logs=logs)
    assert result["status"] == "done" and len(logs) == 1
    assert logs[0].endswith(": the head starts anew, for another number of outputs: head.weight, head.bias.")
    learned, weights = load(tmp_path / "first" / MODEL)[0], prepare(made, CPU).state.weights()
    own = prepare(make(LSTM, task), CPU).state.weights()
    for name, tensor in weights.items():
        assert torch.equal(tensor, own[name] if name.startswith("head.") else learned[name])
    again: list[str] = []
    run_together([from_(start, task=task, epochs=1, seed=seed) for seed in range(3)], tmp_path / "more", logs=again)
    assert again == logs


@pytest.mark.parametrize(
    ("what", "frozen"), [("body", r"^(?!head)"), (r"weight_hh|^head.bias", r"weight_hh|^head.bias")]
)
def test_what_is_frozen_stays_and_the_rest_learns(what, frozen, tmp_path):
    start = first(tmp_path / "first")
    made = from_(start, freeze=what, epochs=2)
    state = prepare(made, CPU).state
    result = run(made, tmp_path / "second")
    before, after = (load(tmp_path / name / MODEL)[0] for name in ("first", "second"))
    still = {name for name, tensor in before.items() if torch.equal(tensor, after[name])}
    assert still == {name for name in before if re.search(frozen, name)}
    assert still == state.buffers.keys() and not still & state.params.keys()
    assert sum(map(len, (group["params"] for group in state.optimizer.param_groups))) == len(state.params)
    assert result["parameters"] == sum(tensor.numel() for tensor in state.params.values())


def test_frozen_norms_keep_their_means_and_compute_with_them(tmp_path):
    start = first(tmp_path / "first", NORMED)
    learned = load(tmp_path / "first" / MODEL)[0]
    means = [name for name in learned if "running" in name or "tracked" in name]
    assert len(means) == 6
    made = from_(start, NORMED, freeze="body")
    ready = prepare(made, CPU)
    ready.model.train()
    assert [part.training for part in ready.model][1:] == [True, False, True, False, True]
    run(made, tmp_path / "body")
    after = load(tmp_path / "body" / MODEL)[0]
    assert all(torch.equal(learned[name], after[name]) for name in learned if not name.startswith("5."))
    # A norm whose parameters are trained goes on as ever, and so does one that nobody named.
    run(from_(start, NORMED, freeze=r"^1\."), tmp_path / "dense")
    after = load(tmp_path / "dense" / MODEL)[0]
    assert [name for name in learned if torch.equal(learned[name], after[name])] == ["1.weight", "1.bias"]
    run(from_(start, NORMED, freeze=r"^(1|4)\."), tmp_path / "bare")
    after = load(tmp_path / "bare" / MODEL)[0]
    assert torch.equal(learned["4.running_mean"], after["4.running_mean"])
    assert not torch.equal(learned["2.running_mean"], after["2.running_mean"])


@pytest.mark.parametrize(("model", "what"), [(LSTM, "body"), (LSTM, "weight_hh"), (NORMED, "body"), (NORMED, r"^2\.")])
def test_a_population_is_its_trials(model, what, tmp_path):
    start, logs = first(tmp_path / "first", model), []
    trials = [from_(start, model, ":sums", what, seed=seed) for seed in range(3)]
    run_together(trials, tmp_path / "together", logs=logs)
    assert len(logs) == 1 and "the head starts anew" in logs[0]
    for place, one in enumerate(trials):
        run(one, tmp_path / "alone" / str(place))
        assert_same(tmp_path / "together" / str(place), tmp_path / "alone" / str(place))


@pytest.mark.parametrize("model", [LSTM, NORMED])
def test_it_goes_on_with_the_same_bits_when_the_other_one_is_gone(model, tmp_path):
    start = first(tmp_path / "first", model)
    made = from_(start, model, freeze="body", epochs=3)
    run(made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "stopped", stop_after=1)
    shutil.rmtree(tmp_path / "first")
    run(made, tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
    assert check_fit(made)
    # Another seed finds the weights beside it; a trial far from all of them says what is missing, and is a row.
    assert run(from_(start, model, freeze="body", seed=1), tmp_path / "beside")["status"] == "done"
    far = run(made, tmp_path / "far" / "away")
    assert far["status"] == "failed"
    assert far["error"].startswith(f"start={tmp_path / 'first'}: the weights ") and "not there any more" in far["error"]


def test_weights_that_were_changed_since_are_not_taken(tmp_path):
    start = first(tmp_path / "first")
    made = from_(start)
    run(made, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    first(tmp_path / "first", lr=0.02)
    assert settle_start(str(tmp_path / "first")) != start
    with pytest.raises(StoreError, match=r"its weights are .*, not "):
        settle_start(start)
    member = Member(made, TrialFolder(tmp_path / "second"), CPU, True)
    member.make_ready(print)
    learned = load(tmp_path / "second" / START)[0]
    assert all(torch.equal(tensor, learned[name]) for name, tensor in member.ready.state.weights().items())


def test_identity_is_the_weights_and_not_their_place(tmp_path):
    start = first(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    one, same = from_(start), from_(settle_start(str(tmp_path / "copy")))
    assert one.id == same.id and one.path == same.path and one.cell != same.cell
    other = from_(first(tmp_path / "other", lr=0.02))
    assert len({one.id, other.id, make(LSTM, "add[length=6]").id, from_(start, freeze="body").id}) == 4
    assert [one.axis("start"), one.axis("data")] == [other.axis("start"), other.axis("data")]
    record = json.loads((tmp_path / "first" / "trial.json").read_text())
    assert "start" not in record["options"]["model"] and "freeze" not in record["options"]["model"]


def test_freezing_alone_needs_no_start(tmp_path):
    made = make("lstm[hidden_size=6,freeze=body]")
    assert check_fit(made) == 7
    assert run(made, tmp_path)["status"] == "done"
    assert not (tmp_path / START).exists()


WRONG = {
    "other model": (
        "gru[hidden_size=6]",
        "add[length=6]",
        "",
        r"shape \(\d+, \d+\) in the weights, and \(\d+, \d+\) in it",
    ),
    "other names": (NORMED, "add[length=6]", "", "and the weights have not; they are of another model"),
    "other size": (
        "lstm[hidden_size=5]",
        "add[length=6]",
        "",
        r"has the shape \(24, 2\) in the weights, and \(20, 2\) in it",
    ),
    "no such name": (LSTM, "add[length=6]", "conv", "freeze='conv' is in no parameter's name; they begin with .*head"),
    "every name": (
        LSTM,
        "add[length=6]",
        ".",
        "freeze='.' is in every parameter's name, so that nothing is left to train",
    ),
}


@pytest.mark.parametrize(("model", "task", "what", "sentence"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_said_in_a_sentence(model, task, what, sentence, tmp_path):
    start = first(tmp_path / "first", epochs=1)
    with pytest.raises(Unfit, match=sentence):
        check_fit(from_(start, model, task, what))


def build(name: str, spec: TaskSpec, seed: int):
    torch.manual_seed(seed)
    component = catalogue("model")[name]
    return component.load()(spec, **component.resolve({}))


@pytest.mark.parametrize("name", COMPETITORS)
def test_every_competitor_can_start_with_weights_and_has_a_head(name, tmp_path):
    spec, wider = (TaskSpec(input_shape=(8, 3), output_size=size, target="class") for size in (4, 5))
    try:
        one, other = build(name, spec, 0), build(name, spec, 1)
    except Unfit as error:
        pytest.skip(str(error))
    save(tmp_path / MODEL, tensors_of(one))
    assert begin(other, {"start": "here"}, tmp_path / MODEL, lambda: build(name, wider, 0)) == ""
    learned = tensors_of(one)
    assert all(torch.equal(tensor, learned[key]) for key, tensor in tensors_of(other).items())
    head = find_head(one, build(name, wider, 0))
    assert head
    if any(key not in head for key, _ in one.named_parameters()):
        freeze(one, "body", lambda: head)
        assert {key for key, param in one.named_parameters() if param.requires_grad} <= set(head)
    larger = build(name, wider, 2)
    fresh = {key: tensor.clone() for key, tensor in tensors_of(larger).items()}
    anew = take_weights(larger, learned, lambda: find_head(larger, build(name, spec, 0)), "here")
    for key, tensor in tensors_of(larger).items():
        assert torch.equal(tensor, fresh[key] if key in anew else learned[key])


def test_a_model_without_a_head_says_so():
    spec = TaskSpec(input_shape=(4, 2), output_size=1, target="values")
    net = build("gru", spec, 0)
    with pytest.raises(Unfit, match="freeze=body cannot tell its head"):
        freeze(net, "body", lambda: [])
    with pytest.raises(Unfit, match="freeze=body freezes nothing"):
        freeze(net, "body", lambda: [key for key, _ in net.named_parameters()])


@pytest.mark.gpu
@pytest.mark.parametrize("model", [LSTM, NORMED])
def test_on_a_gpu_every_step_is_recorded(model, tmp_path):
    device, logs = torch.device("cuda"), []
    start = first(tmp_path / "first", model)
    trials = [from_(start, model, freeze="body", seed=seed) for seed in range(2)]
    run_together(trials, tmp_path / "together", logs=logs, device=device)
    run(trials[0], tmp_path / "alone", logs=logs, device=device)
    assert not logs
    assert_same(tmp_path / "together" / "0", tmp_path / "alone", 1e-3)
