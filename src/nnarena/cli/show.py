"""`nnarena show NAME`: equation, options, parameters on each task, reference."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

import click

from nnarena.cli.completion import complete_names
from nnarena.core.components import ROOMS, Component, Kind, catalogue, find, take_batch_size
from nnarena.core.count import counted
from nnarena.core.errors import ArenaError, Unfit, UnknownName
from nnarena.core.options import Option, parse_choice, render
from nnarena.core.protocol import Protocol
from nnarena.core.study import Study, built_in_studies, find_study

GIVEN = re.compile(r", and the task gives [^:]+")  # the part of a reason that is another one for every task
WIDE = 118


@click.command()
@click.argument("name", shell_complete=complete_names)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show(name: str, as_json: bool) -> None:
    """What a model, task, optimizer or study is: equation, options, parameters on each task, reference.

    `nnarena show protocol` lists what --set can set.
    """
    contents = describe_any(name)
    if as_json:
        click.echo(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
    else:
        click.echo("\n\n\n".join(map(render_text, contents)))


def describe_any(name: str) -> list[dict[str, Any]]:
    """What has this name; an optimizer and a study of it may have the same."""
    if name == "protocol":
        return [describe_protocol()]
    is_study = name in built_in_studies() or name.endswith(".toml")
    studies = [describe_study(find_study(name))] if is_study else []
    if is_study and not any(name in catalogue(kind) for kind in ROOMS):
        return studies
    kind, component = find_any(name)
    return [describe(kind, component, dict(parse_choice(name)[0].options)), *studies]


def find_any(name: str) -> tuple[Kind, Component]:
    """A component of any kind; a person's own is taken for the first kind that it can be."""
    ref = parse_choice(name)[0].ref
    known = [other for kind in ROOMS for other in catalogue(kind)]
    reasons = []
    for kind in ("task", "optimizer", "initialiser", "model"):
        if kind == "initialiser" and ":" in ref:
            continue
        try:
            return kind, find(kind, ref)
        except UnknownName:
            continue
        except ArenaError as error:
            reasons.append(error)
    raise reasons[-1] if reasons else UnknownName("component", name, [*known, *built_in_studies()])


def describe(kind: Kind, component: Component, options: dict[str, Any]) -> dict[str, Any]:
    resolved = component.resolve(options)
    content: dict[str, Any] = {
        "name": component.name,
        "kind": kind,
        "doc": textwrap.dedent(component.doc.split("\nOptions:\n")[0]).strip(),
        "options": [describe_option(option) for option in component.takes],
        "reference": component.reference,
    }
    if kind == "model":
        content["parameters"] = parameters_per_task(component, resolved)
    if kind == "task":
        take_batch_size(component, resolved)
        spec = component.load()(**resolved).spec
        content["input"] = list(spec.input_shape)
        content["output"] = list(spec.output_shape)
        content["target"] = spec.target
    return content


def describe_option(option: Option) -> dict[str, Any]:
    default = None if option.required else render(option.default)
    choices = list(map(render, option.choices))
    return {"name": option.name, "takes": option.takes, "choices": choices, "default": default, "doc": option.doc}


def describe_protocol() -> dict[str, Any]:
    doc = (
        "How every trial of a study is trained: `nnarena run … --set name=value`. The defaults are the published ones."
    )
    return {
        "name": "protocol",
        "kind": "settings",
        "doc": doc,
        "options": [describe_option(option) for option in Protocol.options()],
    }


def parameters_per_task(component: Component, options: dict[str, Any]) -> dict[str, int | str]:
    """Trainable parameters with these options on every built-in task, or why it does not fit."""
    counts: dict[str, int | str] = {}
    for name, task in catalogue("task").items():
        try:
            model = component.load()(task.load()().spec, **component.own(options))
            counts[name] = sum(param.numel() for param in model.parameters() if param.requires_grad)
        except Unfit as error:
            counts[name] = str(error)
    return counts


def describe_study(study: Study) -> dict[str, Any]:
    return {
        "name": study.name,
        "kind": "study",
        "doc": study.title,
        "seeds": study.seeds,
        "grids": study.as_dict()["grid"],
        "protocol": study.protocol.as_dict(),
        "missing": list(study.missing),
    }


def protocol_text(seeds: int, protocol: Protocol) -> str:
    """What a study's protocol changes; the rest would be three dozen settings that go without saying."""
    changed = ", ".join(f"{name}={render(value)}" for name, value in protocol.settings().items())
    rest = "`nnarena show protocol` has all settings"
    count = counted(seeds, "seed")
    return f"Protocol, {count}: {changed}; all else as usual ({rest})." if changed else f"{count}, as usual ({rest})."


def render_text(content: dict[str, Any]) -> str:
    lines = [click.style(content["name"], bold=True) + f" ({content['kind']})", "", content["doc"]]
    if content.get("options"):
        width = max(len(option["name"]) for option in content["options"])
        lines += ["", click.style("Options", bold=True)]
        for option in content["options"]:
            lines += _hanging(f"  {option['name']:{width}}  ", _meaning(option))
    if "input" in content:
        lines += ["", f"Input {tuple(content['input'])}, output {tuple(content['output'])}, {content['target']}."]
    if "parameters" in content:
        lines += ["", click.style("Trainable parameters", bold=True), *render_parameters(content["parameters"])]
    for grid in content.get("grids", []):
        lines += ["", *(f"  {key}: {', '.join(names)}" for key, names in grid.items())]
    if content.get("missing"):
        lines += ["", f"Not in this version yet: {', '.join(content['missing'])}."]
    if "protocol" in content:
        lines += ["", protocol_text(content["seeds"], Protocol.of(content["protocol"]))]
    if content.get("reference"):
        lines += ["", f"Reference: {content['reference']}"]
    return "\n".join(lines)


def _meaning(option: dict[str, Any]) -> str:
    """What an option is, what it can be where that is one of a few, and what it is if nobody sets it."""
    default = "required" if option["default"] is None else f"default {option['default']}"
    said = option["doc"] or option["takes"]
    if set(option["choices"]) <= set(said.replace(",", " ").split()):  # it says so itself
        return f"{said} ({default})"
    return f"{said} ({', '.join(option['choices'])}; {default})"


def render_parameters(parameters: dict[str, int | str]) -> list[str]:
    """The number on every task that fits; then the others, those together that do not for the same reason."""
    width = max(map(len, parameters))
    lines = [f"  {task:{width}}  {count:,}" for task, count in parameters.items() if isinstance(count, int)]
    others: dict[str, list[str]] = {}
    for task, why in parameters.items():
        if isinstance(why, str):
            others.setdefault(GIVEN.sub("", why).rstrip("."), []).append(task)
    for why, tasks in others.items():
        lines += ["", *_hanging("  It does not fit ", f"{', '.join(tasks)}: {why}.")]
    return lines


def _hanging(start: str, text: str) -> list[str]:
    """Lines of at most `WIDE` columns, those after the first one under the text of the first."""
    more = " " * len(start)
    return textwrap.wrap(text, WIDE, initial_indent=start, subsequent_indent=more, break_long_words=False)
