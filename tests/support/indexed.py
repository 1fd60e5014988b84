"""The operations of the index cases: records with what is hard to index, changed or deleted, on one channel."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, Delete, Double, Engine, MetaData, Table, Text, Update, delete, text, update
from sqlalchemy.dialects.postgresql import JSONB

from bulklane.activities.index_delivery import IndexDelivery
from bulklane.contracts.effect import DeliveryState
from bulklane.database.document import install_row_version
from bulklane.database.job import Job
from bulklane.operations.channel import Channel
from bulklane.operations.operation import IndexEffect, Operation, Records, Registry
from bulklane.operations.sender import IndexSender
from bulklane.operations.senders.search_index import SearchIndex
from tests.database.jobs import accepted, freeze, look, opened, walk
from tests.support.ledgers import AddParameters

MODULE = "tests.support.indexed"
ALIAS = "parcels"
CHANNEL = "parcels"
PROPERTIES = {
    "n": {"type": "integer"},
    "payload": {"type": "text", "index": False},
    "weight": {"type": "double"},
    "extra": {"type": "object", "enabled": False},
}

parcels = Table(
    "parcel",
    MetaData(),
    Column("parcel", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("n", BigInteger, nullable=False, server_default=text("0")),
    Column("payload", Text, nullable=False, server_default=text("''")),
    Column("weight", Double),
    Column("extra", JSONB(none_as_null=True)),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)


class TouchParcels(Operation):
    """n = n + 1."""

    name = "touch_parcels"
    family = "parcels"
    parameters = AddParameters
    records = Records(parcels, [parcels.c.parcel], parcels.c.tenant, parcels.c.row_version)
    fields = {"parcel": parcels.c.parcel, "n": parcels.c.n}
    effects = (
        IndexEffect("document", CHANNEL, {name: parcels.c[name] for name in ("n", "payload", "weight", "extra")}),
    )

    def change(self, parameters: AddParameters) -> Update | Delete:
        """One statement."""
        return update(parcels).values(n=parcels.c.n + 1)


class RemoveParcels(TouchParcels):
    """Deletes them."""

    name = "remove_parcels"

    def change(self, parameters: AddParameters) -> Update | Delete:
        """One statement."""
        return delete(parcels)


OPERATIONS = [TouchParcels(), RemoveParcels()]
CHANNELS = [Channel(CHANNEL, SearchIndex(ALIAS))]
REGISTRY = Registry({one.name: one for one in OPERATIONS}, {one.name: one for one in CHANNELS})


def make_parcels(engine: Engine, count: int, tenant: str = "acme", first: int = 1) -> None:
    """Rows numbered from `first` on."""
    with engine.begin() as connection:
        parcels.create(connection, checkfirst=True)
        install_row_version(connection, TouchParcels.records)
        numbers = "SELECT no, :t FROM generate_series(CAST(:a AS bigint), CAST(:b AS bigint)) AS no"
        values = {"t": tenant, "a": first, "b": first + count - 1}
        connection.execute(text(f"INSERT INTO parcel (parcel, tenant) {numbers}"), values)


def committed(engine: Engine, operation: str = "touch_parcels", tenant: str = "acme", **request: Any) -> Job:
    """A job whose records are all changed, and whose effects are all owed."""
    job = accepted(engine, registry=REGISTRY, operation=operation, tenant=tenant, **request)
    if opened(engine, job).state == "freezing":
        freeze(engine, job, REGISTRY)
        look(engine, job)
    walk(engine, job, registry=REGISTRY)
    return look(engine, job)


async def drained(engine: Engine, job: Job, sender: IndexSender, *, seconds: float = 60) -> IndexDelivery:
    """Deliver until the job owes nothing, or the channel is held."""
    delivery = IndexDelivery(engine, REGISTRY, job, CHANNEL, sender)
    async with asyncio.timeout(seconds):
        while await delivery.send_some() and delivery.held is None:
            pass
    return delivery


def versions(engine: Engine) -> dict[str, int]:
    """By key: the version of each row."""
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(text("SELECT parcel::text, row_version FROM parcel"))}


def refused(engine: Engine, job: Job) -> Mapping[str, tuple[str, str]]:
    """By key: code and reason of the deliveries that the index refused."""
    statement = text("SELECT key, code, answer FROM bulklane.delivery WHERE job_no = :j AND state = :s")
    with engine.connect() as connection:
        rows = connection.execute(statement, {"j": job.job_no, "s": str(DeliveryState.REFUSED)})
        return {row.key: (row.code, row.answer) for row in rows}


def keys(numbers: Sequence[int]) -> set[str]:
    """As texts."""
    return {str(number) for number in numbers}
