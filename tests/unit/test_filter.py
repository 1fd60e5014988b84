"""Filters as they come in: what is read, what is refused and where, and that no value can make a statement fail."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Enum,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    create_engine,
)

from bulklane.operations.filter import DEEPEST, LONGEST_LIST, MOST_COMPARISONS, InvalidFilter, read_filter

TABLE = Table(
    "thing",
    MetaData(),
    Column("id", BigInteger),
    Column("small", SmallInteger),
    Column("count", Integer),
    Column("name", Text),
    Column("short", String(3)),
    Column("colour", Enum("red", "green", name="colour")),
    Column("uid", Uuid),
    Column("at", DateTime(timezone=True)),
)
FIELDS: dict[str, Column[Any]] = {column.name: column for column in TABLE.c}
DIALECT = create_engine("postgresql+psycopg://").dialect
A = {"field": "count", "op": "=", "value": 1}


def compiled(spec: object) -> str:
    """The condition as SQL."""
    return str(read_filter(spec, FIELDS).compile(dialect=DIALECT))


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "filter"),
        (None, "filter"),
        ([], "filter"),
        ("count = 1", "filter"),
        ({"and": []}, "filter.and"),
        ({"and": A}, "filter.and"),
        ({"and": [A], "or": [A]}, "filter"),
        ({"and": [A, {}]}, "filter.and[1]"),
        ({"or": [A, {"not": {}}]}, "filter.or[1].not"),
        ({"not": [A]}, "filter.not"),
        ({**A, "and": [A]}, "filter"),
        ({"op": "=", "value": 1}, "filter"),
        ({"field": "secret", "value": 1}, "filter.field"),
        ({"field": ["count"], "value": 1}, "filter.field"),
        ({"field": "count", "op": "like", "value": "x"}, "filter.op"),
        ({"field": "count", "op": ["="], "value": 1}, "filter.op"),
        ({"field": "count", "op": "=", "value": True}, "filter.value"),
        ({"field": "count", "op": "=", "value": 1.0}, "filter.value"),
        ({"field": "count", "op": "=", "value": None}, "filter.value"),
        ({"field": "count", "op": "=", "value": 2**63}, "filter.value"),
        ({"field": "count", "op": "=", "value": 10**5000}, "filter.value"),
        ({"field": "name", "op": "=", "value": "a\x00b"}, "filter.value"),
        ({"field": "name", "op": "=", "value": "\ud800"}, "filter.value"),
        ({"field": "name", "op": "=", "value": 5}, "filter.value"),
        ({"field": "at", "op": "<", "value": "2026-03-29"}, "filter.value"),
        ({"field": "count", "op": "in", "value": []}, "filter.value"),
        ({"field": "count", "op": "in", "value": "12"}, "filter.value"),
        ({"field": "count", "op": "in", "value": [1, "x"]}, "filter.value[1]"),
        ({"field": "count", "op": "in", "value": [1] * (LONGEST_LIST + 1)}, "filter.value"),
        ({"field": "count", "op": "is_null", "value": 1}, "filter.value"),
        ({"field": "count", "op": "is_null"}, "filter.value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_with_its_place(spec: object, path: str) -> None:
    with pytest.raises(InvalidFilter) as refusal:
        read_filter(spec, FIELDS)
    assert refusal.value.path == path
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize("depth", [DEEPEST + 1, 1000, 100_000])
def test_a_deep_filter_is_refused(depth: int) -> None:
    spec: dict[str, Any] = A
    for _ in range(depth):
        spec = {"not": spec}
    with pytest.raises(InvalidFilter, match="nested at most 20 deep"):
        read_filter(spec, FIELDS)
    while "not" in spec:  # taken apart by hand: its own end would need as deep a stack
        spec = spec["not"]


def test_a_filter_may_be_as_deep_as_is_said() -> None:
    spec: dict[str, Any] = A
    for _ in range(DEEPEST):
        spec = {"and": [spec]}
    assert compiled(spec).startswith("thing.count =")


def test_a_filter_of_very_many_comparisons_is_refused() -> None:
    most = {"or": [A] * MOST_COMPARISONS}
    read_filter(most, FIELDS)
    with pytest.raises(InvalidFilter, match="at most 1000 comparisons"):
        read_filter({"and": [most, A]}, FIELDS)


@pytest.mark.parametrize("field", ["count", "small", "id"])
def test_a_number_has_its_own_width_not_the_columns(field: str) -> None:
    """`2**40` on an int4 column matches nothing; cast to the column's type it would fail the statement."""
    for spec in ({"field": field, "value": 2**40}, {"field": field, "op": "in", "value": [2**40]}):
        assert "BIGINT" in compiled(spec)
        assert "INTEGER" not in compiled(spec)


@pytest.mark.parametrize("op", ["=", "!=", "<", "<=", ">", ">=", "in"])
@pytest.mark.parametrize("field", ["name", "short", "colour"])
def test_text_is_compared_byte_for_byte(field: str, op: str) -> None:
    value: object = ["x"] if op == "in" else "x"
    assert 'COLLATE "C"' in compiled({"field": field, "op": op, "value": value})


def test_equal_text_can_use_the_columns_own_index() -> None:
    assert "thing.name = " in compiled({"field": "name", "value": "x"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["and", "or", "not", "field", "op", "value"]),
            st.one_of(inner, st.sampled_from([*FIELDS, "=", "<", "in", "is_null"])),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_or_refused(spec: object) -> None:
    try:
        compiled(spec)
    except InvalidFilter as refusal:
        assert refusal.path.startswith("filter")
