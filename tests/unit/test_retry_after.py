"""Retry-After: seconds or a date, never more than an hour, and no nonsense that shortens a wait."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulklane.operations.retry_after import LONGEST, retry_after_seconds

NOW = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("0.5", 0.5),
        ("3601", LONGEST),
        ("9" * 400, LONGEST),
        ("Sun, 29 Mar 2026 12:00:30 GMT", 30.0),
        ("Sunday, 29-Mar-26 12:00:30 GMT", 30.0),
        ("Sun Mar 29 12:00:30 2026", 30.0),
        ("Sun, 29 Mar 2026 14:00:30 +0200", 30.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST),
    ],
)
def test_a_readable_wait_is_taken_up_to_an_hour(value: str, seconds: float) -> None:
    assert retry_after_seconds(value, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None, "", " ", ".", "0", "-5", "+5", "1e3", "inf", "nan", "soon", "1,5", "5s", "0x10", "١٢", "²",
        "Sun, 29 Mar 2026 11:59:59 GMT", "Sun, 29 Mar 2026 12:00:00 GMT", "Sun, 30 Feb 2026 12:00:00 GMT",
        "Mon, 01 Jan 0000 00:00:00 GMT", "Sun, 29 Mar 2026 12:00:30 +99999",
    ],
)  # fmt: skip
def test_what_is_missing_past_or_unreadable_is_none(value: str | None) -> None:
    assert retry_after_seconds(value, NOW) is None


@given(st.one_of(st.text(max_size=60), st.from_regex(r"[0-9]{0,30}\.?[0-9]{0,30}", fullmatch=True)))
def test_no_header_breaks_it(value: str) -> None:
    seconds = retry_after_seconds(value, NOW)
    assert seconds is None or 0 < seconds <= LONGEST


@given(st.integers(1, 10**30))
def test_whole_seconds_are_never_shortened_below_the_cap(seconds: int) -> None:
    assert retry_after_seconds(f"{seconds:025d}", NOW) == min(seconds, LONGEST)


@given(st.integers(1, 3600))
def test_a_date_is_measured_from_now(seconds: int) -> None:
    header = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after_seconds(header, NOW) == seconds


@pytest.mark.parametrize("off", [timedelta(days=-400), timedelta(hours=3), timedelta(days=9000)])
def test_a_date_is_measured_by_the_clock_that_made_it(off: timedelta) -> None:
    date, header = format_datetime(NOW, usegmt=True), format_datetime(NOW + timedelta(seconds=40), usegmt=True)
    assert retry_after_seconds(header, NOW + off, date) == 40
    assert retry_after_seconds("7", NOW + off, date) == 7


@pytest.mark.parametrize("date", ["", "today", "Sun, 30 Feb 2026 12:00:00 GMT", None])
def test_without_a_readable_date_it_is_measured_by_ours(date: str | None) -> None:
    assert retry_after_seconds("Sun, 29 Mar 2026 12:00:30 GMT", NOW, date) == 30


def test_a_wait_of_next_to_nothing_is_a_tenth_of_a_second() -> None:
    assert retry_after_seconds("0.0000001", NOW) == 0.1
