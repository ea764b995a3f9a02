"""Every registered model of sequences or images can be diagnosed, and looking changes nothing.

Its gradients are those of a plain step.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from nnarena.core.components import catalogue
from nnarena.core.errors import Unfit
from nnarena.core.spec import PADDING
from nnarena.core.task import Task
from nnarena.diagnose.measure import NOISE, measure
from nnarena.nn import Recurrent

# Others learn from a text or from a surface, and not from samples.
KINDS = ("sequences", "images", "tokens")
MODELS = sorted(name for name, component in catalogue("model").items() if component.reads in KINDS)
# The first of these that a model fits is where it is looked at.
TASKS = {
    "add": {"length": 12, "samples": 8},
    "cell": {"length": 12, "samples": 8},
    "digits_image": {},
    "digits_image, larger": {"size": 32},
    "copy": {"samples": 8},
}
# Small sizes, for those options that a model has.
SMALL = {"hidden_size": 8, "slots": 3, "width": 2, "rows": 3, "columns": 3, "capacity": 2, "heads": 2, "embed": 4}
# Their recurrent layers read in an order of their own, inside of attention.
READERS = {"recurrent_network_attention_transformer", "recurrent_network_augmented_transformer"}


def small(name: str) -> tuple[nn.Module, Task]:
    """A model at a small size, and a task that it fits."""
    component = catalogue("model")[name]
    sizes = {option.name for option in component.options if isinstance(option.default, int)}
    options = component.resolve({key: size for key, size in SMALL.items() if key in sizes})
    for place, given in TASKS.items():
        task_component = catalogue("task")[place.split(",")[0]]
        known = {option.name for option in task_component.options}
        task = task_component.load()(**task_component.resolve({key: given[key] for key in given if key in known}))
        try:
            torch.manual_seed(0)
            return component.load()(task.spec, **options), task
        except Unfit:
            continue
    raise AssertionError(f"{name} fits none of {', '.join(TASKS)}: add a task of its kind.")


@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_looked_at_and_looking_changes_nothing(name: str) -> None:
    model, task = small(name)
    samples = task.samples(np.random.default_rng(0)).first(4)
    inputs = task.present((torch.from_numpy(samples.inputs),), None)
    targets = torch.from_numpy(samples.targets)
    measured = measure(model, task, inputs, targets)

    plain = model.double().train()
    torch.manual_seed(NOISE)
    wanted = targets.double() if targets.is_floating_point() else targets
    given = tuple(part.double() if part.is_floating_point() else part for part in inputs)
    loss = task.teach(plain, given, wanted)
    loss.backward()
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-9)
    norms = {key: param.grad.norm().item() for key, param in plain.named_parameters() if param.grad is not None}
    largest = max(norms.values())
    for item in measured["parameters"]:
        assert item["gradient"] == pytest.approx(norms.get(item["name"], 0.0), rel=1e-6, abs=1e-9 * largest)

    assert {item["name"] for item in measured["parameters"]} == {key for key, _ in plain.named_parameters()}
    figures = [item[key] for item in measured["layers"] for key in ("mean", "std", "low", "high", "gradient")]
    assert measured["layers"] and all(map(math.isfinite, figures))
    flows = [item for item in measured["flow"] if item["of"] == "input"]
    assert len(flows) == (len(task.spec.input_shape) < 3)
    steps = (inputs[0] != PADDING).any(0).sum() if task.spec.vocabulary else task.spec.input_shape[0]
    assert all(len(item["norms"]) == steps for item in flows)
    states = [item["name"] for item in measured["flow"] if item["of"] == "state"]
    assert bool(states) == (any(isinstance(part, Recurrent) for part in plain.modules()) and name not in READERS)
    assert [item["name"] for item in measured["jacobian"]] == states
    assert all(math.isfinite(item["radius"]["high"]) for item in measured["jacobian"])
    assert all(item["radius"]["mean"] <= item["norm"]["mean"] * (1 + 1e-9) for item in measured["jacobian"])
