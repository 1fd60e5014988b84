"""The one function that moves a job: looks at wish, ranges and debts under the job row's lock, takes each step due.

Anyone may call it at any time: the workflow's activities, the control loop, a second run, a repeated attempt.
"""

from sqlalchemy import Connection

from bulklane.contracts.job import JobState, Wish
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.database import effect, lease
from bulklane.database import range as ranges
from bulklane.database.decide import decide
from bulklane.database.job import Job, fix_counters, lock_job, move
from bulklane.database.selection import read_selection
from bulklane.database.wish import Wanted, note_looked, read_wish, receive

_S = JobState


class JobMovedOn(RuntimeError):
    """The job isn't what the caller saw; its transaction must roll back."""


def advance(connection: Connection, job_no: int, *, heard_by: str) -> Job:
    """Take every step that is due; the job as it then stands. Raises JobUnknown.

    The statements after a shut are new ones: they see what the chunks that it waited for have committed.
    """
    job = lock_job(connection, job_no)
    wanted = read_wish(connection, job_no)
    while (moved := _step(connection, job, wanted)) is not None:
        job = moved
    note_looked(connection, job_no, wanted.wished_at, heard_by=heard_by)
    return job


def apply_message(connection: Connection, job_no: int, message: VerbMessage) -> Job:
    """Write a verb as a row, once by its id, and show at once what it begins (`pausing`, `cancelling`)."""
    job = lock_job(connection, job_no)
    if message.verb is Verb.DECIDE:
        decide(connection, job_no, message)
        return job
    if receive(connection, job, message):
        job = _heed(connection, job, read_wish(connection, job_no)) or job
    return job


def open_round(connection: Connection, job_no: int) -> Job:
    """Move an accepted job on; any other stays where it is."""
    job = lock_job(connection, job_no)
    return move(connection, job, _S.OPENING) if job.state is _S.ACCEPTED else job


def settle(
    connection: Connection, job_no: int, *, round_no: int, run_id: str | None, epochs: int, state: JobState, reason: str
) -> bool:
    """End a job whose workflow is closed: shut, release, terminal at once, even while it owes.

    False where the job had moved on since the caller looked; raises JobMovedOn where it did so meanwhile.
    """
    job = lock_job(connection, job_no)
    if job.over or (job.round, job.run_id) != (round_no, run_id) or job.opened_round != job.round:
        return False
    ranges.shut(connection, job_no, job.round)
    if ranges.sum_of_epochs(connection, job_no) != epochs:
        raise JobMovedOn(f"an attempt has taken a range of job {job.job_id} since")
    move(connection, _release(connection, job), state, reason=reason)
    return True


def _heed(connection: Connection, job: Job, wanted: Wanted) -> Job | None:
    """What a wish begins; None where it begins nothing."""
    if wanted.wish in (Wish.CANCEL, Wish.STOP) and not job.over and job.state is not _S.CANCELLING:
        return move(connection, job, _S.CANCELLING, reason=wanted.why)
    if wanted.wish is Wish.PAUSE and job.state in (_S.WALKING, _S.DELIVERING):
        return move(connection, job, _S.PAUSING)
    return None


def _step(connection: Connection, job: Job, wanted: Wanted) -> Job | None:
    if (heeded := _heed(connection, job, wanted)) is not None:
        return heeded
    match job.state:
        case _S.OPENING:
            return _begin(connection, job)
        case _S.WALKING if ranges.all_done(connection, job.job_no, job.round):
            return move(connection, _release(connection, job, keep_lease=job.hold_lease), _S.DELIVERING)
        case _S.PAUSING | _S.PAUSED if wanted.wish is Wish.RUN:
            return _go_on(connection, job)
        case _S.PAUSING:
            ranges.shut(connection, job.job_no, job.round)
            return move(connection, job, _S.PAUSED)
        case _S.CANCELLING if job.released_at is None:
            return _release(connection, job, keep_lease=job.hold_lease)
        case _S.CANCELLING | _S.DELIVERING if not effect.owes(connection, job.job_no):
            return _close(connection, job, wanted)
        case _:
            return None


def _begin(connection: Connection, job: Job) -> Job:
    stated = read_selection(connection, job.selection_no).stated
    return move(connection, job, _S.FREEZING if stated else _S.WALKING)


def _go_on(connection: Connection, job: Job) -> Job:
    if job.released_at is not None:
        return move(connection, job, _S.DELIVERING)
    ranges.reopen(connection, job.job_no, job.round)
    return move(connection, job, _S.WALKING)


def _release(connection: Connection, job: Job, *, keep_lease: bool = False) -> Job:
    """Shut the ranges, fix the counters, free the lease.

    `keep_lease`: the operation holds on until the effects of what was committed are final. Only a settled job, whose
    workflow is closed, holds nothing.
    """
    ranges.shut(connection, job.job_no, job.round)
    counters = ranges.counters(connection, job.job_no, job.round)
    if not keep_lease:
        lease.release(connection, job_no=job.job_no, round_no=job.round)
    total = _final_total(connection, job, counters.processed)
    return fix_counters(connection, job, counters, total=total, not_started=(total or 0) - counters.processed)


def _final_total(connection: Connection, job: Job, processed: int) -> int | None:
    """A live walk's total was counted at its start; when it has come to its end, it is what it has met."""
    if job.total is None or not read_selection(connection, job.first_selection_no).live:
        return job.total
    return processed if ranges.all_done(connection, job.job_no, job.round) else max(job.total, processed)


def _close(connection: Connection, job: Job, wanted: Wanted) -> Job:
    lease.release(connection, job_no=job.job_no, round_no=job.round)
    if job.state is _S.CANCELLING:
        return move(connection, job, _S.FAILED if wanted.wish is Wish.STOP else _S.CANCELLED)
    troubled = job.failed > 0 or effect.any_unsuccessful(connection, job.job_no)
    return move(connection, job, _S.COMPLETED_WITH_FAILURES if troubled else _S.COMPLETED)
