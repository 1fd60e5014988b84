"""The operations of the benchmark of effects: a call or a document a row."""

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, Update, text, update

from bulklane.operations.channel import Channel
from bulklane.operations.operation import CallEffect, IndexEffect, Operation, Records
from bulklane.operations.senders.http_provider import HttpProvider
from bulklane.operations.senders.search_index import SearchIndex
from examples.flights.operation import judge_look_up, judge_notice

metadata = MetaData()
rows = Table(
    "bench_row",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("item", BigInteger, primary_key=True),
    Column("n", Integer, nullable=False, server_default=text("0")),
    Column("note", Text, nullable=False, server_default=text("repeat('x', 100)")),
    Column("row_version", BigInteger, nullable=False, server_default=text("1")),
)
FILL = text("INSERT INTO bench_row (tenant, item) SELECT :of_tenant, n FROM generate_series(1, :many) n")

PROVIDER = HttpProvider("/notices", judge_notice, "/notices/by-key/{key}", judge_look_up)
INDEX = SearchIndex("bench")
PROPERTIES = {"n": {"type": "integer"}, "note": {"type": "keyword"}}


@dataclass(frozen=True)
class NoParameters:
    """None."""


class BenchCall(Operation):
    """One call a row."""

    name = "bench_call"
    parameters = NoParameters
    records = Records(rows, [rows.c.item], rows.c.tenant, rows.c.row_version, "application")
    effects = (CallEffect("call", channel="bench_calls", body={"record": rows.c.item, "n": rows.c.n}),)

    def change(self, parameters: NoParameters) -> Update:
        """One statement."""
        del parameters
        return update(rows).values(n=rows.c.n + 1, row_version=rows.c.row_version + 1)


class BenchIndex(BenchCall):
    """One document a row."""

    name = "bench_index"
    effects = (IndexEffect("document", channel="bench_index", document={"n": rows.c.n, "note": rows.c.note}),)


OPERATIONS = [BenchCall(), BenchIndex()]
CHANNELS = [Channel("bench_calls", PROVIDER), Channel("bench_index", INDEX)]
