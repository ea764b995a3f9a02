"""`name[option=value,…]`: how a person names a component and sets its options; a list makes a grid.

add                                  the component as it is
add[length=400]                      one option set
lstm[hidden_size=[64,128]]           a grid of two
my_file.py:MyCell[depth=2]           a person's own
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nnarena.core.errors import BadOption, suggestion

Value = Any  # None, bool, int, float, str, or a tuple of these


@dataclass(frozen=True)
class Option:
    """An option that a component declares: its name, its type as written, its default and what it means.

    One that is `rare` does not count as long as nobody sets it: trials from before it was there stay what they are.
    """

    name: str
    annotation: str
    default: Value = None
    required: bool = False
    doc: str = ""
    rare: bool = False

    def check(self, value: Value, owner: str) -> Value:
        """`value` as this option's type; BadOption says what it takes instead."""
        fits, converted = _convert_any(self.annotation, value)
        if fits:
            return converted
        raise BadOption(f"{owner}: option {self.name!r} takes {self.takes}, not {render(value)}.")

    @property
    def takes(self) -> str:
        return " or ".join(_phrase(kind) for kind in _alternatives(self.annotation))

    @property
    def choices(self) -> tuple[Value, ...]:
        """What it can be, where only a few values are allowed; nothing else."""
        kinds = [kind for kind in _alternatives(self.annotation) if kind != "None"]
        return tuple(ast.literal_eval(kind[1:]) for kind in kinds) if all(kind[0] == "=" for kind in kinds) else ()


@dataclass(frozen=True)
class Choice:
    """A component as a person named it, with the options that were set: `lstm[hidden_size=128]`."""

    ref: str
    options: Mapping[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`lstm`, or `MyCell` for `my_file.py:MyCell`."""
        return self.ref.rsplit(":", 1)[-1]

    @property
    def label(self) -> str:
        """How tables and folders call it."""
        return self.name + brackets(self.options)

    def __str__(self) -> str:
        return self.ref + brackets(self.options)

    def __hash__(self) -> int:
        return hash((self.ref, frozenset(self.options.items())))


def brackets(options: Mapping[str, Value]) -> str:
    if not options:
        return ""
    return "[" + ",".join(f"{name}={render(value)}" for name, value in options.items()) + "]"


def render(value: Value) -> str:
    """A value as a person would type it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "(" + ",".join(map(render, value)) + ")"
    if isinstance(value, str) and not (re.fullmatch(r"[\w./-]+", value) and parse_value(value) == value):
        return repr(value)
    return str(value)


def parse_choices(texts: Iterable[str]) -> list[Choice]:
    """All components named in `texts` (each may hold several, separated by commas), grids expanded."""
    parts = (part for text in texts for part in split_outside(text))
    return [choice for part in parts for choice in parse_choice(part)]


def parse_choice(text: str) -> list[Choice]:
    """The choices that one `name[…]` stands for: one, or the whole grid."""
    match = re.fullmatch(r"\s*([^\[\]]+?)\s*(?:\[(.*)\])?\s*", text, re.DOTALL)
    if not match:
        raise BadOption(f"Cannot read {text!r}: write name or name[option=value,option=[one,another]].")
    ref, inside = match.groups()
    axes: dict[str, list[Value]] = {}
    for item in split_outside(inside or ""):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier() or not value.strip():
            raise BadOption(f"Cannot read {item.strip()!r} in {text!r}: write option=value.")
        if name in axes:
            raise BadOption(f"{text!r} sets {name!r} twice.")
        axes[name] = parse_grid(value)
    return [Choice(ref, dict(zip(axes, values, strict=True))) for values in itertools.product(*axes.values())]


def parse_grid(text: str) -> list[Value]:
    """`[a,b]` is a list of values to try; anything else is one value."""
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]"):
            raise BadOption(f"Cannot read {text!r}: the bracket is not closed.")
        values = [parse_value(part) for part in split_outside(text[1:-1])]
        if not values:
            raise BadOption("An empty list [] gives no value to try.")
        return values
    return [parse_value(text)]


def parse_value(text: str) -> Value:
    """A number, true, false, none, a (tuple), a 'quoted text' or a bare word."""
    text = text.strip()
    word = text.lower()
    if word in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(word)
    if text.startswith("(") and text.endswith(")"):
        return tuple(parse_value(part) for part in split_outside(text[1:-1]))
    try:
        with warnings.catch_warnings(action="ignore"):  # Python would rather see two strokes in a\.b
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (int, float, str)) else text


def parse_setting(text: str) -> tuple[str, Value]:
    """`key=value`, as `--set` takes it."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadOption(f"Cannot read {text!r}: write --set key=value.")
    return name.strip(), parse_value(value)


def split_outside(text: str, separator: str = ",") -> list[str]:
    """Split at separators that stand outside brackets and quotes."""
    parts, depth, quote, start, escaped = [], 0, "", 0, False
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "'\"":
            quote = letter
        elif letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == separator and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        if depth < 0:
            break
    if depth or quote:
        raise BadOption(f"Cannot read {text!r}: a bracket or a quote is not closed.")
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def resolve(owner: str, declared: Iterable[Option], given: Mapping[str, Value]) -> dict[str, Value]:
    """Every declared option with its value: the given one, checked, or the default."""
    known = {option.name: option for option in declared}
    for name in given:
        if name not in known:
            raise BadOption(f"{owner} has no option {name!r}{suggestion(name, known)}")
    missing = [option.name for option in known.values() if option.required and option.name not in given]
    if missing:
        raise BadOption(f"{owner} needs {missing[0]!r}: write {owner}[{missing[0]}=…].")
    values = {
        name: option.check(given[name], owner) if name in given else option.default for name, option in known.items()
    }
    return {name: value for name, value in values.items() if not known[name].rare or value != known[name].default}


def _alternatives(annotation: str) -> list[str]:
    """`int | None` and `Literal["a", "b"]` as a list of single types."""
    kinds: list[str] = []
    for part in split_outside(annotation, "|"):
        if part.startswith("Literal["):
            kinds += [f"={item}" for item in split_outside(part[len("Literal[") : -1])]
        else:
            kinds.append(part)
    return kinds


def _convert_any(annotation: str, value: Value) -> tuple[bool, Value]:
    """Whether `value` fits one of the annotation's types, and what it is then; without a type anything fits."""
    for kind in _alternatives(annotation):
        fits, converted = _convert(kind, value)
        if fits:
            return True, converted
    return not annotation, value


def _convert(kind: str, value: Value) -> tuple[bool, Value]:
    """Whether `value` can be a `kind`, and what it is then."""
    if kind.startswith("="):
        wanted = ast.literal_eval(kind[1:])
        return str(value) == str(wanted), wanted
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case "None":
            return value is None, None
        case "bool":
            return isinstance(value, bool), value
        case "int":
            whole = number and (isinstance(value, int) or value.is_integer())
            return whole, int(value) if whole else None
        case "float":
            number = number and not (isinstance(value, int) and abs(value) >= 2**1024)
            return number, float(value) if number else None
        case "str":
            return isinstance(value, str), value
    if kind.startswith("tuple["):
        kinds = [part for part in split_outside(kind[len("tuple[") : -1]) if part != "..."]
        if not isinstance(value, (tuple, list)):
            return False, None
        if kind.endswith("...]"):
            kinds *= len(value)
        if len(kinds) != len(value):
            return False, None
        converted = [_convert_any(part, item) for part, item in zip(kinds, value, strict=True)]
        return all(fits for fits, _ in converted), tuple(item for _, item in converted)
    return True, value  # a type of a person's own: theirs to judge


def _phrase(kind: str) -> str:
    if kind.startswith("="):
        return str(ast.literal_eval(kind[1:]))
    names = {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "str": "a text",
        "None": "none",
    }
    return names.get(kind, kind)
