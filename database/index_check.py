"""Which statements of a job would read its records' table from end to end, where an index should lead to the rows."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection

from bulklane.contracts.key import Key
from bulklane.database.chunk import chunk_parameters, chunk_statement
from bulklane.database.chunk_plan import ChunkPlan
from bulklane.database.engine import set_locally
from bulklane.database.explain import Scan, explain, long_scans
from bulklane.database.live import PLANNED_BY_INDEX, LivePiece, live_statement
from bulklane.database.live_chain import LivePlan
from bulklane.database.live_selection import last_key
from bulklane.database.range import RangeRef
from bulklane.database.record import RecordSet
from bulklane.database.selection import matching_keys
from bulklane.database.trial import UNTAKEN, stage

CHUNK = 1_000
"""Records of the chunk whose plan is asked for; that many a range begins with."""


def selection_scans(
    connection: Connection, records: RecordSet, tenant: str, condition: ColumnElement[bool], *, live: bool
) -> list[Scan]:
    """Of the statement that freezes the keys, or that finds the bound of a live walk."""
    statement = (last_key if live else matching_keys)(records, tenant, condition)
    return long_scans(connection, explain(connection, statement), records.table)


def chunk_scans(connection: Connection, plan: ChunkPlan, keys: Sequence[Key]) -> list[Scan]:
    """Of a chunk over frozen keys. The caller rolls back; the records are locked where a function decides about them.

    Raises what deciding raises.
    """
    ref, piece = stage(connection, plan, keys)
    statement, parameters = chunk_statement(connection, plan, chunk_parameters(ref, UNTAKEN, piece))
    return long_scans(connection, explain(connection, statement, parameters), plan.records.table)


def live_scans(connection: Connection, plan: LivePlan, first: Key, last: Key) -> list[Scan]:
    """Of a chunk of a live walk, in the midst of its range. The caller rolls back."""
    piece = LivePiece(cursor=CHUNK, cursor_key=first, bound_key=last, records=CHUNK)
    set_locally(connection, PLANNED_BY_INDEX)
    statement, parameters = live_statement(connection, plan, RangeRef(0, 1, 0), UNTAKEN, piece)
    return long_scans(connection, explain(connection, statement, parameters), plan.records.table)
