"""A sweep over every model on every task: it fits or says why not, and keeps what all competitors promise."""

from __future__ import annotations

import copy
import csv
import pickle
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from nnarena.core.components import PACKAGE, catalogue
from nnarena.core.errors import Unfit
from nnarena.core.options import Option, Value
from nnarena.core.spec import SPECIAL, TaskSpec
from nnarena.core.task import Task

# Those that read words do not learn by the gradient of an answer: tests/nn/test_words.py sweeps them.
MODELS = sorted(name for name, component in catalogue("model").items() if component.reads != "words")
# Every task as it is, and the variants that change what a model sees.
TASKS = {name: {} for name in catalogue("task")} | {
    "walker, timed": {"frame_skip": True},
    "activity, timed": {"elapsed": True},
}
B = 4
# What cannot matter. The decoder's one token attends to itself alone: with a share of 1 whatever query and key say, and
# a recurrent reader of it never leaves its first step. A bias of all keys shifts all scores alike.
IDLE = {
    "transformer": r"decoder\.\d+\.attention\.(query|key)|key\.bias",
    "memory_augmented_transformer": r"key\.bias",
    "recurrent_network_augmented_transformer": r"decoder\.\d\.attention\.(query|key|readers\.\d\.weight_hh)|key\.bias",
    "recurrent_network_attention_transformer": r"decoder\.\d+\.attention\.readers\.\d+\.(theta|phi|omega)",
}
FIXED_START = {"memory_cell"}  # starts at the published solution
LARGER = {"alexnet": 64, "zfnet": 64}  # pixels a side that a stem wants, which no task has
FIXED_LENGTH = {"attention_wise_1d", "deep_mlp"}  # have weights for every step


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
# A task that each model can do.
HOME = dict(reversed(PAIRS)) | {model: task for model, task in PAIRS if task == "add"} | {"mlp": "pendulum"}
TIMED = [model for model, task in PAIRS if task == "walker, timed"]


def inputs(model: str, spec: TaskSpec, batch: int = B, most: int = 8) -> tuple[torch.Tensor, ...]:
    """Random images or tokens; or sequences of a few steps: most models run at any length."""
    generator = torch.Generator().manual_seed(1)
    if len(spec.input_shape) == 3:
        return (torch.randn(batch, *spec.input_shape, generator=generator),)
    if not spec.input_shape:
        return (torch.randn(batch, generator=generator),)
    if spec.vocabulary:
        return (torch.randint(SPECIAL, spec.vocabulary, (batch, *spec.input_shape), generator=generator),)
    steps = spec.length if model in FIXED_LENGTH else min(spec.length, most)
    x = torch.randn(batch, steps, spec.input_size, generator=generator)
    return (x, torch.rand(batch, steps, generator=generator) + 0.1) if spec.timespans else (x,)


def target_of(spec: TaskSpec, shape: tuple[int, ...]) -> torch.Tensor:
    if spec.target == "tokens":
        return torch.arange(shape[0] * shape[1]).reshape(shape[:2]) % (spec.output_size - SPECIAL) + SPECIAL
    return torch.arange(B) % spec.output_size if spec.target == "class" else torch.randn(shape)


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


def test_every_model_does_the_published_tasks_and_says_why_it_cannot_do_one() -> None:
    assert {(row["model"], row["task"]) for row in PUBLISHED} <= set(PAIRS)
    assert HOME.keys() == set(MODELS)
    for model, task in PAIRS:
        reads = {0: "nothing", 1: "tokens", 2: "sequences", 3: "images"}[len(make_task(task).spec.input_shape)]
        assert catalogue("model")[model].reads == reads
    assert all(reason.startswith("it ") and reason.endswith(".") for reason in MISFITS.values() if reason)


@pytest.mark.parametrize(("model", "task"), PAIRS)
def test_it_answers_in_the_tasks_shape_and_every_parameter_receives_a_gradient(model, task):
    made = make_task(task)
    spec = made.spec
    net, x = build(model, spec), inputs(model, spec)
    output = net(*x)
    shape = (B, x[0].shape[1], spec.output_size) if spec.per_step else (B, *spec.output_shape)
    assert output.shape == shape and output.dtype == torch.float32
    made.teach(net, x, target_of(spec, shape)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.isfinite().all()), name
        if not re.search(IDLE.get(model, "^$"), name):
            assert bool(parameter.grad.any()), f"{name} receives no gradient"


@pytest.mark.parametrize(("model", "task"), PAIRS)
def test_the_answer_does_not_depend_on_what_shares_the_batch(model, task):
    spec = make_task(task).spec
    net, x = build(model, spec).eval(), inputs(model, spec)
    with torch.no_grad():
        whole = net(*x)
        # A hundred layers whose norms know nothing of their inputs yet make numbers large, and their rounding too.
        near = 1e-4 * whole.abs().max().item() if len(spec.input_shape) == 3 else 1e-5
        for row in range(B):
            torch.testing.assert_close(net(*(part[row : row + 1] for part in x))[0], whole[row], rtol=1e-4, atol=near)
        strange = tuple(torch.cat([part[:1], part[1:].flip(1) if spec.vocabulary else 1e3 * part[1:]]) for part in x)
        torch.testing.assert_close(net(*strange)[0], whole[0], rtol=1e-4, atol=near)


@pytest.mark.parametrize("model", TIMED)
def test_time_changes_the_answer_where_a_task_gives_it(model):
    spec = make_task("walker, timed").spec
    net, (x, timespans) = build(model, spec), inputs(model, spec)
    assert not torch.allclose(net(x, timespans), net(x, 2 * timespans))


@pytest.mark.parametrize("model", [model for model in MODELS if model not in FIXED_START])
def test_the_seed_decides_the_start_values(model):
    spec = make_task(HOME[model]).spec
    component = catalogue("model")[model]
    torch.manual_seed(1)
    other = component.load()(spec, **component.resolve({})).state_dict()
    one, same = build(model, spec).state_dict(), build(model, spec).state_dict()
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", MODELS)
def test_a_competitor_copies_and_pickles(model):
    spec = make_task(HOME[model]).spec
    net, x = build(model, spec).eval(), inputs(model, spec)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(again(*x), net(*x))


OPTIONS = [(model, option.name) for model in MODELS for option in catalogue("model")[model].options]


def other_values(option: Option) -> list[Value]:
    """Values that the option takes and that are not its default; one at least must make a difference."""
    words = [one or other for one, other in re.findall(r'"(\w+)"|\'(\w+)\'', option.annotation)]
    if words:
        return [next(word for word in words if word != option.default)]
    if option.default is None:  # what a configuration says, which has one of these
        return [True, False] if "bool" in option.annotation else [4]
    if isinstance(option.default, bool):
        return [not option.default]
    if isinstance(option.default, int):
        return [option.default * 2]
    if isinstance(option.default, float):
        return [option.default / 2 or 0.5]
    raise TypeError(option.annotation)


# Options that mean something with another one only.
COMPANY = {"anneal": {"forcing": "scheduled", "anneal_steps": 6}, "anneal_steps": {"forcing": "scheduled"}}


def answers(net: nn.Module, x: tuple[torch.Tensor, ...], spec: TaskSpec) -> torch.Tensor:
    """What it answers; and if it writes tokens, what it answers while it is taught, for some steps."""
    if spec.target != "tokens":
        return net(*x)
    return torch.cat([net(*x), *(net(*x, target_of(spec, (B, *spec.output_shape))) for _ in range(6))])


@pytest.mark.parametrize(("model", "option"), OPTIONS)
def test_every_option_changes_the_model_or_its_answer(model, option):
    spec = make_task(HOME[model]).spec
    if model in LARGER:
        spec = replace(spec, input_shape=(3, LARGER[model], LARGER[model]))
    declared = next(item for item in catalogue("model")[model].options if item.name == option)
    company = COMPANY.get(option, {})
    usual, x, changes = build(model, spec, **company), inputs(model, spec), []
    for value in other_values(declared):
        other = build(model, spec, **company | {option: value})
        pairs = list(zip(usual.state_dict().values(), other.state_dict().values(), strict=False))
        alike = len(usual.state_dict()) == len(other.state_dict()) and all(torch.equal(a, b) for a, b in pairs)
        changes.append(not alike or not torch.allclose(answers(usual, x, spec), answers(other, x, spec)))
        assert other(*x).shape == usual(*x).shape
    assert any(changes)


@pytest.mark.parametrize("model", MODELS)
def test_it_can_be_compiled(model):
    spec = make_task(HOME[model]).spec
    net = build(model, spec).eval()
    x = inputs(model, spec, batch=2, most=3)
    torch.testing.assert_close(torch.compile(net, backend="eager")(*x), net(*x))


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_gives_the_same_answer_and_gradients(model):
    spec = make_task(HOME[model]).spec
    noisy = any(option.name == "dropout" for option in catalogue("model")[model].options)
    here, x = build(model, spec, **({"dropout": 0.0} if noisy else {})), inputs(model, spec)
    if len(spec.input_shape) == 3:  # batch norm makes much of the rounding of float32
        here, x = here.double(), tuple(part.double() for part in x)
    there = copy.deepcopy(here).to("cuda")
    torch.backends.cudnn.allow_tf32 = False
    answers = [here(*x), there(*(part.to("cuda") for part in x))]
    for answer in answers:
        answer.square().sum().backward()
    torch.testing.assert_close(answers[1].cpu(), answers[0], rtol=1e-4, atol=1e-5)
    for (name, param), other in zip(here.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), param.grad, rtol=1e-3, atol=1e-4, msg=name)
