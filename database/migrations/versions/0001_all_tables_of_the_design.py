"""All tables of the design."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateSequence

from bulklane.database.tables import TransactionId

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only."""
    for name in ("job_number", "turn_number"):
        op.execute(CreateSequence(sa.Sequence(name, schema="bulklane")))
    op.create_table(
        "block",
        sa.Column("selection_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("key1_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key1_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key1_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key1_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key2_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key2_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key2_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key2_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key3_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key3_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key3_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key3_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key4_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key4_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key4_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key4_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("line_numbers", sa.ARRAY(sa.Integer()), nullable=True),
        sa.Column("payloads", sa.ARRAY(postgresql.JSONB(astext_type=sa.Text())), nullable=True),
        sa.PrimaryKeyConstraint("selection_no", "no"),
        schema="bulklane",
    )
    op.create_table(
        "channel_limit",
        sa.Column("channel", sa.Text(collation="C"), nullable=False),
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("virtual_time", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("blocked_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("held_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("held_why", sa.Text(), nullable=True),
        sa.Column("probe_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("probes", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("channel", "tenant"),
        schema="bulklane",
    )
    op.create_table(
        "channel_demand",
        sa.Column("channel", sa.Text(collation="C"), nullable=False),
        sa.Column("sender", sa.Uuid(), nullable=False),
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("small", sa.Boolean(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column(
            "waits_until", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column(
            "calls_until", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("channel", "sender"),
        schema="bulklane",
    )
    op.create_table(
        "chunk",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("range_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lo", sa.BigInteger(), nullable=False),
        sa.Column("hi", sa.BigInteger(), nullable=False),
        sa.Column("from_key", sa.Text(collation="C"), nullable=True),
        sa.Column("to_key", sa.Text(collation="C"), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("changed", sa.Integer(), nullable=False),
        sa.Column("skipped", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("not_found", sa.Integer(), nullable=False),
        sa.Column("transaction_id", TransactionId(), server_default=sa.text("pg_current_xact_id()"), nullable=False),
        sa.Column(
            "written_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("job_no", "round", "range_no", "seq"),
        schema="bulklane",
    )
    op.create_table(
        "decision",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("effect", sa.Text(collation="C"), nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("doubt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column(
            "decided_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("job_no", "effect", "key", "doubt"),
        schema="bulklane",
    )
    op.create_table(
        "delivery",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("effect", sa.Text(collation="C"), nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("channel", sa.Text(collation="C"), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("range_no", sa.Integer(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("doubt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("token", sa.Uuid(), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("attempts_before", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("permitted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("first_sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("code", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("answer", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("job_no", "effect", "key"),
        schema="bulklane",
    )
    op.create_index(
        "delivery_open",
        "delivery",
        ["job_no", "channel", "due"],
        unique=False,
        schema="bulklane",
        postgresql_where=sa.text("state IN ('sending', 'later', 'unknown')"),
    )
    op.create_index(
        "delivery_undecided",
        "delivery",
        ["job_no", "effect", "key"],
        unique=False,
        schema="bulklane",
        postgresql_where=sa.text("state = 'undecided'"),
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("job_no", sa.BigInteger(), nullable=True),
        sa.Column("kept_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "key"),
        schema="bulklane",
    )
    op.create_table(
        "job",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Text(collation="C"), nullable=False),
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("operation", sa.Text(collation="C"), nullable=False),
        sa.Column("parameters", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("3"), nullable=False),
        sa.Column("parallelism", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("hold_lease", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("channels", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("round", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("opened_round", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("run_scheduled", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("selection_no", sa.BigInteger(), nullable=False),
        sa.Column("first_selection_no", sa.BigInteger(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("who", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("why", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column(
            "accepted_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("over_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_found", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_started", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("job_no"),
        sa.UniqueConstraint("job_id"),
        schema="bulklane",
    )
    op.create_index(
        "job_open", "job", ["job_no"], unique=False, schema="bulklane", postgresql_where=sa.text("over_at IS NULL")
    )
    op.create_index("job_tenant", "job", ["tenant", "job_no"], unique=False, schema="bulklane")
    op.create_table(
        "job_resource",
        sa.Column("resource", sa.Text(collation="C"), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("job_no", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("resource", "turn"),
        schema="bulklane",
    )
    op.create_index("job_resource_job", "job_resource", ["job_no", "round"], unique=False, schema="bulklane")
    op.create_table(
        "lease",
        sa.Column("resource", sa.Text(collation="C"), nullable=False),
        sa.Column("job_no", sa.BigInteger(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.PrimaryKeyConstraint("resource"),
        schema="bulklane",
    )
    op.create_index(op.f("ix_bulklane_lease_job_no"), "lease", ["job_no"], unique=False, schema="bulklane")
    op.create_table(
        "outcome",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(collation="C"), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("job_no", "key"),
        schema="bulklane",
    )
    op.create_table(
        "owed",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("range_no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("effect", sa.Text(collation="C"), nullable=False),
        sa.Column("channel", sa.Text(collation="C"), nullable=False),
        sa.Column("keys", sa.ARRAY(sa.Text(collation="C")), nullable=False),
        sa.Column("versions", sa.ARRAY(sa.BigInteger()), nullable=False),
        sa.Column("bodies", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("taken_to", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("job_no", "round", "range_no", "seq", "effect"),
        schema="bulklane",
    )
    op.create_index(
        "owed_open",
        "owed",
        ["job_no", "channel", "round", "range_no", "seq"],
        unique=False,
        schema="bulklane",
        postgresql_where=sa.text("taken_to < size"),
    )
    op.create_table(
        "range",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("round", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("lo", sa.BigInteger(), nullable=False),
        sa.Column("hi", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("cursor_key", sa.Text(collation="C"), nullable=True),
        sa.Column("bound_key", sa.Text(collation="C"), nullable=True),
        sa.Column("open", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("epoch_cursor", sa.BigInteger(), nullable=True),
        sa.Column("orderly", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("deaths", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("suspect_to", sa.BigInteger(), nullable=True),
        sa.Column("chunk_size", sa.Integer(), server_default=sa.text("1000"), nullable=False),
        sa.Column("next_seq", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("troubled_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("troubled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("slowed_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("changed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("skipped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("failed", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("not_found", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("job_no", "round", "no"),
        schema="bulklane",
    )
    op.create_table(
        "search_index",
        sa.Column("channel", sa.Text(collation="C"), nullable=False),
        sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("present", sa.Text(), nullable=True),
        sa.Column("next", sa.Text(), nullable=True),
        sa.Column("cursor", sa.Text(collation="C"), nullable=True),
        sa.Column("written", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("who", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker", sa.Uuid(), nullable=True),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("channel"),
        schema="bulklane",
    )
    op.create_table(
        "search_page",
        sa.Column("selection_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("no", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("key1_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key1_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key1_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key1_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key2_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key2_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key2_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key2_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key3_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key3_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key3_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key3_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.Column("key4_bigint", sa.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("key4_text", sa.ARRAY(sa.Text(collation="C")), nullable=True),
        sa.Column("key4_uuid", sa.ARRAY(sa.Uuid()), nullable=True),
        sa.Column("key4_timestamptz", sa.ARRAY(sa.DateTime(timezone=True)), nullable=True),
        sa.PrimaryKeyConstraint("selection_no", "no"),
        schema="bulklane",
    )
    op.create_table(
        "selection",
        sa.Column("selection_no", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("key_types", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=True),
        sa.Column("duplicates", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("live", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("selected_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("owed_at_freeze", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("selection_no"),
        schema="bulklane",
    )
    op.create_table(
        "tenant_load",
        sa.Column("tenant", sa.Text(collation="C"), nullable=False),
        sa.Column("lane", sa.Text(collation="C"), nullable=False),
        sa.Column("open_jobs", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("open_records", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "lane"),
        schema="bulklane",
    )
    op.create_table(
        "wish",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("wish", sa.Text(), server_default=sa.text("'run'"), nullable=False),
        sa.Column("rows_per_second", sa.Double(), nullable=True),
        sa.Column("parallelism", sa.Integer(), nullable=True),
        sa.Column("next_rows_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("who", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("why", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("wished_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("heard_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("heard_by", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("job_no"),
        schema="bulklane",
    )
    op.create_table(
        "wish_message",
        sa.Column("job_no", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.Text(collation="C"), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("why", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("rows_per_second", sa.Double(), nullable=True),
        sa.Column("parallelism", sa.Integer(), nullable=True),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column(
            "received_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("job_no", "message_id"),
        schema="bulklane",
    )
