"""`name[option=value,…]`: what is read, what is refused, and that what is written can be read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnarena.core.errors import BadOption
from nnarena.core.options import (
    Choice,
    Option,
    brackets,
    parse_choice,
    parse_choices,
    parse_grid,
    parse_setting,
    parse_value,
    render,
    resolve,
    split_outside,
)

# ---------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("text", "ref", "options"),
    [
        ("add", "add", {}),
        ("  add  ", "add", {}),
        ("add[]", "add", {}),
        ("add[length=400]", "add", {"length": 400}),
        (" add [ length = 400 , samples = 7 ] ", "add", {"length": 400, "samples": 7}),
        ("adam[betas=(0.9,0.99)]", "adam", {"betas": (0.9, 0.99)}),
        ("x[a=(1)]", "x", {"a": (1,)}),
        ("x[a=()]", "x", {"a": ()}),
        ("x[a=((1,2),(3,4))]", "x", {"a": ((1, 2), (3, 4))}),
        ("x[a='b,c',d=\"]\"]", "x", {"a": "b,c", "d": "]"}),
        ("x[a=b=c]", "x", {"a": "b=c"}),
        ("x[a=True,b=false,c=None,d=null]", "x", {"a": True, "b": False, "c": None, "d": None}),
        ("x[a=1e-7,b=-3,c=0x10,d=1.]", "x", {"a": 1e-7, "b": -3, "c": 16, "d": 1.0}),
        ("x[a=series,b=some/where.npz]", "x", {"a": "series", "b": "some/where.npz"}),
        ("x[a='12']", "x", {"a": "12"}),
        ("a/b.py:Name[x=1]", "a/b.py:Name", {"x": 1}),
        ("../my file.py:Net", "../my file.py:Net", {}),
        ("package.module:Name[x=1]", "package.module:Name", {"x": 1}),
    ],
)
def test_one_choice_is_read(text, ref, options):
    (choice,) = parse_choice(text)
    assert (choice.ref, dict(choice.options)) == (ref, options)
    assert [type(value) for value in choice.options.values()] == [type(value) for value in options.values()]


def test_a_list_makes_a_grid_and_two_lists_their_product():
    found = parse_choice("lstm[hidden_size=[64,128],depth=[1,2,3],name=x]")
    assert [tuple(choice.options.values()) for choice in found] == [
        (size, depth, "x") for size in (64, 128) for depth in (1, 2, 3)
    ]


def test_a_grid_may_hold_tuples_and_quoted_commas():
    assert parse_grid("[(0.9,0.99),(0.8,0.9)]") == [(0.9, 0.99), (0.8, 0.9)]
    assert parse_grid("['a,b',c]") == ["a,b", "c"]


def test_commas_part_names_only_outside_brackets_and_quotes():
    texts = ["lstm,gru[a=1,b=[2,3]]", "x[c='d,e']"]
    assert [str(choice) for choice in parse_choices(texts)] == ["lstm", "gru[a=1,b=2]", "gru[a=1,b=3]", "x[c='d,e']"]


@pytest.mark.parametrize(
    ("ref", "name"), [("lstm", "lstm"), ("a/b.py:Net", "Net"), ("p.q:Net", "Net"), ("C:/a.py:Net", "Net")]
)
def test_the_label_is_the_name_without_the_file(ref, name):
    assert Choice(ref, {"depth": 2}).label == f"{name}[depth=2]"


# ------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("[a=1]", "'[a=1]'"),
        ("lstm[a=1]x", "lstm[a=1]x"),
        ("lstm[a=1][b=2]", "a=1][b=2"),
        ("lstm[a]", "'a'"),
        ("lstm[a=]", "'a='"),
        ("lstm[=1]", "'=1'"),
        ("lstm[2a=1]", "'2a=1'"),
        ("lstm[a=(1]", "a=(1"),
        ("lstm[a='x]", "a='x"),
        ("lstm[a=[1,2]", "a=[1,2"),
        ("lstm[a=1,a=2]", "'a' twice"),
        ("lstm[a=[]]", "[]"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_that_names_the_wrong_part(text, named):
    with pytest.raises(BadOption) as caught:
        parse_choice(text)
    assert named in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("text", ["a](b", "(a", "a)", "'a", 'a"', "[a"])
def test_an_open_bracket_or_quote_is_noticed(text):
    with pytest.raises(BadOption, match="not closed"):
        split_outside(text)


@given(st.text(alphabet="ab1=,[]()'\" .:/\\", max_size=25))
def test_any_text_is_read_or_refused_with_a_sentence(text):
    try:
        choices = parse_choices([text])
    except BadOption as error:
        assert str(error)
    else:
        assert all(choice.ref.strip() for choice in choices)


def test_a_setting_is_a_key_and_a_value():
    assert parse_setting("epochs=3") == ("epochs", 3)
    assert parse_setting(" lr = 1e-2 ") == ("lr", 0.01)
    for wrong in ("epochs", "=3"):
        with pytest.raises(BadOption, match="--set key=value"):
            parse_setting(wrong)


# ---------------------------------------------------------------------------------------------- round trips

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
tricky = st.sampled_from(["true", "None", "null", "12", "-3", "1e5", "1_000", "0x1F", "", " ", "'", '"', "'\"", "\\"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
    | tricky
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
names = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


def same(a, b) -> bool:
    """Equal, and of the same types all the way down (1 is not true, nor 1.0)."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@given(values)
def test_a_rendered_value_reads_as_itself(value):
    assert same(parse_value(render(value)), value)


@given(st.sampled_from(["lstm", "a/b.py:Net", "p.q:Net"]), st.dictionaries(names, values, max_size=4))
def test_the_text_of_a_choice_reads_as_the_same_choice(ref, options):
    choice = Choice(ref, options)
    (again,) = parse_choice(str(choice))
    assert again == choice
    assert all(same(again.options[name], value) for name, value in options.items())
    assert parse_choices([str(choice), "gru"])[0] == choice


@given(st.dictionaries(names, scalars, min_size=1, max_size=4))
def test_equal_choices_have_equal_hashes(options):
    one, other = Choice("x", options), Choice("x", dict(reversed(options.items())))
    assert one == other
    assert hash(one) == hash(other)


def test_a_pattern_of_names_needs_no_more_strokes_than_it_has():
    (choice,) = parse_choice(r"resnet18[freeze='layer1\.0|bn\d']")
    assert choice.options["freeze"] == r"layer1\.0|bn\d"
    assert parse_choice(str(choice)) == [choice]


def test_no_options_need_no_brackets():
    assert brackets({}) == ""
    assert brackets({"a": 1, "b": (True, None)}) == "[a=1,b=(true,none)]"


# --------------------------------------------------------------------------------------------------- types


@pytest.mark.parametrize(
    ("annotation", "value", "converted"),
    [
        ("int", 3, 3),
        ("int", 3.0, 3),
        ("int", 1e4, 10_000),
        ("float", 3, 3.0),
        ("float", 0.5, 0.5),
        ("bool", True, True),
        ("str", "a", "a"),
        ("int | None", None, None),
        ("int | None", 4, 4),
        ("int|None", None, None),
        ("bool | float", True, True),
        ("bool | float", 1, 1.0),
        ("Literal['a', 'b']", "b", "b"),
        ('Literal["a", "b,c"]', "b,c", "b,c"),
        ("Literal[1, 2] | None", 2, 2),
        ("Literal[1, 2] | None", None, None),
        ("tuple[float, float]", (0, 1), (0.0, 1.0)),
        ("tuple[int, ...]", (1, 2, 3), (1, 2, 3)),
        ("tuple[int, ...]", (), ()),
        ("tuple[int, str]", (1, "a"), (1, "a")),
        ("tuple[int | None, int]", (None, 2.0), (None, 2)),
        ("tuple[tuple[int, int], ...]", ((1, 2.0),), ((1, 2),)),
        ("", 5, 5),
        ("", "text", "text"),
        ("MyOwnType", "whatever", "whatever"),
    ],
)
def test_a_value_of_the_right_type_is_taken(annotation, value, converted):
    assert same(Option("depth", annotation).check(value, "net"), converted)


@pytest.mark.parametrize(
    ("annotation", "value", "takes"),
    [
        ("int", 2.5, "a whole number"),
        ("int", True, "a whole number"),
        ("int", "three", "a whole number"),
        ("int", None, "a whole number"),
        ("int", float("inf"), "a whole number"),
        ("float", "x", "a number"),
        ("float", False, "a number"),
        ("float", 10**400, "a number"),
        ("bool", 1, "true or false"),
        ("bool", "yes", "true or false"),
        ("str", 12, "a text"),
        ("int | None", "x", "a whole number or none"),
        ("Literal['a', 'b']", "c", "a or b"),
        ("tuple[float, float]", (1.0,), "tuple[float, float]"),
        ("tuple[float, float]", 1.0, "tuple[float, float]"),
        ("tuple[float, float]", (1.0, "x"), "tuple[float, float]"),
        ("tuple[int, ...]", (1, 2.5), "tuple[int, ...]"),
        ("tuple[int | None, int]", ("x", 1), "tuple[int | None, int]"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_what_is_taken(annotation, value, takes):
    with pytest.raises(BadOption) as caught:
        Option("depth", annotation).check(value, "net")
    assert str(caught.value) == f"net: option 'depth' takes {takes}, not {render(value)}."


DECLARED = (Option("hidden_size", "int", 64), Option("depth", "int", required=True))


def test_defaults_fill_what_is_not_given():
    assert resolve("net", DECLARED, {"depth": 2.0}) == {"hidden_size": 64, "depth": 2}


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(BadOption, match="net has no option 'hiden_size'; did you mean 'hidden_size'\\?"):
        resolve("net", DECLARED, {"hiden_size": 3, "depth": 1})


def test_a_required_option_is_asked_for():
    with pytest.raises(BadOption, match=r"net needs 'depth': write net\[depth=…\]\."):
        resolve("net", DECLARED, {})
