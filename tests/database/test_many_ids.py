"""Long lists of ids: taken the same way at every length, all or nothing, each id once."""

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from bulklane.contracts.job import JobState
from bulklane.database.accept import Conflict
from bulklane.operations.operation import CallEffect, Registry
from tests.database.jobs import accepted, common_columns, counts, look, opened, registry_of, rows, simple_operation
from tests.support.walking import walk_whole

MOST = 300_000
# around what a driver or the protocol can bind: 16 bits, signed and not
SIZES = [1, 32_766, 32_767, 32_768, 65_535, 65_536]
FAIL_AT_BLOCK = """
CREATE FUNCTION fail_block() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER fail BEFORE INSERT ON bulklane.block FOR EACH ROW WHEN (NEW.no = 40) EXECUTE FUNCTION fail_block()
"""


def things(engine: Engine, count: int, *, told: bool = False) -> Registry:
    """So many rows, numbered from 0; `told`: a provider is called for each."""
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    effects = (CallEffect("call", "calls", {"id": table.c.id}),) if told else ()
    registry = registry_of(simple_operation(engine, table, ["id"], effects=effects))
    with engine.begin() as connection:
        insert = "INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(0, :n - 1) i"
        connection.execute(text(insert), {"n": count})
        connection.execute(text("ANALYZE thing"))
    return registry


def walk_list(engine: Engine, registry: Registry, ids: list[int], total: int) -> None:
    """A job over the list, to its end: as many distinct ids, all of them changed."""
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}))
    assert job.total == total
    walk_whole(engine, registry, job)
    ended = look(engine, job)
    assert (ended.state, ended.changed, ended.not_started) == (JobState.COMPLETED, total, 0)


@pytest.mark.slow
@pytest.mark.case("C38")
def test_lists_around_the_limits_of_bind_parameters_are_taken_alike(engine: Engine) -> None:
    """bagofwords1/bagofwords#950: 32,766 ids worked, 32,767 failed with half of the work committed."""
    registry = things(engine, SIZES[-1])
    for size in SIZES:
        walk_list(engine, registry, [*range(size)], size)
    changed = rows(engine, "SELECT id, n FROM thing WHERE id IN (0, 32765, 32766, 32767, 65534, 65535) ORDER BY id")
    assert changed == [(0, 6), (32_765, 5), (32_766, 4), (32_767, 3), (65_534, 2), (65_535, 1)]
    assert rows(engine, "SELECT sum(n) FROM thing") == [(sum(SIZES),)]


@pytest.mark.slow
@pytest.mark.case("C38")
def test_the_longest_list_of_the_case(engine: Engine) -> None:
    registry = things(engine, MOST)
    walk_list(engine, registry, [*range(MOST)], MOST)
    assert rows(engine, "SELECT n, count(*) FROM thing GROUP BY n") == [(1, MOST)]


@pytest.mark.case("C38")
def test_a_job_whose_ids_cannot_all_be_stored_is_not_stored_at_all(engine: Engine) -> None:
    registry = things(engine, 1)
    with engine.begin() as connection:
        connection.execute(text(FAIL_AT_BLOCK))
    before = counts(engine)
    with pytest.raises(DBAPIError, match="disk full"):
        accepted(engine, registry=registry, selection={"ids": range(MOST)}, idempotency_key="k")
    assert counts(engine) == before


@pytest.mark.slow
@pytest.mark.case("C38")
def test_two_long_lists_that_share_one_id_exclude_each_other(engine: Engine) -> None:
    registry = things(engine, 1)
    accepted(engine, registry=registry, selection={"ids": range(MOST)}, job_id="first")
    before = counts(engine)
    with pytest.raises(Conflict, match=r"job first \(accepted\) owns made:acme") as refusal:
        accepted(engine, registry=registry, selection={"ids": range(MOST - 1, 2 * MOST - 1)}, job_id="second")
    assert refusal.value.holder.job_id == "first"
    assert counts(engine) == before


@pytest.mark.slow
@pytest.mark.case("C42")
@pytest.mark.parametrize("apart", [1, MOST // 2])
def test_every_id_twice_is_one_record_each(engine: Engine, apart: int) -> None:
    """l3montree-dev/devguard#2142: a record twice in one statement, and everything in it was lost."""
    half = MOST // 2
    registry = things(engine, half, told=True)
    ids = [*range(half), *range(half)] if apart > 1 else [number // 2 for number in range(MOST)]
    job = opened(engine, accepted(engine, registry=registry, selection={"ids": ids}))
    assert rows(engine, "SELECT total, duplicates FROM bulklane.selection") == [(half, half)]
    walk_whole(engine, registry, job)
    assert look(engine, job).changed == half
    assert rows(engine, "SELECT n, count(*) FROM thing GROUP BY n") == [(1, half)]
    owed = "SELECT count(*), count(DISTINCT key) FROM bulklane.owed, unnest(keys) key"
    assert rows(engine, owed) == [(half, half)]
