"""Migrations: safe side by side, equal to the declared tables, and an old schema is refused."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from bulklane.database.engine import DatabaseUnfit, check_server, connect_engine
from bulklane.database.migrate import check_schema, differences, migrate
from tests.database.jobs import Background, counts, rows
from tests.support.databases import fresh_database

COLUMNS = "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'bulklane'"


@pytest.fixture
def empty(server_url: str) -> Iterator[Engine]:
    """A database without our schema."""
    with fresh_database(server_url, template="template1") as url:
        engine = connect_engine(url, role="test", pool_size=10)
        yield engine
        engine.dispose()


def test_several_migrators_at_once_make_one_schema(empty: Engine) -> None:
    migrators = [Background(lambda: migrate(empty)) for _ in range(4)]
    for migrator in migrators:
        migrator.result()
    with empty.connect() as connection:
        check_schema(connection)
        assert differences(connection) == []


def test_a_second_run_changes_nothing(engine: Engine) -> None:
    before = rows(engine, COLUMNS), counts(engine), rows(engine, "SELECT version_num FROM bulklane.revision")
    migrate(engine)
    after = rows(engine, COLUMNS), counts(engine), rows(engine, "SELECT version_num FROM bulklane.revision")
    assert before == after


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE bulklane.job DROP COLUMN why",
        "ALTER TABLE bulklane.job ALTER COLUMN run_id SET NOT NULL",
        "ALTER TABLE bulklane.chunk ALTER COLUMN epoch TYPE integer",
        "DROP INDEX bulklane.owed_open",
        "CREATE TABLE bulklane.stray (n int)",
    ],
)
def test_a_schema_that_differs_is_seen(engine: Engine, change: str) -> None:
    with engine.connect() as connection:
        assert differences(connection) == []
        connection.execute(text(change))
        assert differences(connection) != []


def test_the_users_own_tables_are_no_difference(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE job (n int); CREATE SCHEMA sales; CREATE TABLE sales.lease (n int)"))
        assert differences(connection) == []


def test_a_database_without_our_schema_is_refused(empty: Engine) -> None:
    with (
        empty.connect() as connection,
        pytest.raises(DatabaseUnfit, match=r"schema bulklane is at revision None.*run `bulklane install`"),
    ):
        check_schema(connection)


def test_a_schema_of_another_release_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.revision SET version_num = '0000'"))
        with pytest.raises(DatabaseUnfit, match="at revision 0000, this release needs"):
            check_schema(connection)


def test_a_server_that_gives_up_before_our_chunks_do_is_refused(engine: Engine) -> None:
    with engine.connect() as connection:
        check_server(connection, deadlock_timeout=1.0)
        with pytest.raises(DatabaseUnfit, match="deadlock_timeout is 1"):
            check_server(connection, deadlock_timeout=1.5)


def test_bytewise_columns_keep_their_order_under_any_database_collation(engine: Engine) -> None:
    collated = (
        "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
        " JOIN pg_collation l ON l.oid = a.attcollation WHERE c.relnamespace = 'bulklane'::regnamespace"
        " AND c.relkind = 'r' AND l.collname = 'C'"
    )
    found = set(rows(engine, collated))
    assert {
        ("job", "job_id"),
        ("lease", "resource"),
        ("outcome", "key"),
        ("owed", "keys"),
        ("block", "key1_text"),
    } <= found
