"""The operations of the walk's benchmark: the same change, with an effect per chunk, and with a call per record."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Update, func, update

from benchmarks.walk.table import flights, make_tables
from bulklane import CallEffect, Channel, Done, HttpProvider, IndexEffect, Operation, Records, SearchIndex
from bulklane.operations.development import Development


@dataclass(frozen=True)
class NoParameters:
    """The change has none."""


class MoveWithDocuments(Operation):
    """Owes a document of each record, as one row a chunk."""

    name = "move_with_documents"
    parameters = NoParameters
    records = Records(
        table=flights,
        key=[flights.c.id],
        tenant=flights.c.tenant,
        row_version=flights.c.version,
        row_version_by="application",
    )
    effects = (IndexEffect("document", channel="bench_index", document={"status": flights.c.status}),)

    def change(self, parameters: NoParameters) -> Update:
        """The same as the raw UPDATE."""
        del parameters
        return update(flights).values(status="moved", version=flights.c.version + 1, updated_at=func.now())


class MoveWithNotices(MoveWithDocuments):
    """Owes a provider's call for each record, its body fixed at commit."""

    name = "move_with_notices"
    effects = (
        CallEffect(
            "notice",
            channel="bench_notices",
            body={
                "record": flights.c.id,
                "carrier": flights.c.carrier,
                "flight_number": flights.c.flight_number,
                "status": flights.c.status,
                "departure": flights.c.departure,
            },
        ),
    )


def _judge(_status: int, _body: Mapping[str, Any]) -> Done:
    return Done("200")


DEVELOPMENT = Development(prepare=make_tables, index_channels=("bench_index", "bench_notices"))
OPERATIONS = [MoveWithDocuments(), MoveWithNotices()]
CHANNELS = [
    Channel("bench_index", SearchIndex(alias="bench")),
    Channel("bench_notices", HttpProvider(path="/notices", judge=_judge)),
]
