"""What a function answers that can't be meant for its column: the job fails and says so, nothing is written.

New values go as whole arrays, which a cast would bend in silence: a list spread over other records, a time moved.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Column, DateTime, Engine, MetaData, Table

from bulklane.activities.failures import reason_of
from bulklane.database import range as ranges
from bulklane.database.fitting import UnfitValue, unfit
from bulklane.operations.operation import OperationError
from tests.database.jobs import accepted, opened, rows
from tests.database.test_per_record import setting
from tests.support.people import make_people, people
from tests.support.previews import previewed
from tests.support.walking import PATIENT, walk_whole

PERSON = people.c
UNFIT: dict[str, tuple[Column[Any], Any, str]] = {
    "a list of numbers": (PERSON.n, [1, 2], "n to a list"),
    "a list of texts": (PERSON.name, ["a", "b"], "name to a list"),
    "bytes": (PERSON.name, b"ab", "name to bytes"),
    "a fraction": (PERSON.n, 1.5, "n to a number with a fraction"),
    "a time without offset": (
        PERSON.seen_at,
        datetime(2026, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None),
        "seen_at to a time without offset",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_value_that_does_not_fit_its_column_is_the_operations_bug(engine: Engine, kind: str) -> None:
    column, value, rule = UNFIT[kind]
    make_people(engine, 3)
    before = rows(engine, "SELECT * FROM person ORDER BY id")
    registry = setting({column.key: value}, column)
    job = opened(engine, accepted(engine, registry=registry))
    with pytest.raises(UnfitValue) as raised:
        walk_whole(engine, registry, job, timing=PATIENT)
    code, reason = reason_of(raised.value)
    assert (code, rule in reason, "(record 1)" in reason) == ("UnfitValue", True, True)
    assert rows(engine, "SELECT * FROM person ORDER BY id") == before


def test_a_whole_number_may_come_as_a_float(engine: Engine) -> None:
    make_people(engine, 1)
    registry = setting({"n": 7.0})
    walk_whole(engine, registry, opened(engine, accepted(engine, registry=registry)), timing=PATIENT)
    assert rows(engine, "SELECT n FROM person") == [(7,)]


def test_an_offset_is_refused_where_the_column_has_no_time_zone() -> None:
    local = Table("thing", MetaData(), Column("at", DateTime())).c.at
    assert unfit(local, datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)) == ""
    assert "no time zone" in unfit(local, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.case("C35")
@pytest.mark.parametrize("text", ["\ud800", "\x00"])
def test_a_text_that_cannot_be_stored_fails_its_record_alone(engine: Engine, text: str) -> None:
    make_people(engine, 40)
    registry = setting(lambda record: {"name": text if record["id"] == 17 else "ok"})
    job = opened(engine, accepted(engine, registry=registry))
    walk_whole(engine, registry, job, timing=PATIENT)
    with engine.connect() as connection:
        assert ranges.counters(connection, job.job_no, 1) == ranges.Counters(changed=39, failed=1)
    assert rows(engine, "SELECT key, kind FROM bulklane.outcome") == [("17", "failed")]


def test_a_preview_says_it_too(engine: Engine) -> None:
    make_people(engine, 3)
    operation = setting({"n": [1, 2]}).operations["edit_people"]
    with pytest.raises(OperationError, match="set n to a list"):
        previewed(engine, operation, {"all": True})
