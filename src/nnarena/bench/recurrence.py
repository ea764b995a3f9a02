"""A whole training step of every recurrent competitor, in units of `torch.nn.LSTM`, beside what others offer.

A step is forward, loss, backward and Adam. The unit is `torch.nn.LSTM(2, 64)` with a dense layer on `add`, measured in
turns with each competitor. Gradients are compared with those of a plain loop in float64, and whoever gets them wrong
has no time.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from nnarena.bench import peers
from nnarena.bench.timing import Step, graphed
from nnarena.core.components import catalogue, find
from nnarena.core.errors import first_line
from nnarena.core.task import Task
from nnarena.engine.graph import all_at_once
from nnarena.kernels import toolchain
from nnarena.kernels.cpu import chunk
from nnarena.nn.recurrent import Recurrent

BATCH = 128
LENGTHS = {"add": {"length": 100}, "cell": {"phases": 3, "length": 128}}
REFERENCE = "torch.nn.LSTM"
# Rounding in float32, carried through a hundred steps, comes to 1e-6 … 1e-4 of a parameter's largest gradient; a
# product in tf32 or bfloat16 to 1e-3 and more, and a wrong formula to 1e-1.
TOLERANCE = 5e-4
# Slopes of 100 over 384 steps: a plain loop in float32 is 1e-3 off.
LOOSE = {"memory_cell": 1e-2}
# A training step of the published code (TensorFlow, two cores of such a machine), in units of torch.nn.LSTM there.
PUBLISHED = {
    "lstm": 1.1,
    "gru": 1.1,
    "transformer": 2.4,
    "ode_lstm": 2.8,
    "ct_gru": 4.9,
    "ct_rnn": 8.6,
    "unitary_ncp": 11.0,
    "neural_circuit_policies": 13.0,
    "differentiable_neural_computer": 26.0,
    "recurrent_network_augmented_transformer": 27.0,
    "memory_augmented_transformer": 30.0,
    "unitary_rnn": 33.0,
    "recurrent_network_attention_transformer": 41.0,
    "matrix_exponential_unitary_rnn": 48.0,
    "memory_cell": 8.0,
}
BESIDES = ("attention_split", "elman", "jordan")  # of which nobody published one


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train one model.

    path             torch's own kernel ("native"), one kernel for all steps ("fused"), compiled chunks, a plain loop
                     ("eager"), what the layer chooses ("auto"), or whose code it is
    ratio            time of a training step, in units of the reference; None where it has no right to one
    seconds          the same in seconds, where a device is quiet enough for that to mean something
    passes           of these, those of forward and backward, without the optimizer
    gradient_error   the largest error of a parameter's gradient, as a part of its largest entry
    compile_seconds  what the first step took, where something is compiled in it
    seeds            how many copies were trained at once
    per_seed         the time of one of them, and
    passes_per_seed  of that the time of forward and backward
    """

    model: str
    path: str
    task: str
    ratio: float | None = None
    seconds: float | None = None
    passes: float | None = None
    gradient_error: float | None = None
    compile_seconds: float | None = None
    seeds: int | None = None
    per_seed: float | None = None
    passes_per_seed: float | None = None
    published: float | None = None
    note: str = ""


def paths(name: str, device: torch.device) -> list[str]:
    """The ways in which a competitor can be trained here."""
    if name in peers.PEERS:
        return [peers.PEERS[name].path]
    layers = recurrent_layers(build(name, make_task(name), torch.device("cpu")))
    if not layers:
        return ["auto"]
    inner = {id(part) for layer in layers for part in recurrent_layers(layer) if part is not layer}  # never called
    native = [layer for layer in layers if type(layer).native is not Recurrent.native and id(layer) not in inner]
    if device.type == "cuda":
        return ["native"] * bool(native) + ["fused", "eager"]
    return ["native"] * bool(native) + ["eager"] + ["compiled"] * (toolchain.compiler() is not None)


def known() -> list[str]:
    """Every recurrent model and transformer of the arena, and the peers. Others are measured where they are named."""
    return [*PUBLISHED, *BESIDES, *peers.PEERS]


def choose(names: list[str]) -> list[str]:
    """All that is known, or those asked for."""
    for name in names:
        if name not in peers.PEERS:
            find("model", name)
    return names or known()


def task_name(name: str) -> str:
    return "cell" if name == "memory_cell" else "add"


def make_task(name: str, length: int | None = None) -> Task:
    task = task_name(name)
    options = {**LENGTHS[task], **({} if length is None else {"length": length}), "samples": BATCH}
    return catalogue("task")[task].load()(**options)


def build(name: str, task: Task, device: torch.device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = peers.PEERS[name].build(task.spec) if name in peers.PEERS else find("model", name).load()(task.spec)
    return made.to(device)


def recurrent_layers(model: nn.Module) -> list[Recurrent]:
    return [module for module in model.modules() if isinstance(module, Recurrent)]


def use(model: nn.Module, path: str) -> nn.Module:
    """The model with all its recurrent layers on one path."""
    for layer in recurrent_layers(model):
        layer.backend = path
    return model


def batch(task: Task, device: torch.device) -> tuple[Tensor, Tensor]:
    samples = task.samples(np.random.default_rng(0))
    return torch.from_numpy(samples.inputs).to(device), torch.from_numpy(samples.targets).to(device)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [param for param in model.parameters() if param.requires_grad]


def gradients(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> list[Tensor]:
    params = trained(model)
    found = torch.autograd.grad(task.loss(model(x), y), params, allow_unused=True)
    return [torch.zeros_like(param) if grad is None else grad for param, grad in zip(params, found, strict=True)]


def gradient_error(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> float:
    """Against a plain loop in float64 with the same weights: the worst parameter, as a part of its largest gradient.

    A gradient that is zero but for rounding is held against the thousandth part of the largest of all.
    """
    return worst_error(gradients(model, task, x, y), model, task, x, y)


def worst_error(found: list[Tensor], model: nn.Module, task: Task, x: Tensor, y: Tensor) -> float:
    """The same of gradients that were found in some way."""
    exact = gradients(use(copy.deepcopy(model), "eager").double(), task, x.double(), y.double())
    largest = max(float(grad.abs().max()) for grad in exact)
    worst = 0.0
    for ours, theirs in zip(found, exact, strict=True):
        error = float((ours.double() - theirs).abs().max()) / max(float(theirs.abs().max()), 1e-3 * largest)
        worst = max(worst, error if error == error else float("inf"))
    return worst


def training_step(model: nn.Module, task: Task, x: Tensor, y: Tensor, optimizer: bool = True) -> Step:
    """Forward, loss and backward, and a step of Adam unless it is left out."""
    return _step(trained(model), lambda: task.loss(model(x), y), optimizer)


def population_step(models: list[nn.Module], task: Task, x: Tensor, y: Tensor, optimizer: bool = True) -> Step:
    """A training step of several copies at once, each with its own weights: `torch.vmap` over stacked parameters."""
    params, losses_of = together(models, task, x, y)
    return _step(list(params.values()), lambda: losses_of(params).sum(), optimizer)


def together(
    models: list[nn.Module], task: Task, x: Tensor, y: Tensor
) -> tuple[dict[str, Tensor], Callable[[dict[str, Tensor]], Tensor]]:
    """The parameters of several copies, one above the other, and the losses that come of such."""
    params, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def loss_of(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return task.loss(functional_call(skeleton, (params, buffers), (x,)), y)

    losses_of = torch.vmap(loss_of, randomness="different")
    return params, lambda params: losses_of(params, buffers)


def _step(params: list[Any], loss: Callable[[], Tensor], optimizer: bool) -> Step:
    adam: Any = torch.optim.Adam(params, capturable=params[0].is_cuda)
    if params[0].is_cuda:
        all_at_once(adam)

    def step() -> None:
        for param, grad in zip(params, torch.autograd.grad(loss(), params, allow_unused=True), strict=True):
            param.grad = grad
        if optimizer:
            adam.step()

    return step


def check(name: str, path: str, device: torch.device, length: int | None = None) -> Row:
    """The row of a competitor with its gradient error; what is wrong is said in its note."""
    row = Row(model=name, path=path, task=task_name(name), published=PUBLISHED.get(name))
    try:
        task, model, x, y = enter(name, path, device, length)
        began, refused = time.perf_counter(), len(chunk.refusals())
        gradients(model, task, x, y)
        if path == "compiled":
            reasons = chunk.refusals()[refused:]
            if reasons:
                return replace(row, note=f"skipped: {reasons[0]}")
            row = replace(row, compile_seconds=time.perf_counter() - began)
        error = gradient_error(model, task, x, y)
    except Exception as error:
        return replace(row, note=f"failed: {first_line(error)}")
    wrong = not error <= LOOSE.get(name, TOLERANCE)
    return replace(row, gradient_error=error, note="failed: its gradient is wrong" if wrong else "")


def enter(name: str, path: str, device: torch.device, length: int | None) -> tuple[Task, nn.Module, Tensor, Tensor]:
    task = make_task(name, length)
    model = build(name, task, device)
    return task, (model if name in peers.PEERS else use(model, path)), *batch(task, device)


def prepare(
    name: str, path: str, device: torch.device, length: int | None = None, optimizer: bool = True
) -> tuple[Step, str]:
    """A training step that has been taken once, and what must be said of it."""
    task, model, x, y = enter(name, path, device, length)
    step = training_step(model, task, x, y, optimizer)
    step()
    # a plain loop, and what others offer, is what people run: without a graph, but for torch's own layers
    plain = path in ("eager", "ncps", "torchdiffeq")
    return (step, "") if device.type == "cpu" or plain else graphed(step)


def prepare_population(
    name: str, path: str, device: torch.device, seeds: int, length: int | None = None, optimizer: bool = True
) -> Step:
    task = make_task(name, length)
    models = [use(build(name, task, device, seed), path) for seed in range(seeds)]
    step = population_step(models, task, *batch(task, device), optimizer)
    step()
    return graphed(step)[0] if device.type == "cuda" else step
