"""What an actor may do: each script is an activity, a step of the control loop or a request, by the product's code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, text
from temporalio.testing import ActivityEnvironment

from bulklane.activities.freeze import Freeze
from bulklane.activities.job_lifecycle import JobLifecycle
from bulklane.activities.plan import plan_chunks
from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb, VerbMessage, VerbRequest
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import FreezeRequest
from bulklane.database import advance as advancing
from bulklane.database import chunk as chunks
from bulklane.database import control, effect, wish
from bulklane.database import delivery as deliveries
from bulklane.database import range as ranges
from bulklane.database.chunk_plan import ChunkPlan, ChunkResult
from bulklane.database.control import Suspect
from bulklane.database.delivery import Claim, Settlement
from bulklane.database.effect import OwedSlice
from bulklane.database.job import get_job
from bulklane.database.range import RangeRef, Standing
from bulklane.database.selection import slice_at
from bulklane.starter.accept import accept_request, retry_job
from tests.database.model.actor import Script
from tests.database.model.world import CALLS, INDEX, REGISTRY

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MANY = 100
# a freeze may be held for long, and nobody listens
NO_HEARTBEAT = Timing(heartbeat_timeout=100_000.0)


@dataclass
class Walker:
    """One attempt at a range, with what it believes: which may be long untrue."""

    ref: RangeRef
    epoch: int
    plan: ChunkPlan
    selection_no: int
    standing: Standing


def accept(raw: dict[str, Any], small: int) -> Script:
    """A request that comes in at the starter."""
    return lambda engine: accept_request(engine, REGISTRY, raw, small)


def open_job(job_id: str, number: int, arguments: list[Any], small: int) -> Script:
    """`open_job` of the run that the server scheduled at that number; with arguments it may be a direct start."""

    def script(engine: Engine) -> Any:
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            workflow_id=job_id,
            workflow_run_id=f"run-{number}",
            current_attempt_scheduled_time=EPOCH + timedelta(microseconds=number),
        )
        return environment.run(_lifecycle(engine, small).open_job, arguments)

    return script


def look(job_no: int) -> Script:
    """`look`, `release` and `close` are this."""
    return lambda engine: ActivityEnvironment().run(_lifecycle(engine).look, job_no)


def say(job_no: int, message_id: str, verb: Verb) -> Script:
    """A verb by a message; its reason is its id, so that one sees which message made the wish."""
    request = VerbRequest(job_no, VerbMessage(message_id, verb, "ann", message_id), "run")
    return lambda engine: ActivityEnvironment().run(_lifecycle(engine).apply_verb, request)


def retry(job_id: str, of_round: int, message_id: str) -> Script:
    """A job's next round, by somebody who saw it in that round."""
    message = VerbMessage(message_id, Verb.RETRY, "ann", message_id)
    return lambda engine: retry_job(engine, job_id, message, tenant=None, of_round=of_round, small_max_records=100)


def stop(job_no: int) -> Script:
    """What a segment does about a bug of the operation."""

    def script(engine: Engine) -> None:
        with engine.begin() as connection:
            wish.set_wish(connection, job_no, Wish.STOP, who="bulklane", why="the operation fails")

    return script


def freeze(job_no: int, round_no: int) -> Script:
    """The activity."""
    return lambda engine: ActivityEnvironment().run(
        Freeze(engine, REGISTRY, NO_HEARTBEAT).freeze, FreezeRequest(job_no, round_no)
    )


def take(ref: RangeRef, epoch: int) -> Script:
    """A segment begins; what it answers is the walker, also where a later attempt owns the range."""

    def script(engine: Engine) -> Walker:
        with engine.begin() as connection:
            standing = ranges.take(connection, ref, epoch)
        with engine.begin() as connection:
            plan, stored = plan_chunks(connection, REGISTRY, get_job(connection, ref.job_no))
        return Walker(ref, epoch, plan, stored.selection_no, standing)

    return script


def walk_chunk(walker: Walker, size: int) -> Script:
    """The next chunk from where the walker believes that the range stands."""
    at = walker.standing
    piece = slice_at(walker.selection_no, at.cursor, at.hi, size)

    def script(engine: Engine) -> ChunkResult | None:
        with engine.begin() as connection:
            return chunks.apply_chunk(connection, walker.plan, walker.ref, walker.epoch, piece)

    return script


def fail_record(walker: Walker) -> Script:
    """The record at the walker's cursor is reported as failed."""
    at = walker.standing
    piece = slice_at(walker.selection_no, at.cursor, at.hi, 1)

    def script(engine: Engine) -> ChunkResult | None:
        with engine.begin() as connection:
            (key,) = chunks.keys_of(connection, piece, walker.plan.records.key_types)
            return chunks.fail_chunk(connection, walker.ref, walker.epoch, piece, key, "22003", "out of range")

    return script


def look_again(walker: Walker) -> Script:
    """The walker reads where the range stands."""

    def script(engine: Engine) -> Standing:
        with engine.begin() as connection:
            return ranges.read(connection, walker.ref)

    return script


def leave(walker: Walker) -> Script:
    """A segment ends in order."""

    def script(engine: Engine) -> None:
        with engine.begin() as connection:
            ranges.leave(connection, walker.ref, walker.epoch, 1000)
            wish.note_heard(connection, walker.ref.job_no, heard_by="model")

    return script


def suspects(engine: Engine) -> list[Suspect]:
    """The control loop reads which jobs are silent; all are, for it."""
    with engine.begin() as connection:
        return control.suspects(connection, silent_for=0.0, most=MANY)


def settle(suspect: Suspect, state: JobState) -> Script:
    """The control loop acts on what it read, however long ago."""

    def script(engine: Engine) -> bool:
        try:
            with engine.begin() as connection:
                return advancing.settle(
                    connection,
                    suspect.job_no,
                    round_no=suspect.round,
                    run_id=suspect.run_id,
                    epochs=suspect.epochs,
                    state=state,
                    reason="the workflow is closed",
                )
        except advancing.JobMovedOn:
            return False

    return script


def claim(job_no: int, most: int, claim_seconds: float) -> Script:
    """A sender marks deliveries before it calls."""

    def script(engine: Engine) -> list[Claim]:
        with engine.begin() as connection:
            turn = get_job(connection, job_no).turn
            token = uuid4()
            return deliveries.claim(
                connection, job_no, CALLS, turn=turn, most=most, token=token, claim_seconds=claim_seconds
            )

    return script


def settle_calls(job_no: int, claims: Sequence[Claim], state: DeliveryState, due_seconds: float) -> Script:
    """A sender writes what came of its calls, however late."""
    settlements = [Settlement(one.effect, one.key, one.token, state, due_seconds=due_seconds) for one in claims]

    def script(engine: Engine) -> None:
        with engine.begin() as connection:
            deliveries.settle_deliveries(connection, job_no, settlements)

    return script


def read_slices(job_no: int) -> Script:
    """An indexer reads what is owed to the index."""

    def script(engine: Engine) -> list[OwedSlice]:
        with engine.begin() as connection:
            return effect.owed_slices(connection, job_no, INDEX, MANY)

    return script


def settle_slice(job_no: int, turn: int, piece: OwedSlice, refuses: bool) -> Script:
    """An indexer is done with a slice, but perhaps for its first key."""

    def script(engine: Engine) -> None:
        with engine.begin() as connection:
            refused = [(0, "400", "no such field")] if refuses else []
            effect.settle_slice(connection, job_no, turn, INDEX, piece, refused)

    return script


def write_by_a_user(tenant: str, number: int, color: str | None) -> Script:
    """Somebody else's write: a record gets a color, or goes."""

    def script(engine: Engine) -> None:
        change = (
            "DELETE FROM item" if color is None else "UPDATE item SET color = :color, row_version = row_version + 1"
        )
        with engine.begin() as connection:
            values = {"tenant": tenant, "id": number} | ({} if color is None else {"color": color})
            connection.execute(text(f"{change} WHERE tenant = :tenant AND id = :id"), values)

    return script


def time_passes(engine: Engine) -> None:
    """Every claim has run out, and everything is due."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE bulklane.delivery SET claimed_until = now() - interval '1 s', due = now() - interval '1 s'")
        )


def _lifecycle(engine: Engine, small: int = 0) -> JobLifecycle:
    return JobLifecycle(engine, REGISTRY, Timing(), small, search_attributes=False, process="model")
