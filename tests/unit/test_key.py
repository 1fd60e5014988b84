"""Keys as they come in: what is refused, what is one and the same, and that nothing is rounded, trimmed or folded."""

import time
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulklane.contracts.key import InvalidKey, KeyType, format_key, parse_key, parse_value, read_key, shown

BIGINT, TEXT, UUID_, TIME = KeyType.BIGINT, KeyType.TEXT, KeyType.UUID, KeyType.TIMESTAMPTZ
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes() | st.decimals(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "value",
    [
        9007199254740993.0, 1.0, float("nan"), float("inf"), True, False, None, Decimal(1), b"1", [], [1, 2], {"id": 1},
        "1.0", "1e3", "1E3", "0x10", "1_000", " 1", "1 ", "1\n", "+1", "007", "-", "", "١", "NaN", "true",
        2**63, -(2**63) - 1, 18446744073709551617, str(2**63), str(-(2**63) - 1), "9" * 20,
    ],
)  # fmt: skip
def test_what_is_no_64_bit_whole_number_is_refused(value: object) -> None:
    with pytest.raises(InvalidKey):
        parse_key(value, [BIGINT])


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (9007199254740993, 9007199254740993),
        ("9007199254740993", 9007199254740993),
        (2**63 - 1, 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        (0, 0),
        ("-1", -1),
        ([5], 5),
    ],
)
def test_whole_numbers_are_exact_in_64_bits(value: object, number: int) -> None:
    assert parse_key(value, [BIGINT]) == (number,)


HUGE = {"integer": 10**5000, "negative": -(10**5000), "digits": "9" * 10_000_000, "inside": [[10**5000]]}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("key_type", KeyType)
def test_thousands_of_digits_are_refused_at_once_with_a_short_message(name: str, key_type: KeyType) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidKey) as refusal:
        parse_key(HUGE[name], [key_type])
    assert time.monotonic() - began < 1
    assert len(str(refusal.value)) < 200


def test_a_deep_value_is_refused_and_not_written_out() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    for value in (deep, [deep], {"a": deep}):
        with pytest.raises(InvalidKey):
            parse_key(value, [BIGINT, TEXT])
    while deep:  # taken apart by hand: its own end would need as deep a stack
        deep = deep[0]


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", "a\udfff", "é" * 501, 1, None, b"a", ["a", "b"]])
def test_text_that_postgres_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(InvalidKey):
        parse_key(value, [TEXT])


def test_texts_are_compared_byte_for_byte() -> None:
    spellings = ["\u00e9", "e\u0301", "ab", "AB", "ab ", " ab", "a\nb", "\ufeffab", "1", "01"]
    assert len({parse_key(one, [TEXT]) for one in spellings}) == len(spellings)


CANONICAL = "0a1b2c3d-1111-4222-8333-0123456789ab"


@pytest.mark.parametrize(
    "spelling",
    [
        CANONICAL,
        CANONICAL.upper(),
        CANONICAL.replace("-", ""),
        f"{{{CANONICAL}}}",
        f"urn:uuid:{CANONICAL}",
        f"URN:UUID:{CANONICAL.upper()}",
        UUID(CANONICAL),
    ],
)
def test_spellings_of_a_uuid_are_one(spelling: object) -> None:
    assert format_key(parse_key(spelling, [UUID_])) == CANONICAL


@pytest.mark.parametrize(
    "value",
    [
        "0x1b2c3d111142228333" + "0" * 14,
        " a1b2c3d111142228333" + "0" * 12,
        "+a1b2c3d111142228333" + "0" * 12,
        "0_1b2c3d111142228333" + "0" * 12,
        "\u0661a1b2c3d11114222833" + "0" * 12,
        "0-a1b2c3d111142228333-0123456789abc",
        CANONICAL + "\n",
        "{" + CANONICAL,
        CANONICAL + "}",
        "{{" + CANONICAL + "}}",
        "uuid:" + CANONICAL,
        "urn:uu\u0131d:" + CANONICAL,
        CANONICAL[:-1],
        CANONICAL + "0",
        5,
        None,
        "",
    ],
)
def test_what_only_looks_like_a_uuid_is_refused(value: object) -> None:
    with pytest.raises(InvalidKey, match="is no UUID"):
        parse_key(value, [UUID_])


@pytest.mark.parametrize(
    "value",
    [
        "2026-03-29", "2026-03-29T12:30:00", "2026-02-30T12:00:00Z", "2026-06-30T23:59:60Z", "2026-03-29T24:00:00Z",
        "infinity", "now", 1743206400, 1743206400000, "1743206400", "2026-03-29T12:30Z", "2026-W13-7T12:30:00Z",
        "20260329T123000Z", "2026-03-29T12:30:00.0000001Z", "2026-03-29T12:30:00+05:60", "2026-03-29T12:30:00+24:00",
        "2026-03-29T12:30:00+02", "2026-03-29T12:30:00 +02:00", "2026-03-29T12:30:00Z\n", "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "\u0662026-03-29T12:30:00Z", True, None,
        datetime(2026, 3, 29, 12, 30),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_what_is_no_instant_is_refused(value: object) -> None:
    with pytest.raises(InvalidKey):
        parse_key(value, [TIME])


@pytest.mark.parametrize(
    "value",
    [
        "2026-03-29T12:30:00.5Z",
        "2026-03-29t12:30:00.500z",
        "2026-03-29 14:30:00.500000+02:00",
        "2026-03-29T07:00:00.5-0530",
        datetime(2026, 3, 29, 12, 30, 0, 500_000, tzinfo=timezone(timedelta(0))),
    ],
)
def test_spellings_of_an_instant_are_one(value: object) -> None:
    assert format_key(parse_key(value, [TIME])) == "2026-03-29T12:30:00.500000Z"


@pytest.mark.parametrize("value", ["a", ["a"], ["a", 1, 2], ("a",), {"0": "a", "1": 1}, None, "a,1"])
def test_a_composite_key_needs_each_of_its_columns(value: object) -> None:
    with pytest.raises(InvalidKey, match=r"2 column\(s\) \(text, bigint\) is needed"):
        parse_key(value, [TEXT, BIGINT])


def test_one_bad_column_refuses_the_key() -> None:
    with pytest.raises(InvalidKey, match="floats and booleans are never rounded"):
        parse_key(["a", 1.0], [TEXT, BIGINT])


@given(ANYTHING, st.sampled_from(KeyType))
def test_any_value_is_either_a_key_that_reads_back_or_refused(value: object, key_type: KeyType) -> None:
    try:
        key = parse_key(value, [key_type])
    except InvalidKey as refusal:
        assert len(str(refusal)) < 250
    else:
        assert read_key(format_key(key), [key_type]) == key
        assert parse_value(key[0], key_type) == key[0]


@given(ANYTHING)
def test_whatever_is_shown_is_short(value: object) -> None:
    assert len(shown(value)) <= 80


def test_early_years_keep_their_zeros() -> None:
    assert format_key((datetime(1, 2, 3, tzinfo=UTC),)) == "0001-02-03T00:00:00.000000Z"
