"""A sweep over every model on every task: it fits or says why not, and keeps what all competitors promise."""

from __future__ import annotations

import copy
import csv
import pickle
import re

import pytest
import torch
from torch import nn

from nnarena.core.components import PACKAGE, catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import TaskSpec
from nnarena.core.task import Task

MODELS = sorted(catalogue("model"))
# Every task as it is, and the variants that change what a model sees.
TASKS = {name: {} for name in catalogue("task")} | {
    "walker, timed": {"frame_skip": True},
    "activity, timed": {"elapsed": True},
}
B = 4
# What cannot matter: the decoder's one token attends to itself alone, with a share of 1 whatever query and key say,
# and a bias of all keys shifts all scores alike.
IDLE = {"transformer": r"decoder\.\d+\.attention\.(query|key)|key\.bias"}


def make_task(name: str) -> Task:
    component = catalogue("task")[name.split(",")[0]]
    return component.load()(**component.resolve(TASKS.get(name, {})))


def build(model: str, spec: TaskSpec, **options) -> nn.Module:
    torch.manual_seed(0)
    component = catalogue("model")[model]
    return component.load()(spec, **component.resolve(options))


def misfit(model: str, task: str) -> str:
    """Why a model cannot do a task; nothing if it can."""
    try:
        build(model, make_task(task).spec)
    except Unfit as error:
        return str(error)
    return ""


MISFITS = {(model, task): misfit(model, task) for model in MODELS for task in sorted(TASKS)}
PAIRS = [pair for pair, reason in MISFITS.items() if not reason]


def inputs(spec: TaskSpec, batch: int = B) -> tuple[torch.Tensor, ...]:
    """Random inputs over at most 20 steps: a model runs at any length."""
    generator = torch.Generator().manual_seed(1)
    steps = min(spec.length, 20)
    x = torch.randn(batch, steps, spec.input_size, generator=generator)
    return (x, torch.rand(batch, steps, generator=generator) + 0.1) if spec.timespans else (x,)


with (PACKAGE / "studies" / "poster.csv").open() as file:
    PUBLISHED = [row for row in csv.DictReader(file) if row["metric"] == "parameters" and row["model"] in MODELS]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['task']}-{row['model']}")
def test_the_parameters_are_as_many_as_published(row):
    model = build(row["model"], make_task(row["task"]).spec)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == int(row["mean"])


def test_published_counts_are_there_for_the_first_models_on_five_tasks():
    counts = {(row["task"], row["model"]) for row in PUBLISHED}
    tasks = ("add", "memory", "mnist", "activity", "walker")
    assert {(task, model) for task in tasks for model in ("lstm", "gru", "transformer")} <= counts


def test_every_model_does_most_tasks_and_says_why_it_cannot_do_one() -> None:
    for model in MODELS:
        assert sum(pair[0] == model for pair in PAIRS) > len(TASKS) / 2
    assert all(reason.startswith("it ") and reason.endswith(".") for reason in MISFITS.values() if reason)


@pytest.mark.parametrize(("model", "task"), PAIRS)
def test_it_answers_in_the_tasks_shape_and_every_parameter_receives_a_gradient(model, task):
    made = make_task(task)
    spec = made.spec
    net, x = build(model, spec), inputs(spec)
    output = net(*x)
    shape = (B, x[0].shape[1], spec.output_size) if spec.per_step else (B, spec.output_size)
    assert output.shape == shape and output.dtype == torch.float32
    classes = spec.target == "class"
    target = torch.arange(B) % spec.output_size if classes else torch.randn(shape)
    made.loss(output, target).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name
        if not re.search(IDLE.get(model, "^$"), name):
            assert bool(parameter.grad.any()), f"{name} receives no gradient"


@pytest.mark.parametrize(("model", "task"), PAIRS)
def test_the_answer_does_not_depend_on_what_shares_the_batch(model, task):
    spec = make_task(task).spec
    net, x = build(model, spec).eval(), inputs(spec)
    with torch.no_grad():
        whole = net(*x)
        for row in range(B):
            torch.testing.assert_close(net(*(part[row : row + 1] for part in x))[0], whole[row], rtol=1e-4, atol=1e-5)
        strange = tuple(torch.cat([part[:1], 1e3 * part[1:]]) for part in x)
        torch.testing.assert_close(net(*strange)[0], whole[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_time_changes_the_answer_where_a_task_gives_it(model):
    spec = make_task("walker, timed").spec
    net, (x, timespans) = build(model, spec), inputs(spec)
    assert not torch.allclose(net(x, timespans), net(x, 2 * timespans))


@pytest.mark.parametrize("model", MODELS)
def test_the_seed_decides_the_start_values(model):
    spec = make_task("add").spec
    component = catalogue("model")[model]
    torch.manual_seed(1)
    other = component.load()(spec, **component.resolve({})).state_dict()
    one, same = build(model, spec).state_dict(), build(model, spec).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", MODELS)
def test_a_competitor_copies_and_pickles(model):
    spec = make_task("add").spec
    net, x = build(model, spec), inputs(spec)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(again(*x), net(*x))


OPTIONS = [(model, option.name) for model in MODELS for option in catalogue("model")[model].options]


@pytest.mark.parametrize(("model", "option"), OPTIONS)
def test_every_option_changes_the_model(model, option):
    spec = make_task("add").spec
    default = next(item.default for item in catalogue("model")[model].options if item.name == option)
    if not isinstance(default, int) or isinstance(default, bool):
        pytest.skip("not a size")
    small, large = build(model, spec), build(model, spec, **{option: 2 * default})
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in large.parameters())
    assert large(*inputs(spec)).shape == (B, spec.output_size)
