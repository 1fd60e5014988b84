"""Retry: re-opens a job for its failed and not started records as the next round, and for what providers refused."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Integer, bindparam, case, cast, func, select, update

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.key import Key, KeyType, read_key
from bulklane.contracts.lane import lane_of
from bulklane.contracts.message import VerbMessage
from bulklane.database import effect, lease
from bulklane.database import range as ranges
from bulklane.database.job import Job, lock_job, move
from bulklane.database.live_selection import count_rest, reopen_rest
from bulklane.database.selection import cut_ranges, freeze_keys, insert_selection, keys_between, read_selection
from bulklane.database.superseded import SUPERSEDED
from bulklane.database.tables import delivery, job_resource, outcome, turn_sequence
from bulklane.database.wish import note_message, reset_wish

_D = DeliveryState
REOPENABLE = (JobState.COMPLETED_WITH_FAILURES, JobState.FAILED)


@dataclass(frozen=True)
class Retried:
    """What a retry re-opened. `refused`: why it re-opened nothing, or not all.

    `records` is an estimate where a live walk goes on with what it hadn't come to.
    """

    job: Job
    records: int = 0
    deliveries: int = 0
    refused: str = ""


class ResourcesOwned(RuntimeError):
    """Another job owns a resource that the retry needs; its transaction must roll back."""

    def __init__(self, resources: Sequence[str]) -> None:
        super().__init__("another job owns one of the resources")
        self.resources = resources


_RESOURCES = (
    select(job_resource.c.resource)
    .where(job_resource.c.job_no == bindparam("of_job"))
    .distinct()
    .order_by(job_resource.c.resource)
)
_FAILED_KEYS = select(outcome.c.key).where(outcome.c.job_no == bindparam("of_job"), outcome.c.kind == "failed")
_AGAIN = delivery.c.state.in_((_D.REFUSED, _D.GIVEN_UP))
_REFUSED = delivery.c.state == _D.REFUSED
_REOPEN = (
    update(delivery)
    .where(delivery.c.job_no == bindparam("of_job"), _AGAIN, ~SUPERSEDED)
    .values(
        # only a definite refusal makes another key safe; what was given up may still have happened
        generation=delivery.c.generation + cast(case((_REFUSED, 1), else_=0), Integer),
        state=case((_REFUSED, _D.LATER), else_=_D.UNKNOWN),
        permitted=~_REFUSED,
        attempts_before=delivery.c.attempts,
        first_sent_at=case((_REFUSED, None), else_=delivery.c.first_sent_at),
        turn=bindparam("new_turn"),
        token=None,
        due=func.clock_timestamp(),
        settled_at=None,
    )
)
_COUNT_SUPERSEDED = (
    select(func.count()).select_from(delivery).where(delivery.c.job_no == bindparam("of_job"), _AGAIN, SUPERSEDED)
)


def retry(
    connection: Connection, job_no: int, message: VerbMessage, *, of_round: int, small_max_records: int
) -> Retried:
    """Open the next round of a job that ended with failures, once: `of_round` is the round that the caller saw.

    Lease and turn are taken anew; a round without records needs no lease. Raises JobUnknown and ResourcesOwned.
    """
    job = lock_job(connection, job_no)
    refused = _refusal(connection, job, of_round)
    if refused or not note_message(connection, job, message):
        return Retried(job, refused=refused or "this message was applied before")
    stored = read_selection(connection, job.selection_no)
    types = stored.key_types
    keys = sorted(_open_keys(connection, job, types))
    rest = count_rest(connection, job_no, job.round)
    # what a live walk hasn't come to is known by its count at the start only
    records = len(keys) + (max(rest, job.not_started) if rest else 0)
    turn = _take_turn(connection, job, with_lease=bool(keys or rest))
    superseded = int(connection.execute(_COUNT_SUPERSEDED, {"of_job": job_no}).scalar_one())
    deliveries = connection.execute(_REOPEN, {"of_job": job_no, "new_turn": turn}).rowcount
    if not keys and not rest and not deliveries:
        return Retried(job, refused=_nothing(superseded))
    selection_no = insert_selection(connection, kind=stored.kind, spec=stored.spec, key_types=types)
    freeze_keys(connection, selection_no, types, keys)
    streams = max(1, job.parallelism - rest)
    frozen = cut_ranges(connection, job_no=job_no, round_no=job.round + 1, total=len(keys), parallelism=streams)
    reopen_rest(connection, job_no, job.round, first_no=frozen)
    reset_wish(connection, job_no, Wish.RUN, who=message.who, why=message.why)
    opened = move(
        connection,
        job,
        JobState.ACCEPTED,
        round=job.round + 1,
        selection_no=selection_no,
        turn=turn,
        lane=lane_of(records, small_max_records),
        released_at=None,
        over_at=None,
        reason="",
    )
    return Retried(opened, records, deliveries, _nothing(superseded) if superseded else "")


def resources_of(connection: Connection, job_no: int) -> list[str]:
    """What the job must own."""
    return list(connection.execute(_RESOURCES, {"of_job": job_no}).scalars())


def _refusal(connection: Connection, job: Job, of_round: int) -> str:
    if job.round != of_round:
        return f"it is in round {job.round} already"
    if job.state not in REOPENABLE:
        return f"a job that is {job.state} has nothing to retry"
    if effect.owes(connection, job.job_no):
        return "what it has committed is still being delivered; retry when nothing is owed"
    return ""


def _open_keys(connection: Connection, job: Job, types: Sequence[KeyType]) -> set[Key]:
    failed = connection.execute(_FAILED_KEYS, {"of_job": job.job_no}).scalars()
    keys: set[Key] = {read_key(key, types) for key in failed}
    for low, high in ranges.left_over(connection, job.job_no, job.round):
        keys.update(keys_between(connection, job.selection_no, types, low, high))
    return keys


def _take_turn(connection: Connection, job: Job, *, with_lease: bool) -> int:
    resources = resources_of(connection, job.job_no)
    if with_lease and not lease.acquire(connection, resources, job_no=job.job_no, round_no=job.round + 1):
        raise ResourcesOwned(resources)
    turn = int(connection.execute(select(turn_sequence.next_value())).scalar_one())
    lease.record_turn(connection, resources, job_no=job.job_no, round_no=job.round + 1, turn=turn)
    return turn


def _nothing(superseded: int) -> str:
    if superseded:
        return f"{superseded} refused deliveries are superseded by a later job's for the same records"
    return "no record failed or was left, and no delivery was refused or given up"
