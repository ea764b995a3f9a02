"""The registry: what the source text says is what the code does; a person's own components."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nnarena
from nnarena.core.components import Component, catalogue, check, find, lend, option_docs, signature_options
from nnarena.core.errors import ArenaError, BadOption, UnknownName
from nnarena.core.options import parse_choice

KINDS = ("model", "task", "optimizer", "initialiser")
ALL = [component for kind in KINDS for component in catalogue(kind).values()]


def ids(component: Component) -> str:
    return f"{component.kind}-{component.name}"


# ------------------------------------------------------------------------------------------- the built-in ones


@pytest.mark.parametrize("component", ALL, ids=ids)
def test_the_source_text_says_what_the_signature_says(component):
    target = component.load()
    assert target.component_name == component.name
    assert component.doc == inspect.getdoc(target)
    arguments = list(inspect.signature(target).parameters.values())
    positional = [argument.name for argument in arguments if argument.kind is not argument.KEYWORD_ONLY]
    takes = {"model": ["spec"], "task": [], "optimizer": ["params"]}
    takes["initialiser"] = ["weight", "inputs", "outputs", "generator"]
    assert positional == takes[component.kind]
    declared = [argument for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
    own = component.options
    assert [option.name for option in own] == [argument.name for argument in declared]
    for option, argument in zip(own, declared, strict=True):
        assert option.annotation.replace("'", '"') == argument.annotation.replace("'", '"')
        assert option.required == (argument.default is argument.empty)
        assert option.required or (
            option.default == argument.default and type(option.default) is type(argument.default)
        )


@pytest.mark.parametrize("component", ALL, ids=ids)
def test_a_component_explains_itself(component):
    assert 10 < len(component.summary) <= 120 and component.summary.endswith(".")
    assert component.reference
    assert component.name == component.name.lower() and component.name.isidentifier()
    for option in component.options:
        assert option.doc, f"{component.name} does not say what {option.name} means"
    assert set(option_docs(component.doc)) <= {option.name for option in component.options}


@pytest.mark.parametrize("component", ALL, ids=ids)
def test_every_default_is_a_value_that_its_option_takes(component):
    defaults = {option.name: option.default for option in component.options if not option.required}
    assert component.resolve(defaults) == component.resolve({})


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_some_of_every_kind_in_order(kind):
    assert len(catalogue(kind)) >= 3
    assert list(catalogue(kind)) == sorted(catalogue(kind))


def test_listing_everything_imports_neither_torch_nor_numpy():
    program = (
        "import json, sys, nnarena\n"
        "from nnarena.core import study, trial\n"
        "from nnarena.core.components import catalogue\n"
        "names = [name for kind in ('model', 'task', 'optimizer') for name in catalogue(kind)]\n"
        "trials = study.find_study('poster').trials()\n"
        "print(json.dumps([names, len(trials), sorted(sys.modules)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names, trials, modules = json.loads(done.stdout)
    assert {"lstm", "add", "adam"} <= set(names) and trials > 0
    assert not {"torch", "numpy", "polars", "pandas", "nnarena.nn", "nnarena.tasks.add"} & set(modules)


def test_the_public_names_are_where_they_should_be():
    assert nnarena.model is nnarena.core.components.model
    assert set(nnarena.__all__) <= set(dir(nnarena))
    with pytest.raises(AttributeError, match="nothing"):
        _ = nnarena.nothing


@pytest.mark.parametrize(("kind", "wrong", "near"), [("model", "lsmt", "lstm"), ("task", "Add", "add")])
def test_an_unknown_name_suggests_the_nearest(kind, wrong, near):
    with pytest.raises(UnknownName, match=rf"There is no {kind} '{wrong}'; did you mean '{near}'\?.*nnarena list"):
        find(kind, wrong)


def test_a_name_like_nothing_lists_what_there_is():
    with pytest.raises(UnknownName, match="there are adadelta, adagrad, adam"):
        find("optimizer", "zzzzzz")


def test_a_choice_is_checked_with_its_options():
    component, options = check("model", parse_choice("lstm[hidden_size=8]")[0])
    assert component.name == "lstm" and options == {"hidden_size": 8}
    with pytest.raises(BadOption, match="lstm: option 'hidden_size' takes a whole number"):
        check("model", parse_choice("lstm[hidden_size=big]")[0])


# ------------------------------------------------------------------------------------------------ one's own

OWN = '''
import numpy as np
import torch
from torch import nn
import nnarena


class Layer(nn.Module):
    """A layer of one's own."""

    def __init__(self, input_size, hidden_size, depth: int = 1):
        super().__init__()
        self.inner = nn.LSTM(input_size, hidden_size, depth, batch_first=True)

    def forward(self, x):
        return self.inner(x)


class Whole(nn.Module):
    """A whole model.

    Options:
        width: how wide it is
    """

    def __init__(self, input_size, output_size, *, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(input_size, width), nn.Linear(width, output_size))

    def forward(self, x):
        return self.net(x[:, -1])


def built(spec, scale=1.0):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.length * spec.input_size, spec.output_size))


def parity(rng, bits: int = 5):
    """Is the number of ones odd?"""
    x = rng.integers(0, 2, (64, bits, 1))
    return x, x.sum((1, 2)) % 2


class Mine(nnarena.Task):
    """A task of one's own."""

    def __init__(self, *, steps: int = 6):
        self.spec = nnarena.TaskSpec(input_shape=(steps, 1), output_size=1, target="values")

    def samples(self, rng):
        x = rng.random((64, self.spec.length, 1), dtype=np.float32)
        return nnarena.Samples(x, x.mean(1))


class Slow(torch.optim.SGD):
    """An optimizer of one's own."""

    def __init__(self, params, lr: float = 1e-4):
        super().__init__(params, lr=lr)


number = 3
'''


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return str(path)


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("model", "Layer", {"hidden_size": 64, "depth": 1}),
        ("model", "Whole", {"width": 8}),
        ("model", "built", {"scale": 1.0}),
        ("task", "parity", {"bits": 5}),
        ("task", "Mine", {"steps": 6}),
        ("optimizer", "Slow", {"lr": 1e-4}),
    ],
)
def test_what_one_wrote_is_a_component_with_options(own, kind, name, options):
    component = find(kind, f"{own}:{name}")
    assert (component.kind, component.name) == (kind, name)
    assert component.resolve({}) == options
    assert len(component.fingerprint) == 12


@pytest.mark.parametrize("name", ["Layer", "Whole", "built"])
def test_models_of_ones_own_fit_tasks_of_ones_own(own, name):
    for task_name, outputs in (("parity", 2), ("Mine", 1)):
        task = find("task", f"{own}:{task_name}")
        spec = task.load()(**task.resolve({})).spec
        component = find("model", f"{own}:{name}")
        model = component.load()(spec, **component.resolve({}))
        assert model(torch.rand(3, *spec.input_shape)).shape == (3, outputs)


def test_an_optimizer_of_ones_own_takes_parameters_and_options(own):
    parameter = torch.nn.Parameter(torch.ones(1))
    assert find("optimizer", f"{own}:Slow").load()([parameter], lr=0.5).param_groups[0]["lr"] == 0.5


def test_the_docs_of_ones_own_options_are_read(own):
    (option,) = find("model", f"{own}:Whole").options
    assert option.doc == "how wide it is"
    assert find("model", f"{own}:Whole").summary == "A whole model."


def test_a_change_of_the_source_changes_the_fingerprint_and_what_runs(own):
    before = find("task", f"{own}:parity")
    assert find("task", f"{own}:parity").fingerprint == before.fingerprint
    Path(own).write_text(OWN.replace("bits: int = 5", "bits: int = 9"))
    after = find("task", f"{own}:parity")
    assert after.fingerprint != before.fingerprint
    assert after.resolve({}) == {"bits": 9}, "the fingerprint is that of the new source, so must the code be"
    assert after.load()(**after.resolve({})).spec.length == 9


def test_what_a_module_has_can_be_named_too(tmp_path, monkeypatch):
    (tmp_path / "my_own_module.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert find("model", "my_own_module:Whole").resolve({"width": 3}) == {"width": 3}


def test_a_built_in_by_its_module_is_the_built_in():
    assert find("model", "nnarena.nn.lstm:lstm") is catalogue("model")["lstm"]
    assert find("task", "nnarena.tasks.add:Add") is catalogue("task")["add"]


def test_options_without_a_type_take_any_value():
    def net(spec, depth=None, width=None):
        """A net."""

    component = Component("model", "net", "", "net", "", signature_options(net, skip=["spec"]))
    assert component.resolve({"depth": 3, "width": "wide"}) == {"depth": 3, "width": "wide"}


@pytest.mark.parametrize(
    ("source", "ref", "sentence"),
    [
        (None, "Net", "There is no file '.*own.py' to take a model from."),
        ("x = 1 +", "Net", "own.py cannot be imported: SyntaxError"),
        ("import not_a_module_at_all", "Net", "own.py cannot be imported: ModuleNotFoundError: .*not_a_module_at_all"),
        ("1 / 0", "Net", "own.py cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "Net", "own.py cannot be imported: SystemExit"),
        ("class Network: pass", "Netwrk", "no model in .*own.py 'Netwrk'; did you mean 'Network'"),
        ("Net = 3", "Net", "own.py:Net is not a class or a function, so it cannot be a model."),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(tmp_path, source, ref, sentence):
    path = tmp_path / "own.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(ArenaError, match=sentence):
        find("model", f"{path}:{ref}")


def test_a_failed_import_is_tried_again(tmp_path):
    path = tmp_path / "own.py"
    path.write_text("1 / 0")
    with pytest.raises(ArenaError):
        find("model", f"{path}:built")
    path.write_text(OWN)
    assert find("model", f"{path}:built").name == "built"


def test_a_missing_module_is_a_sentence(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ArenaError, match="The module 'no_such_module' cannot be imported for a model"):
        find("model", "no_such_module:Net")


@pytest.mark.parametrize(
    ("kind", "source", "sentence"),
    [
        ("task", "def f(x): ...", "f cannot be a task: its first argument must be rng"),
        ("task", "class f: ...", "f cannot be a task: a class must be a subclass of nnarena.Task"),
        ("optimizer", "def f(): ...", "f cannot be an optimizer: its first argument must be params"),
        ("optimizer", "class f: ...", "f cannot be an optimizer: a class must be a subclass of torch.optim.Optimizer"),
        ("model", "class f: ...", "f cannot be a model: a class must be a subclass of torch.nn.Module"),
    ],
)
def test_what_cannot_be_such_a_component_is_told_why(tmp_path, kind, source, sentence):
    (tmp_path / "own.py").write_text(source)
    with pytest.raises(ArenaError, match=sentence):
        find(kind, f"{tmp_path / 'own.py'}:f")


# ---------------------------------------------------------------------------------------- objects at hand


def lent_model(width: int):
    def Net(spec, scale: int = 1):  # noqa: N802
        return torch.nn.Linear(width, spec.output_size)

    return Net


class Outer:
    class Inner(torch.nn.Linear):
        def __init__(self, input_size: int, output_size: int) -> None:
            super().__init__(input_size, output_size)


def test_an_object_at_hand_is_found_again():
    ref = lend(lent_model(3))
    assert find("model", ref).name == "Net"
    assert find("model", lend(torch.nn.Identity)).name == "Identity"
    assert find("model", lend(Outer.Inner)).name == "Inner"


def test_what_is_defined_again_takes_the_place_of_the_old():
    spec = nnarena.TaskSpec(input_shape=(2, 2), output_size=2, target="values")
    old = find("model", lend(lent_model(3)))
    new = find("model", lend(lent_model(4)))
    assert [component.load()(spec).in_features for component in (old, new)] == [3, 4]


def test_lending_the_same_object_again_gives_the_same_reference():
    net = lent_model(5)
    assert lend(net) == lend(net)


def test_an_object_of_another_process_is_a_sentence():
    with pytest.raises(ArenaError, match="Gone was handed over as a Python object and is not in this process"):
        find("model", "<python>:Gone")


def test_the_options_paragraph_ends_where_the_indentation_ends():
    doc = "Summary.\n\nOptions:\n    a: one\n    b: two lines,\n            joined\n\nc: not an option\n"
    assert option_docs(doc) == {"a": "one", "b": "two lines, joined"}
    assert option_docs("Summary.") == {}
