"""What slows a walk, without a database: limits with hysteresis, and throttles that can't be meant."""

import math
from typing import Any

import pytest

from bulklane.activities.health import Strain
from bulklane.contracts.message import InvalidThrottle, Throttle, read_throttle

NO_RATES: list[Any] = [0, -1, 0.001, 1e7, 10**400, True, "5", [], {}, b"1", math.nan, math.inf, -math.inf]
NO_PARALLELISM: list[Any] = [0, -1, 65, 2.0, True, "2", [1], 10**400, math.nan]


def test_a_measure_has_to_fall_well_below_its_limit_before_the_strain_is_over() -> None:
    lag = Strain("replication lag", 10.0, 60.0, " s")
    seen = [lag.level(value) for value in (9.0, 10.5, 9.0, 8.1, 7.9, 9.9, 61.0, 55.0, 47.0, 9.0, 7.0)]
    assert seen == [0, 1, 1, 1, 0, 0, 2, 2, 1, 1, 0]


def test_what_flutters_around_a_limit_changes_the_level_once() -> None:
    lag = Strain("replication lag", 10.0, 60.0, " s")
    assert {lag.level(10.0 + (-1) ** turn) for turn in range(1, 50)} == {0, 1}
    assert {lag.level(10.0 + (-1) ** turn) for turn in range(1, 50)} == {1}


def test_a_measure_that_is_not_known_limits_nothing() -> None:
    lag = Strain("replication lag", 10.0, 60.0, " s")
    assert [lag.level(value) for value in (None, 99.0, None)] == [0, 2, 0]


def test_the_reason_names_value_and_limit() -> None:
    lag = Strain("replication lag", 10.0, 60.0, " s")
    lag.level(12.34)
    assert lag.why(12.34) == "replication lag 12.3 s (limit 10 s)"
    lag.level(61.0)
    assert lag.why(61.0) == "replication lag 61 s (limit 60 s)"


@pytest.mark.parametrize(
    ("given", "throttle"),
    [
        ({"rows_per_second": 500}, Throttle(500.0)),
        ({"rows_per_second": 0.01, "parallelism": 64}, Throttle(0.01, 64)),
        ({"parallelism": 1}, Throttle(None, 1)),
        ({"lift": True}, Throttle()),
    ],
)
def test_a_throttle_is_read(given: dict[str, Any], throttle: Throttle) -> None:
    assert read_throttle(given.get("rows_per_second"), given.get("parallelism"), lift=given.get("lift")) == throttle


@pytest.mark.parametrize(
    ("rows_per_second", "parallelism", "lift", "field"),
    [
        (None, None, None, "throttle"),
        (None, None, False, "throttle"),
        (None, None, "yes", "lift"),
        (5, None, True, "lift"),
        *((bad, None, None, "rows_per_second") for bad in NO_RATES),
        *((5, bad, None, "parallelism") for bad in NO_PARALLELISM),
    ],
)
def test_a_throttle_that_cannot_be_meant_is_refused(
    rows_per_second: object, parallelism: object, lift: object, field: str
) -> None:
    with pytest.raises(InvalidThrottle) as refused:
        read_throttle(rows_per_second, parallelism, lift=lift)
    assert refused.value.field == field
    assert len(str(refused.value)) < 200
