"""The freeze of a search in the database: the pages of one attempt become blocks; a lost attempt mixes nothing in."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Column, Engine, MetaData, Table, Text, text
from temporalio.exceptions import ApplicationError

from bulklane.contracts.job import JobState
from bulklane.contracts.key import Key, KeyType, format_key
from bulklane.contracts.message import Verb
from bulklane.database.balance import selected_keys
from bulklane.database.search_freeze import (
    WalkSuperseded,
    begin_walk,
    count_owed_to,
    forget_pages,
    freeze_pages,
    store_page,
)
from bulklane.database.selection import (
    SelectionState,
    StoredSelection,
    insert_selection,
    lock_selection,
    read_selection,
)
from bulklane.operations.channel import Channel
from bulklane.operations.operation import IndexEffect, Registry
from bulklane.operations.senders.search_index import SearchIndex
from tests.database.jobs import (
    accepted,
    common_columns,
    counts,
    freeze,
    look,
    opened,
    rows,
    say,
    simple_operation,
    stands,
    walk,
)

QUERY = {"term": {"tag": "red"}}


def searching(engine: Engine) -> Registry:
    """An operation on `thing`, whose documents go to an index that nobody serves here."""
    table = Table("thing", MetaData(), Column("name", Text, primary_key=True), *common_columns(), Column("tag", Text))
    effect = IndexEffect("document", "things", {"tag": table.c.tag})
    operation = simple_operation(engine, table, ["name"], effects=(effect,))
    return Registry({operation.name: operation}, {"things": Channel("things", SearchIndex("things"))})


def stored_search(engine: Engine, *types: KeyType) -> StoredSelection:
    """A search selection on keys of these types."""
    with engine.begin() as connection:
        number = insert_selection(connection, kind="search", spec=QUERY, key_types=types)
        return read_selection(connection, number)


def begin(engine: Engine, stored: StoredSelection, epoch: int) -> None:
    """The first step of an attempt."""
    with engine.begin() as connection:
        begin_walk(connection, stored.selection_no, epoch, "things", "acme")


def page(engine: Engine, stored: StoredSelection, epoch: int, number: int, keys: list[Key]) -> None:
    """A page of an attempt."""
    with engine.begin() as connection:
        store_page(connection, stored, epoch, number, keys)


def frozen(engine: Engine, stored: StoredSelection, epoch: int) -> list[str]:
    """The keys in key order, after the last step."""
    with engine.begin() as connection:
        total = freeze_pages(connection, lock_selection(connection, stored.selection_no), epoch)
        keys = selected_keys(connection, stored.selection_no, stored.key_types)
    assert total == len(keys)
    return keys


def moments(count: int) -> list[datetime]:
    """Times a microsecond apart."""
    return [datetime(2026, 3, 29, 12, tzinfo=UTC) + timedelta(microseconds=n) for n in range(count)]


KEYS: dict[str, tuple[tuple[KeyType, ...], list[Key]]] = {
    "bigint": ((KeyType.BIGINT,), [(n,) for n in (-(2**63), -10, -9, 0, 9, 10, 2**53, 2**53 + 1, 2**63 - 1)]),
    "text": ((KeyType.TEXT,), [(name,) for name in ("", "A", "Z", "a", "a ", "ab", "e\u0301", "é", "ﬁ", "\U0001f600")]),
    "uuid": ((KeyType.UUID,), [(UUID(int=n * 2**120),) for n in range(9)]),
    "timestamptz": ((KeyType.TIMESTAMPTZ,), [(at,) for at in moments(9)]),
    "composite": ((KeyType.TEXT, KeyType.TIMESTAMPTZ), [(name, at) for name in ("A", "a") for at in moments(4)]),
}


@pytest.mark.parametrize("name", KEYS)
def test_pages_in_the_index_s_order_are_frozen_in_key_order_each_key_once(engine: Engine, name: str) -> None:
    types, keys = KEYS[name]
    stored = stored_search(engine, *types)
    begin(engine, stored, 7)
    shuffled = random.Random(name).sample(keys, len(keys))
    page(engine, stored, 7, 0, shuffled[:4])
    page(engine, stored, 7, 1, shuffled[3:])
    assert frozen(engine, stored, 7) == [format_key(key) for key in keys]
    with engine.connect() as connection:
        after = read_selection(connection, stored.selection_no)
    assert (after.state, after.total, after.duplicates) == (SelectionState.FROZEN, len(keys), 1)
    assert counts(engine)["search_page"] == 0


def test_many_pages_make_full_blocks(engine: Engine) -> None:
    stored = stored_search(engine, KeyType.BIGINT)
    begin(engine, stored, 1)
    numbers = random.Random(1).sample(range(12_001), 12_001)
    for number in range(0, 12_001, 1000):
        page(engine, stored, 1, number, [(n,) for n in numbers[number : number + 1000]])
    assert frozen(engine, stored, 1) == [str(n) for n in range(12_001)]
    assert [row[0] for row in rows(engine, "SELECT size FROM bulklane.block ORDER BY no")] == [5000, 5000, 2001]


def test_no_page_is_an_empty_selection(engine: Engine) -> None:
    stored = stored_search(engine, KeyType.BIGINT)
    begin(engine, stored, 1)
    assert frozen(engine, stored, 1) == []


def test_a_later_attempt_fences_the_one_before_and_takes_nothing_of_it(engine: Engine) -> None:
    stored = stored_search(engine, KeyType.BIGINT)
    begin(engine, stored, 1)
    page(engine, stored, 1, 0, [(1,), (2,)])
    begin(engine, stored, 2)
    page(engine, stored, 2, 0, [(3,)])
    stales: list[Callable[[], object]] = [
        lambda: page(engine, stored, 1, 1, [(4,)]),
        lambda: frozen(engine, stored, 1),
        lambda: begin(engine, stored, 1),
    ]
    for stale in stales:
        with pytest.raises(WalkSuperseded) as told:
            stale()
        assert told.value.epoch == 2
    with engine.begin() as connection:
        forget_pages(connection, stored.selection_no, 1)
    assert frozen(engine, stored, 2) == ["3"]
    too_late: list[Callable[[], object]] = [
        lambda: page(engine, stored, 3, 1, [(4,)]),
        lambda: begin(engine, stored, 3),
    ]
    for late in too_late:
        with pytest.raises(WalkSuperseded):
            late()
    assert counts(engine)["search_page"] == 0


def test_what_is_owed_to_the_index_for_the_tenant_is_counted(engine: Engine) -> None:
    registry = searching(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO thing (name, tenant) VALUES ('a', 'acme'), ('b', 'acme'), ('c', 'other')"))
    for tenant in ("acme", "other"):
        job = accepted(engine, registry=registry, tenant=tenant)
        opened(engine, job)
        walk(engine, job, registry=registry)
    with engine.connect() as connection:
        found = {
            (channel, tenant): count_owed_to(connection, channel, tenant)
            for channel in ("things", "elsewhere")
            for tenant in ("acme", "other", "third")
        }
    assert found == {
        ("things", "acme"): 2,
        ("things", "other"): 1,
        ("things", "third"): 0,
        ("elsewhere", "acme"): 0,
        ("elsewhere", "other"): 0,
        ("elsewhere", "third"): 0,
    }
    stored = stored_search(engine, KeyType.TEXT)
    begin(engine, stored, 1)
    with engine.connect() as connection:
        assert read_selection(connection, stored.selection_no).owed_at_freeze == 2


@pytest.mark.parametrize("small", [0, 10_000])
def test_a_search_is_not_frozen_at_acceptance_and_one_that_nobody_counted_is_large(engine: Engine, small: int) -> None:
    registry = searching(engine)
    job = accepted(engine, registry=registry, selection={"search": QUERY}, small=small)
    assert (job.lane, job.total) == ("bulk", None)
    assert opened(engine, job).state is JobState.FREEZING
    assert rows(engine, "SELECT kind, state FROM bulklane.selection") == [("search", "stated")]


def test_a_freeze_that_cannot_ask_says_so_and_is_tried_again(engine: Engine) -> None:
    registry = searching(engine)
    job = accepted(engine, registry=registry, selection={"search": QUERY})
    opened(engine, job)
    with pytest.raises(ApplicationError) as trouble:
        freeze(engine, job, registry)
    assert (trouble.value.type, trouble.value.non_retryable) == ("SearchTrouble", False)
    standing = stands(engine, job)
    assert standing.state is JobState.FREEZING
    assert "BULKLANE_CHANNELS__THINGS__URL" in standing.reason
    say(engine, job, Verb.CANCEL)
    assert look(engine, job).state is JobState.CANCELLED
    freeze(engine, job, registry)
