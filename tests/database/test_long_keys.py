"""Keys that are long, and keys that move: what is stored of them fits, and what has failed can be retried."""

import pytest
from sqlalchemy import BigInteger, CheckConstraint, Column, Engine, MetaData, Table, Text, update

from bulklane.contracts.message import Verb, VerbMessage
from bulklane.database.retry import retry
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import (
    accepted,
    common_columns,
    look,
    opened,
    operation_on,
    registry_of,
    rows,
    simple_operation,
)
from tests.support.walking import PATIENT, walk_whole

LONG = ["".join(chr(0x4E00 + (place * 7919 + n) % 20000) for place in range(330)) for n in range(3)]


def test_a_key_that_no_index_row_holds_is_refused(engine: Engine) -> None:
    """One of them in a list had the whole job fail: what became of it couldn't be stored."""
    key = [Column(f"k{n}", Text, primary_key=True) for n in range(3)]
    registry = registry_of(
        simple_operation(engine, Table("thing", MetaData(), *key, *common_columns()), ["k0", "k1", "k2"])
    )
    with pytest.raises(InvalidRequest, match=r"selection\.ids\[1\]: a key is at most 2000 bytes long"):
        accepted(engine, registry=registry, selection={"ids": [["a", "b", "c"], LONG]})
    assert rows(engine, "SELECT count(*) FROM bulklane.job") == [(0,)]


def test_a_record_with_a_longer_key_than_a_request_may_name_is_retried(engine: Engine) -> None:
    table = Table(
        "thing", MetaData(), Column("id", Text, primary_key=True), *common_columns(), CheckConstraint("n < 100")
    )
    registry = registry_of(simple_operation(engine, table, ["id"]))
    with engine.begin() as connection:
        connection.execute(table.insert(), {"tenant": "acme", "id": "x" * 1500, "n": 99})
    job = opened(engine, accepted(engine, registry=registry))
    walk_whole(engine, registry, job, timing=PATIENT)
    assert look(engine, job).failed == 1
    with engine.begin() as connection:
        again = VerbMessage("again", Verb.RETRY, "ann", "mended")
        assert retry(connection, job.job_no, again, of_round=1, small_max_records=100).records == 1


@pytest.mark.parametrize("column", ["id", "tenant"])
def test_an_operation_that_moves_a_key_or_the_tenant_is_refused(engine: Engine, column: str) -> None:
    """With ids 1 and 3 and `id = id + 2`, one record was changed twice."""
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    value = {"id": table.c.id + 2, "tenant": "other"}[column]
    registry = registry_of(operation_on(table, ["id"], update(table).values({column: value, "n": table.c.n + 1})))
    with pytest.raises(InvalidRequest, match=f"operation: the change of 'made' sets `{column}`, "):
        accepted(engine, registry=registry, selection={"ids": [1, 3]})
    assert rows(engine, "SELECT count(*) FROM bulklane.job") == [(0,)]
