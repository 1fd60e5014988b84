"""Bulklane's tables, all in the schema `bulklane`. Large ones lead with `job_no`, so that they can be partitioned.

Text that is compared is `COLLATE "C"`: byte for byte, the same order under any database collation.
"""

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import TypeEngine, UserDefinedType

SCHEMA = "bulklane"
MAX_KEY_COLUMNS = 4

metadata = MetaData(schema=SCHEMA)


class TransactionId(UserDefinedType[str]):
    """PostgreSQL's xid8: the full transaction id, which never wraps."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


# so that Alembic recognizes the type when it compares
ischema_names["xid8"] = TransactionId


def _bytewise() -> Text:
    return Text(collation="C")


def _at(name: str, *, null: bool = True) -> Column[object]:
    default = None if null else func.clock_timestamp()
    return Column(name, DateTime(timezone=True), nullable=null, server_default=default)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


# The array types in which key columns are stored, by the name that an operation's key column type has.
KEY_TYPES: dict[str, TypeEngine[Any]] = {
    "bigint": BigInteger(),
    "text": _bytewise(),
    "uuid": Uuid(),
    "timestamptz": DateTime(timezone=True),
}


def key_column(position: int, key_type: str) -> str:
    """The name of the block table's array column for the key column at `position` (from 1)."""
    return f"key{position}_{key_type}"


idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", _bytewise(), primary_key=True),
    Column("key", _bytewise(), primary_key=True),
    Column("content_hash", Text, nullable=False),
    Column("job_no", BigInteger),
    _at("kept_until"),
)

job_sequence = Sequence("job_number", metadata=metadata)
turn_sequence = Sequence("turn_number", metadata=metadata)

job = Table(
    "job",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("job_id", _bytewise(), nullable=False, unique=True),
    Column("tenant", _bytewise(), nullable=False),
    Column("operation", _bytewise(), nullable=False),
    Column("parameters", JSONB, nullable=False),
    Column("content_hash", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("priority", Integer, nullable=False, server_default=text("3")),
    Column("parallelism", Integer, nullable=False, server_default=text("1")),
    Column("hold_lease", Boolean, nullable=False, server_default=text("false")),
    Column("channels", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("round", Integer, nullable=False, server_default=text("1")),
    Column("opened_round", Integer, nullable=False, server_default=text("0")),
    Column("run_id", Text),
    Column("run_scheduled", BigInteger, nullable=False, server_default=text("0")),
    # of the present round, and of the first one
    Column("selection_no", BigInteger, nullable=False),
    Column("first_selection_no", BigInteger, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("who", Text, nullable=False, server_default=text("''")),
    Column("why", Text, nullable=False, server_default=text("''")),
    _at("accepted_at", null=False),
    _at("opened_at"),
    _at("released_at"),
    _at("over_at"),
    # of the first round's selection; null until it is frozen
    Column("total", BigInteger),
    _count("changed"),
    _count("skipped"),
    _count("failed"),
    _count("not_found"),
    _count("not_started"),
    # the control loop's only question: which jobs aren't over, or over and still owing
    Index("job_open", "job_no", postgresql_where=text("over_at IS NULL")),
    Index("job_tenant", "tenant", "job_no"),
)

wish = Table(
    "wish",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("wish", Text, nullable=False, server_default=text("'run'")),
    Column("rows_per_second", Double),
    Column("parallelism", Integer),
    # the job's one clock for all its ranges: the next rows may be walked from then on
    _at("next_rows_at"),
    Column("who", Text, nullable=False, server_default=text("''")),
    Column("why", Text, nullable=False, server_default=text("''")),
    _at("wished_at", null=False),
    _at("looked_at", null=False),
    _at("heard_at", null=False),
    Column("heard_by", Text, nullable=False, server_default=text("''")),
)

wish_message = Table(
    "wish_message",
    metadata,
    # an id counts within its job: people who send signals choose `1` for more than one
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("message_id", _bytewise(), primary_key=True),
    Column("verb", Text, nullable=False),
    Column("who", Text, nullable=False, server_default=text("''")),
    Column("why", Text, nullable=False, server_default=text("''")),
    # of a throttle
    Column("rows_per_second", Double),
    Column("parallelism", Integer),
    Column("applied", Boolean, nullable=False),
    _at("received_at", null=False),
)

lease = Table(
    "lease",
    metadata,
    Column("resource", _bytewise(), primary_key=True),
    Column("job_no", BigInteger, nullable=False, index=True),
    Column("round", Integer, nullable=False),
    _at("since", null=False),
)

job_resource = Table(
    "job_resource",
    metadata,
    Column("resource", _bytewise(), primary_key=True),
    Column("turn", BigInteger, primary_key=True),
    Column("job_no", BigInteger, nullable=False),
    Column("round", Integer, nullable=False),
    Index("job_resource_job", "job_no", "round"),
)

selection = Table(
    "selection",
    metadata,
    Column("selection_no", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("spec", JSONB, nullable=False),
    Column("key_types", ARRAY(Text), nullable=False),
    Column("state", Text, nullable=False),
    Column("total", BigInteger),
    _count("duplicates"),
    # walked in key order up to a bound; no keys are stored
    Column("live", Boolean, nullable=False, server_default=text("false")),
    _at("selected_at"),
    # of a search: the attempt that may store pages, and what was owed to the index then
    _count("epoch"),
    Column("owed_at_freeze", BigInteger),
)


def _keys() -> list[Column[Any]]:
    return [
        Column("selection_no", BigInteger, primary_key=True, autoincrement=False),
        Column("no", Integer, primary_key=True, autoincrement=False),
        Column("size", Integer, nullable=False),
        *(
            Column(key_column(position, name), ARRAY(column_type))
            for position in range(1, MAX_KEY_COLUMNS + 1)
            for name, column_type in KEY_TYPES.items()
        ),
    ]


block = Table("block", metadata, *_keys(), Column("line_numbers", ARRAY(Integer)), Column("payloads", ARRAY(JSONB)))

# what a walk over the search index has found so far, until it is frozen into blocks
search_page = Table("search_page", metadata, *_keys())

range_ = Table(
    "range",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("no", Integer, primary_key=True, autoincrement=False),
    # ordinals in the frozen selection; in a live walk the cursor counts keys passed, `hi` is known when it is done, and
    # the keys (text form) tell where it stands and ends
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    Column("cursor", BigInteger, nullable=False),
    Column("cursor_key", _bytewise()),
    Column("bound_key", _bytewise()),
    Column("open", Boolean, nullable=False, server_default=text("true")),
    _count("epoch"),
    Column("epoch_cursor", BigInteger),
    Column("orderly", Boolean, nullable=False, server_default=text("true")),
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    # the record that kills its worker stands below this ordinal
    Column("suspect_to", BigInteger),
    Column("chunk_size", Integer, nullable=False, server_default=text("1000")),
    Column("next_seq", Integer, nullable=False, server_default=text("1")),
    # since when no chunk got through, without the time in which nobody tried; and the last try
    _at("troubled_since"),
    _at("troubled_at"),
    # why the walker is slower than it could be, or stands still; for people
    Column("slowed_by", Text, nullable=False, server_default=text("''")),
    _count("changed"),
    _count("skipped"),
    _count("failed"),
    _count("not_found"),
)

chunk = Table(
    "chunk",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("range_no", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("lo", BigInteger, nullable=False),
    Column("hi", BigInteger, nullable=False),
    # of a live walk: the keys after `from_key` up to `to_key`
    Column("from_key", _bytewise()),
    Column("to_key", _bytewise()),
    Column("epoch", BigInteger, nullable=False),
    Column("changed", Integer, nullable=False),
    Column("skipped", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("not_found", Integer, nullable=False),
    Column("transaction_id", TransactionId, nullable=False, server_default=func.pg_current_xact_id()),
    _at("written_at", null=False),
)

outcome = Table(
    "outcome",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("key", _bytewise(), primary_key=True),
    Column("round", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("code", Text, nullable=False, server_default=text("''")),
    Column("reason", Text, nullable=False, server_default=text("''")),
)

owed = Table(
    "owed",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("round", Integer, primary_key=True, autoincrement=False),
    Column("range_no", Integer, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("effect", _bytewise(), primary_key=True),
    Column("channel", _bytewise(), nullable=False),
    Column("keys", ARRAY(_bytewise()), nullable=False),
    Column("versions", ARRAY(BigInteger), nullable=False),
    Column("bodies", ARRAY(Text)),
    Column("size", Integer, nullable=False),
    Column("taken_to", Integer, nullable=False, server_default=text("0")),
    Index("owed_open", "job_no", "channel", "round", "range_no", "seq", postgresql_where=text("taken_to < size")),
)

delivery = Table(
    "delivery",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("effect", _bytewise(), primary_key=True),
    Column("key", _bytewise(), primary_key=True),
    Column("channel", _bytewise(), nullable=False),
    Column("turn", BigInteger, nullable=False),
    # where the body stands: a place in a row of `owed`
    Column("round", Integer, nullable=False),
    Column("range_no", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("generation", Integer, nullable=False, server_default=text("1")),
    Column("doubt", Integer, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False),
    Column("token", Uuid),
    _at("claimed_until"),
    _at("due"),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    # those before the present generation or decision: they don't count against its bounds
    Column("attempts_before", Integer, nullable=False, server_default=text("0")),
    # a person has decided that it is sent once more, whatever a look-up can't tell
    Column("permitted", Boolean, nullable=False, server_default=text("false")),
    _at("first_sent_at"),
    Column("code", Text, nullable=False, server_default=text("''")),
    Column("answer", Text, nullable=False, server_default=text("''")),
    _at("settled_at"),
    Index(
        "delivery_open",
        "job_no",
        "channel",
        "due",
        postgresql_where=text("state IN ('sending', 'later', 'unknown')"),
    ),
    Index("delivery_undecided", "job_no", "effect", "key", postgresql_where=text("state = 'undecided'")),
)

decision = Table(
    "decision",
    metadata,
    Column("job_no", BigInteger, primary_key=True, autoincrement=False),
    Column("effect", _bytewise(), primary_key=True),
    Column("key", _bytewise(), primary_key=True),
    Column("doubt", Integer, primary_key=True, autoincrement=False),
    Column("verdict", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    _at("decided_at", null=False),
)

channel_limit = Table(
    "channel_limit",
    metadata,
    Column("channel", _bytewise(), primary_key=True),
    # empty: the channel as a whole
    Column("tenant", _bytewise(), primary_key=True),
    _at("next_at"),
    Column("virtual_time", Double, nullable=False, server_default=text("0")),
    _at("blocked_until"),
    _at("held_since"),
    Column("held_why", Text),
    _at("probe_at"),
    Column("probes", Integer, nullable=False, server_default=text("0")),
)

channel_demand = Table(
    "channel_demand",
    metadata,
    Column("channel", _bytewise(), primary_key=True),
    Column("sender", Uuid, primary_key=True),
    Column("tenant", _bytewise(), nullable=False),
    Column("small", Boolean, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    # a sender that is gone is believed no longer
    _at("waits_until", null=False),
    _at("calls_until", null=False),
)

tenant_load = Table(
    "tenant_load",
    metadata,
    Column("tenant", _bytewise(), primary_key=True),
    Column("lane", _bytewise(), primary_key=True),
    _count("open_jobs"),
    _count("open_records"),
)

search_index = Table(
    "search_index",
    metadata,
    Column("channel", _bytewise(), primary_key=True),
    _at("purged_at"),
    # a reindex under way: where it stands, the index that is built, how far it is filled, who works at it
    Column("stage", Text),
    Column("present", Text),
    Column("next", Text),
    Column("cursor", _bytewise()),
    _count("written"),
    Column("who", Text, nullable=False, server_default=text("''")),
    _at("begun_at"),
    Column("worker", Uuid),
    _at("beat_at"),
)
