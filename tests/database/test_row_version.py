"""The row version that the application moves: by one with every write, whatever the operation says of it."""

from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, update

from bulklane.operations.request import InvalidRequest
from tests.database.jobs import accepted, common_columns, opened, operation_on, registry_of, rows, walk

TABLE = Table(
    "thing",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    Column("n", BigInteger),
    *[column for column in common_columns() if column.name not in ("n", "row_version")],
    Column("Row Version", BigInteger, nullable=False, server_default="1", key="row_version"),
)
V = TABLE.c.row_version


def walked(engine: Engine, change: Any) -> None:
    """Two rows changed by a job."""
    TABLE.create(engine)
    with engine.begin() as connection:
        connection.execute(TABLE.insert(), [{"id": n, "tenant": "acme", "n": 0} for n in (1, 2)])
    registry = registry_of(operation_on(TABLE, ["id"], change))
    walk(engine, opened(engine, accepted(engine, registry=registry)), registry=registry)


@pytest.mark.parametrize(
    "values",
    [{"n": 1}, {"n": 1, "row_version": 7}, {TABLE.c.n: 1, V: V + 5}, {"n": 1, "row_version": V + 1}],
    ids=["forgotten", "by name", "by column", "as it is meant"],
)
def test_it_moves_by_one_whatever_the_statement_sets(engine: Engine, values: dict[Any, Any]) -> None:
    walked(engine, update(TABLE).values(values))
    assert rows(engine, 'SELECT n, "Row Version" FROM thing') == [(1, 2), (1, 2)]


def test_ordered_values_are_refused_with_the_way_out(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"operation: the change of 'made' has ordered_values.*use values"):
        walked(engine, update(TABLE).ordered_values((TABLE.c.n, 1)))
    assert rows(engine, 'SELECT n, "Row Version" FROM thing') == [(0, 1), (0, 1)]
