"""YAML: no surprises in scalars, no doubled keys, no bombs; text and back."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from has.errors import InputError
from has.files.yaml import dump_yaml, parse_yaml

fixed = settings(deadline=None, derandomize=True, max_examples=300)
keys = st.text(max_size=8) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["on", "yes", "1e3", "010", "2026-01-01", "1:30", ".nan", "~", "<<", "=", "0x1F", "0o7", "1_000", "-"]
    )
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


def same(a, b) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@fixed
@given(documents)
def test_what_is_dumped_loads_as_it_was_kinds_included(document):
    assert same(parse_yaml(dump_yaml(document)), document)


@fixed
@given(documents)
def test_other_readers_see_the_same_data(document):
    """PyYAML's own loader (YAML 1.1) must not read a number, date or truth value where we wrote text."""
    assert same(yaml.safe_load(dump_yaml(document)), document)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5e-3", -0.0025),
        ("~", None),
        ("", None),
        ("true", True),
        ("1_000", "1_000"),
        ("-", [None]),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    assert same(parse_yaml(text), value)


def test_nan_is_read_as_such_for_validation_to_refuse():
    assert math.isnan(parse_yaml("a: .nan")["a"])


def test_a_key_twice_names_the_path_and_both_lines():
    with pytest.raises(InputError) as error:
        parse_yaml("a:\n  b: 1\n  c: 2\n  b: 3\n", "f.yaml")
    assert error.value.field == "a.b"
    assert "line 4" in error.value.message
    assert "first in line 2" in error.value.message


def test_a_key_twice_on_one_line_and_inside_a_list():
    with pytest.raises(InputError, match="twice") as error:
        parse_yaml("rows: [{a: 1}, {a: 1, a: 2}]", "f.yaml")
    assert error.value.field == "rows.1.a"


def test_anchors_and_merge_keys_work():
    assert parse_yaml("a: &x {p: 1, q: 2}\nb: *x\nc: {<<: *x, q: 3}") == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 1, "q": 2},
        "c": {"p": 1, "q": 3},
    }


def test_an_alias_bomb_is_refused_before_it_unfolds():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 40)]
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("\n".join(lines))


def test_an_anchor_inside_itself_is_refused():
    with pytest.raises(InputError, match="refers to itself"):
        parse_yaml("a: &a [1, *a]")


@pytest.mark.parametrize(
    "text", ["[" * 1000, "{a: " * 5000, "- " * 5000, "a: &a\n b: *c", "a: *nowhere", "%TAG x"]
)
def test_deep_or_broken_documents_are_input_errors(text):
    with pytest.raises(InputError):
        parse_yaml(text)


def test_a_parse_error_names_line_and_column_and_guesses_at_the_cause():
    with pytest.raises(InputError, match="line 2, column 4") as error:
        parse_yaml("a: 1\nb: }\nc: 2\nd: 3\n", "f.yaml")
    assert "brackets" in error.value.mend
    with pytest.raises(InputError) as error:
        parse_yaml("a: 1\nb: {c: 1", "f.yaml")
    assert "cut off" in error.value.mend


def test_tags_that_build_objects_are_refused():
    with pytest.raises(InputError, match="not allowed"):
        parse_yaml("a: !!python/object/apply:os.system [true]")
