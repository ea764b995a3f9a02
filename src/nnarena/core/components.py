"""Models, tasks, optimizers and initialisers by name.

A component is a function or a class in one file of its room, marked by a decorator:

    @model("gru", reference="Cho et al. 2014")
    def gru(spec: TaskSpec, *, hidden_size: int = 80) -> nn.Module:
        '''One line that says what it is.'''

Its keyword-only arguments are its options. What there is, is read from the source text, so that listing all
components imports none of them (and not torch); a component's module is imported when it is used.

A person's own component is `my_file.py:Name` or `package.module:Name` and needs no decorator: the `adopt` module of
its room turns a plain class or function into a component.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any, Literal, TypeVar

from nnarena.core.common import COMMON, check_common
from nnarena.core.errors import ArenaError, UnknownName
from nnarena.core.options import Choice, Option, Value, resolve

Kind = Literal["model", "task", "optimizer", "initialiser"]
ROOMS: dict[Kind, str] = {"model": "nn", "task": "tasks", "optimizer": "optim", "initialiser": "nn"}
PACKAGE = Path(__file__).resolve().parents[1]
LENT = "<python>"
Marked = TypeVar("Marked", bound=Callable[..., Any])


@dataclass(frozen=True)
class Component:
    """One entry: how it is called, what it says of itself, its options, and how to get at it.

    `fingerprint` is a hash of the source of a person's own component: when they change it, its trials are new ones.
    `reads` is what a model takes, "sequences", "images", "tokens", "words" or "nothing"; `sets` which weights an
    initialiser is for, "all" or "recurrent".
    """

    kind: Kind
    name: str
    module: str
    attribute: str
    doc: str
    options: tuple[Option, ...]
    reference: str = ""
    reads: str = "sequences"
    sets: str = "all"
    fingerprint: str = ""
    target: Callable[..., Any] | None = None

    @property
    def summary(self) -> str:
        return self.doc.strip().split("\n", 1)[0]

    @property
    def takes(self) -> tuple[Option, ...]:
        """Its own options, and those that every component of its kind takes, unless it has one of that name itself."""
        own = {option.name for option in self.options}
        return (*self.options, *(option for option in COMMON[self.kind] if option.name not in own))

    def resolve(self, given: dict[str, Value]) -> dict[str, Value]:
        """All its own options, and of the common ones those that are set."""
        resolved = resolve(self.name, self.takes, given)
        check_common(self.common(resolved))
        return resolved

    def common(self, options: Mapping[str, Value]) -> dict[str, Value]:
        """Of resolved options those that are not its own: the engine does what they ask for."""
        own = {option.name for option in self.options}
        return {name: value for name, value in options.items() if name not in own}

    def own(self, options: Mapping[str, Value]) -> dict[str, Value]:
        """Of resolved options those that it is called with."""
        common = self.common(options)
        return {name: value for name, value in options.items() if name not in common}

    def load(self) -> Callable[..., Any]:
        """The function or class itself."""
        return self.target or getattr(importlib.import_module(self.module), self.attribute)


def _mark(name: str, reference: str) -> Callable[[Marked], Marked]:
    def mark(target: Marked) -> Marked:
        target.component_name = name  # type: ignore[attr-defined]
        return target

    return mark


def model(name: str, *, reference: str = "", reads: str = "sequences") -> Callable[[Marked], Marked]:
    """Marks `f(spec, *, options) -> torch.nn.Module` as a competitor; `Component.reads` says on what."""
    return _mark(name, reference)


def task(name: str, *, reference: str = "") -> Callable[[Marked], Marked]:
    """Marks a `Task` class, whose keyword-only arguments are its options."""
    return _mark(name, reference)


def optimizer(name: str, *, reference: str = "") -> Callable[[Marked], Marked]:
    """Marks `f(params, *, options) -> torch.optim.Optimizer`."""
    return _mark(name, reference)


def initialiser(name: str, *, reference: str = "", sets: str = "all") -> Callable[[Marked], Marked]:
    """Marks `f(weight, inputs, outputs, generator) -> None`, which fills a weight matrix in place.

    It sets "all" matrices of a model, or only its "recurrent" ones.
    """
    return _mark(name, reference)


@functools.cache
def catalogue(kind: Kind) -> dict[str, Component]:
    """Every built-in component of a kind, by name, without importing any."""
    found: dict[str, Component] = {}
    for path in sorted((PACKAGE / ROOMS[kind]).glob("*.py")):
        for component in _read_source(kind, path):
            if component.name in found:
                raise ArenaError(f"Two {kind}s are called {component.name!r}: {component.module} and another.")
            found[component.name] = component
    return dict(sorted(found.items()))


_lent: dict[str, Callable[..., Any]] = {}


def lend(target: Callable[..., Any]) -> str:
    """A reference to an object at hand, for `find`. Objects of a script or a notebook live in this process only."""
    module, name = target.__module__, target.__qualname__
    if module != "__main__" and "." not in name:
        return f"{module}:{name}"
    ref = f"{LENT}:{target.__name__}"
    _lent[ref] = target  # a class that is defined again takes the place of the old one
    return ref


def find(kind: Kind, ref: str) -> Component:
    """A built-in by name, or a person's own by `file.py:Name` or `package.module:Name`."""
    if ref.startswith(LENT):
        if ref not in _lent:
            raise ArenaError(f"{ref[len(LENT) + 1 :]} was handed over as a Python object and is not in this process.")
        return _adopt(kind, _lent[ref])
    if ":" in ref and kind != "initialiser":
        return _adopt(kind, _import_own(kind, ref))
    if ref not in catalogue(kind):
        own = "" if kind == "initialiser" else "; your own is file.py:Name"
        hint = f"(`nnarena list {kind}s` shows all{own}.)"
        raise UnknownName(kind, ref, catalogue(kind), hint)
    return catalogue(kind)[ref]


def check(kind: Kind, choice: Choice) -> tuple[Component, dict[str, Value]]:
    """The component of a choice and all its options; raises ArenaError when either is wrong."""
    component = find(kind, choice.ref)
    return component, component.resolve(dict(choice.options))


def take_batch_size(component: Component, options: dict[str, Value]) -> int | None:
    """What the options of a task say of the batch size, taken out of them: it is the engine's and not the task's."""
    return options.pop("batch_size") if "batch_size" in component.common(options) else None


def tidy(kind: Kind, choice: Choice) -> Choice:
    """The choice with its options in their declared order and of their declared types: one thing, one spelling."""
    component, resolved = check(kind, choice)
    said = (option.name for option in component.takes if option.name in choice.options and option.name in resolved)
    return Choice(choice.ref, {name: resolved[name] for name in said})


def _read_source(kind: Kind, path: Path) -> Iterable[Component]:
    """The marked functions and classes of one file, from its text."""
    source = path.read_text(encoding="utf-8")
    if f"@{kind}(" not in source:
        return
    module = ast.parse(source)
    for node in module.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == kind:
                doc = ast.get_docstring(node) or ""
                keywords = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                yield Component(
                    kind=kind,
                    name=ast.literal_eval(mark.args[0]),
                    module=f"nnarena.{ROOMS[kind]}.{path.stem}",
                    attribute=node.name,
                    doc=doc,
                    options=tuple(_source_options(node, module, doc)),
                    reference=keywords.get("reference", ""),
                    reads=keywords.get("reads", "sequences"),
                    sets=keywords.get("sets", "all"),
                )


def _source_options(node: ast.FunctionDef | ast.ClassDef, module: ast.Module, doc: str) -> Iterable[Option]:
    docs = option_docs(doc)
    if isinstance(node, ast.ClassDef):
        inherited, init = _source_init(node, module)
        if init is None:
            return
        node, docs = init, option_docs(inherited) | docs
    for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        yield Option(
            name=argument.arg,
            annotation=ast.unparse(argument.annotation) if argument.annotation else "",
            default=None if default is None else ast.literal_eval(default),
            required=default is None,
            doc=docs.get(argument.arg, ""),
        )


def _source_init(node: ast.ClassDef, module: ast.Module) -> tuple[str, ast.FunctionDef | None]:
    """The `__init__` that a class has or inherits inside this package, and the docstring that stands above it."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return ast.get_docstring(node) or "", item
    for base in node.bases:
        found = _source_class(base.id, module) if isinstance(base, ast.Name) else None
        doc, init = _source_init(*found) if found else ("", None)
        if init is not None:
            return doc, init
    return "", None


def _source_class(name: str, module: ast.Module) -> tuple[ast.ClassDef, ast.Module] | None:
    """A class that a module defines or imports from another one of this package, and where it is defined."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node, module
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            path = PACKAGE.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            if path.is_relative_to(PACKAGE) and path.is_file():
                return _source_class(name, ast.parse(path.read_text(encoding="utf-8")))
    return None


def signature_options(target: Callable[..., Any], skip: Iterable[str] = ()) -> tuple[Option, ...]:
    """The options of a function or class that is at hand: its named arguments that are not in `skip`."""
    docs = option_docs(inspect.getdoc(target) or "")
    options = []
    for argument in inspect.signature(target).parameters.values():
        if argument.name in skip or argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            continue
        required = argument.default is argument.empty
        default = None if required else argument.default
        options.append(
            Option(
                name=argument.name,
                annotation=_annotation(argument, default),
                default=default,
                required=required,
                doc=docs.get(argument.name, ""),
            )
        )
    return tuple(options)


def _annotation(argument: inspect.Parameter, default: Value) -> str:
    if isinstance(argument.annotation, str):
        return argument.annotation
    if argument.annotation is not argument.empty:
        return inspect.formatannotation(argument.annotation).replace("typing.", "")
    return type(default).__name__ if isinstance(default, (bool, int, float, str)) else ""


def option_docs(doc: str) -> dict[str, str]:
    """What a docstring's `Options:` paragraph says of each: lines of `name: meaning`, indented."""
    match = re.search(r"^Options:\n((?:[ \t]+.*\n?)+)", doc, re.MULTILINE)
    if not match:
        return {}
    joined = re.sub(r"\n[ \t]{8,}(?=\S)", " ", match.group(1))
    return dict(re.findall(r"^\s*(\w+):\s*(.*)$", joined, re.MULTILINE))


def _import_own(kind: Kind, ref: str) -> Callable[..., Any]:
    """The object behind `file.py:Name` or `package.module:Name`."""
    place, _, name = ref.rpartition(":")
    module = _import_file(kind, Path(place)) if place.endswith(".py") else _import_module(kind, place)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UnknownName(f"{kind} in {place}", name, names)
    target = getattr(module, name)
    if not callable(target):
        raise ArenaError(f"{ref} is not a class or a function, so it cannot be a {kind}.")
    return target


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles the source as it is now: a cached compilation may be of the second before."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(kind: Kind, path: Path) -> Any:
    if not path.is_file():
        raise ArenaError(f"There is no file {str(path)!r} to take a {kind} from.")
    # Named by place and content: an edited file is another module, as its fingerprint says.
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + path.read_bytes())
    name = f"nnarena_own_{digest.hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.util.spec_from_file_location(name, path, loader=_Source(name, str(path)))
    assert loader is not None and loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ArenaError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _import_module(kind: Kind, name: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder one stands in, as `python -m` would find it
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ArenaError(f"The module {name!r} cannot be imported for a {kind}: {error}") from error


def _adopt(kind: Kind, target: Callable[..., Any]) -> Component:
    """A person's own class or function as a component, by the rules of the room it enters."""
    known = getattr(target, "component_name", None)
    if known in catalogue(kind) and catalogue(kind)[known].load() is target:
        return catalogue(kind)[known]
    adopted = importlib.import_module(f"nnarena.{ROOMS[kind]}.adopt").adopt(target)
    return replace(adopted, fingerprint=_fingerprint(target))


def _fingerprint(target: Callable[..., Any]) -> str:
    """A hash of the file that defines `target`, or of its own source where there is no file."""
    try:
        source = Path(inspect.getfile(target)).read_bytes()
    except (TypeError, OSError):
        try:
            source = inspect.getsource(target).encode()
        except (TypeError, OSError):
            source = repr(target).encode()
    return hashlib.sha256(source).hexdigest()[:12]
