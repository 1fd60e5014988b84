"""An operation under test that is written per record, on a table with columns of many types."""

import enum
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Date,
    DateTime,
    Engine,
    Enum,
    Float,
    ForeignKey,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    func,
    insert,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from bulklane.operations.operation import CallEffect, Records
from bulklane.operations.per_record import Answer, Fail, PerRecord, Record, Skip


class Mood(enum.Enum):
    """An enum of the database."""

    GOOD = "good"
    BAD = "bad"


metadata = MetaData()
towns = Table("town", metadata, Column("town_id", BigInteger, primary_key=True), Column("name", Text))
people = Table(
    "person",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", BigInteger, primary_key=True),
    Column("n", Integer, nullable=False, server_default=text("0")),
    Column("twice", BigInteger, Computed("n * 2")),
    Column("name", String(20), nullable=False, server_default=text("''")),
    Column("Rate %", Numeric(10, 2), key="rate"),
    Column("ratio", Float),
    Column("data", JSONB(none_as_null=True)),
    Column("mood", Enum(Mood, name="mood")),
    Column("seen_at", DateTime(timezone=True)),
    Column("born_on", Date),
    Column("lasts", Interval),
    Column("raw", LargeBinary),
    Column("uuid", Uuid),
    Column("flag", Boolean),
    Column("tags", ARRAY(Text)),
    Column("town_id", BigInteger, ForeignKey(towns.c.town_id, name="person_town")),
    Column("email", Text, unique=True),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
    CheckConstraint("n < 1000", name="n_small"),
    CheckConstraint("twice <> 66 AND name NOT LIKE 'x%:n'", name="odd"),
)


@dataclass(frozen=True)
class EditParameters:
    """By the record's `n`: what is answered."""

    by: int = 1


@dataclass(frozen=True)
class Seen:
    """What the function was given."""

    records: list[dict[str, Any]] = field(default_factory=list)


class EditPeople(PerRecord):
    """Adds to `n`; a name that starts with `skip` or `fail` says what becomes of the record."""

    name = "edit_people"
    parameters = EditParameters
    records = Records(people, [people.c.id], people.c.tenant, people.c.row_version, "application")
    fields = {"name": people.c.name}
    effects = (CallEffect("call", channel="calls", body={"id": people.c.id, "n": people.c.n}),)
    writes = (people.c.n, people.c.name)

    def change_record(self, record: Record, parameters: EditParameters) -> Answer:
        """By its name."""
        if record["name"].startswith("skip"):
            return Skip("asked for")
        if record["name"].startswith("fail"):
            return Fail("too_odd", "its name says so")
        return {} if record["name"] == "same" else {"n": record["n"] + parameters.by}


def make_people(engine: Engine, count: int, tenant: str = "acme") -> None:
    """So many people, numbered from 1."""
    with engine.begin() as connection:
        metadata.create_all(connection)
        numbers = select(literal_column(f"'{tenant}'"), func.generate_series(1, count))
        connection.execute(insert(people).from_select(["tenant", "id"], numbers))
