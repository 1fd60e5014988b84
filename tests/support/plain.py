"""An operation that owes nothing, on records with UUIDs; not idempotent on purpose.

`pause`: how long the database takes over a change of the record, in seconds.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    Update,
    Uuid,
    create_engine,
    text,
    update,
)

from bulklane.operations.development import Development
from bulklane.operations.operation import Operation, Records

MODULE = "tests.support.plain"
MOST = 1_000
metadata = MetaData()
plain = Table(
    "plain",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("tenant", Text, nullable=False, index=True),
    Column("n", Integer, CheckConstraint(f"n < {MOST}", name="n_small"), nullable=False, server_default=text("0")),
    Column("pause", Double, nullable=False, server_default=text("0")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)
_TAKE_TIME = """
CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(NEW.pause); RETURN NEW; END $$;
CREATE TRIGGER takes_time AFTER UPDATE ON plain FOR EACH ROW WHEN (NEW.pause > 0) EXECUTE FUNCTION take_time()
"""
_INSERT = text(
    "INSERT INTO plain (tenant, n, pause) SELECT :tenant, :n, :pause FROM generate_series(1, :count) RETURNING id"
)


@dataclass(frozen=True)
class PlainParameters:
    """By how much."""

    by: int = 1


class CountPlain(Operation):
    """One statement, and nothing else."""

    name = "count_plain"
    parameters = PlainParameters
    records = Records(plain, [plain.c.id], plain.c.tenant, plain.c.row_version, "application")
    fields = {"id": plain.c.id, "n": plain.c.n}

    def change(self, parameters: PlainParameters) -> Update:
        """Count."""
        return update(plain).values(n=plain.c.n + parameters.by)


def make_plain(engine: Engine, tenant: str, count: int, *, n: int = 0, pause: float = 0.0) -> list[UUID]:
    """So many records of a tenant; their ids. `n` = 999: none of them can be changed."""
    with engine.begin() as connection:
        values = {"tenant": tenant, "count": count, "n": n, "pause": pause}
        return list(connection.execute(_INSERT, values).scalars())


def prepare(database_url: str, _opensearch_url: str) -> None:
    """The table and its trigger."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(text(_TAKE_TIME))
    engine.dispose()


DEVELOPMENT = Development(prepare=prepare)
OPERATIONS = [CountPlain()]
