"""The one relation between the times: it holds for the defaults, and every part of it is looked at."""

from dataclasses import fields, replace

import pytest

from bulklane.contracts.timing import Timing, TimingError, check_timing


def test_the_defaults_fit() -> None:
    assert Timing().violations() == []
    check_timing(Timing())


@pytest.mark.parametrize(
    ("changed", "low", "high"),
    [
        ({"chunk_target": 0.6}, "chunk_target (0.6 s)", "statement_timeout (0.6 s)"),
        ({"statement_timeout": 0.8}, "statement_timeout (0.8 s)", "transaction_timeout (0.8 s)"),
        ({"transaction_timeout": 1.0}, "transaction_timeout (1 s)", "deadlock_timeout (1 s)"),
        ({"heartbeat_timeout": 0.7}, "transaction_timeout (0.8 s)", "heartbeat_timeout (0.7 s)"),
        ({"heartbeat_throttle": 3.0}, "heartbeat_throttle (3 s)", "heartbeat_timeout (3 s)"),
        ({"suspect_after": 11.0}, "heartbeat_timeout + longest_backoff (11 s)", "suspect_after (11 s)"),
        ({"longest_backoff": 7.0}, "heartbeat_timeout + longest_backoff (16 s)", "suspect_after (15 s)"),
    ],
)
def test_each_pair_that_does_not_fit_is_named_with_both_values(changed: dict[str, float], low: str, high: str) -> None:
    with pytest.raises(TimingError) as refusal:
        check_timing(replace(Timing(), **changed))
    assert f"{low} must be shorter than {high}" in str(refusal.value)


@pytest.mark.parametrize("name", [field.name for field in fields(Timing)])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_no_time_may_be_zero_negative_or_no_number(name: str, value: float) -> None:
    assert any(name in violation for violation in replace(Timing(), **{name: value}).violations())


def test_all_violations_come_at_once() -> None:
    violations = Timing(chunk_target=1, statement_timeout=0.5, deadlock_timeout=0.1, segment=-1).violations()
    assert len(violations) == 3
