"""The rows that an index is compared with and filled from: all of them, once, in the order that is promised."""

import uuid

import pytest
from sqlalchemy import Column, Engine, MetaData, Table, Text, Uuid, text

from bulklane.contracts.key import KeyType, format_key
from bulklane.database import search_index
from bulklane.database.index_rows import RowPages, row_versions
from bulklane.database.search_index import RebuildLost, Stage
from bulklane.operations.document import document_id, is_key_global
from bulklane.operations.operation import Records
from tests.database.jobs import common_columns
from tests.support.ledgers import AddToEntries, entries, make_entries

NASTY = ["a", "B", "é", "Z", "z", "ß", "ss", "\U0001f600", "\uffff", "-", " ", "10", "9", '"', "\\"]
words = Table(
    "word",
    MetaData(),
    Column("word", Text(), primary_key=True),
    *common_columns(),
    Column("nick", Uuid, unique=True, nullable=False, server_default=text("gen_random_uuid()")),
)
RECORDS = Records(words, [words.c.word], words.c.tenant, words.c.row_version)


@pytest.fixture
def worded(engine: Engine) -> Engine:
    """Two tenants with the same nasty words."""
    with engine.begin() as connection:
        words.create(connection)
        rows = [{"word": word, "tenant": tenant} for word in NASTY for tenant in ("Zoë", "acme")]
        connection.execute(words.insert(), rows)
    return engine


def test_versions_come_in_the_order_of_the_bytes(worded: Engine) -> None:
    with row_versions(worded, RECORDS, KeyType.TEXT) as pages:
        found = [(one.tenant, one.key) for page in pages for one in page]
    assert found == sorted(((t, w) for t in ("Zoë", "acme") for w in NASTY), key=lambda one: [p.encode() for p in one])
    with row_versions(worded, RECORDS, KeyType.TEXT, "acme") as pages:
        assert len([one for page in pages for one in page]) == len(NASTY)


@pytest.mark.parametrize("size", [1, 4, 30, 100])
def test_pages_pass_nothing_over_and_repeat_nothing(worded: Engine, size: int) -> None:
    pages = RowPages(RECORDS, KeyType.TEXT, {"n": words.c.n}, key_is_global=False)
    cursor, found, read = None, [], 0
    with worded.connect() as connection:
        while read == 0 or cursor is not None:
            rows, cursor = pages.page(connection, cursor, size)
            found += [(row.tenant, row.key) for row in rows]
            read += 1
    assert sorted(found) == sorted((tenant, word) for word in NASTY for tenant in ("Zoë", "acme"))


def test_pages_of_keys_of_several_columns(engine: Engine) -> None:
    keys = make_entries(engine, 25) + make_entries(engine, 25, "zed")
    pages = RowPages(AddToEntries.records, KeyType.TEXT, {"cents": entries.c.amount}, key_is_global=False)
    with engine.connect() as connection:
        first, cursor = pages.page(connection, None, 30)
        second, end = pages.page(connection, cursor, 30)
    assert [row.key for row in first + second] == [format_key(key) for key in keys]
    assert (end, first[0].source, first[0].version) == (None, {"cents": 0}, 1)


def test_a_key_that_tenants_may_share_has_the_tenant_in_its_documents_id() -> None:
    assert not is_key_global(RECORDS)
    assert document_id(RECORDS, "acme", "a") == "acme/a"
    assert document_id(RECORDS, "acme", "a" * 600).startswith("sha256-")
    alone = Records(words, [words.c.nick], words.c.tenant, words.c.row_version)
    assert (is_key_global(alone), document_id(alone, "acme", "a")) == (True, "a")


def test_who_is_silent_is_taken_over_and_then_stops(engine: Engine) -> None:
    first, second = uuid.uuid4(), uuid.uuid4()

    def began(worker: uuid.UUID) -> bool:
        with engine.begin() as connection:
            return search_index.begin_rebuild(connection, "c", worker, present="i-v1", to_index="i-v2", who="ann")

    assert (began(first), began(second)) == (True, False)
    with engine.begin() as connection:
        assert search_index.next_index(connection, "c") is None
        search_index.note_stage(connection, "c", first, Stage.FILLING)
        assert search_index.next_index(connection, "c") == "i-v2"
        assert not search_index.take_rebuild(connection, "c", second, silent_for=60)
        connection.execute(text("UPDATE bulklane.search_index SET beat_at = beat_at - interval '61 s'"))
        assert search_index.take_rebuild(connection, "c", second, silent_for=60)
    with engine.begin() as connection, pytest.raises(RebuildLost):
        search_index.note_filled(connection, "c", first, "[]", 1)
    with engine.begin() as connection:
        search_index.leave_rebuild(connection, "c", second)
        assert search_index.take_rebuild(connection, "c", first, silent_for=60)
        search_index.end_rebuild(connection, "c", first)
        assert search_index.find_rebuild(connection, "c") is None
