"""A preview holds up nobody for long, and isn't held up for long; its reads have limits."""

import time
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, text

from bulklane import Operation, PreviewUnable
from bulklane.operations.per_record import Answer, PerRecord, Record
from bulklane.starter import sampling
from tests.database.jobs import Background
from tests.support.ledgers import AddToEntries, make_entries
from tests.support.people import EditPeople, make_people
from tests.support.previews import nothing_left, previewed

LONGEST = 0.8
LOADED = 2.0
"""Seconds that a loaded machine may add."""


@pytest.mark.parametrize("operation", [AddToEntries(), EditPeople()], ids=["statement", "function"])
def test_a_row_that_a_user_holds_makes_it_give_up(engine: Engine, operation: Operation) -> None:
    make_entries(engine, 3)
    make_people(engine, 3)
    table = operation.records.table.name
    with engine.begin() as user:
        user.execute(text(f"SELECT FROM {table} LIMIT 1 FOR UPDATE"))
        began = time.monotonic()
        with pytest.raises(PreviewUnable, match="locked by another transaction"):
            previewed(engine, operation, {"all": True})
        assert time.monotonic() - began < LONGEST + LOADED
    assert previewed(engine, operation, {"all": True}).outcomes == {"changed": 3}


def waiting(seconds: float, began: Event) -> PerRecord:
    """An operation whose function takes so long for each record."""

    def change_record(self: PerRecord, record: Record, parameters: Any) -> Answer:
        began.set()
        time.sleep(seconds)
        return {"n": record["n"] + 1}

    made: PerRecord = type("Slow", (EditPeople,), {"change_record": change_record})()
    return made


def test_a_function_that_is_too_slow_holds_its_records_no_longer_than_a_chunk(engine: Engine) -> None:
    make_people(engine, 1)
    began = Event()
    asked = Background(lambda: previewed(engine, waiting(3.5, began), {"all": True}))
    assert began.wait(10)
    start = time.monotonic()
    with engine.begin() as user:
        user.execute(text("SELECT FROM person FOR UPDATE"))
        waited = time.monotonic() - start
        user.rollback()
    assert waited < LONGEST + LOADED
    assert asked.waits, "the user had the row while the function was still at it"
    with pytest.raises(PreviewUnable, match=r"takes longer than 0\.6 s"):
        asked.result()


def test_a_sample_that_takes_longer_than_a_chunk_may_is_tried_in_parts(engine: Engine) -> None:
    make_people(engine, 8)
    found = previewed(engine, waiting(0.12, Event()), {"all": True})
    assert found.outcomes == {"changed": 8}


SLOW_VIEW = """CREATE VIEW slow AS SELECT * FROM person WHERE pg_sleep(0.002) IS NOT NULL"""


def test_what_cannot_be_counted_in_time_is_more_than_was_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_people(engine, 3000)
    with engine.begin() as connection:
        # 6 s to read it all, a quarter of one to find as many as are small
        connection.execute(text("ALTER TABLE person RENAME TO persons"))
        connection.execute(text(SLOW_VIEW.replace("person", "persons").replace("slow", "person")))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE persons"))
    monkeypatch.setattr(sampling, "READ_SECONDS", 1.0)
    with nothing_left(engine):
        found = previewed(engine, EditPeople(), {"all": True}, small=20, sample=4)
    assert (found.count.records, found.count.exact, found.lane) == (20, False, "bulk")
    assert found.count.about is not None
    assert 1000 < found.count.about <= 3000
    assert found.count.likely == found.effects[0].in_all == found.count.about
    assert found.outcomes == {"changed": 4}
