"""What a caller is told of a job."""

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.job import OVER_STATES, JobState
from bulklane.database import effect
from bulklane.database import range as ranges
from bulklane.database.hold import waits_of
from bulklane.database.job import Job, JobUnknown, find_job
from bulklane.database.selection import read_selection
from bulklane.database.throttle import Throttled, read_throttled
from bulklane.database.trouble import slowed_by
from bulklane.database.wish import read_wish


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment. `processed` never falls and never passes `total`; `owed` effects are not final yet.

    `slowed_by`: why the walk is slower than it could be, or stands still; empty where it isn't.
    `live`: a walk in key order without frozen keys. Its total is counted at the start, grows where more is met, and is
    what was met when it has come to its end.
    `calls_out`: how many provider calls may be on their way. `waits`: by channel, what keeps its effects back.
    """

    job_id: str
    tenant: str
    operation: str
    lane: str
    state: JobState
    reason: str
    round: int
    total: int | None
    duplicates: int
    processed: int
    changed: int
    skipped: int
    failed: int
    not_found: int
    not_started: int | None
    owed: int
    deliveries: dict[str, dict[str, int]]
    who: str
    why: str
    wish: str
    wished_by: str
    wished_why: str
    accepted_at: datetime
    selected_at: datetime | None
    opened_at: datetime | None
    released_at: datetime | None
    over_at: datetime | None
    owed_at_freeze: int | None = None
    """Of a search: effects that were owed to the index when it was searched, so that it was behind by them."""
    throttle: Throttled | None = None
    slowed_by: tuple[str, ...] = ()
    live: bool = False
    calls_out: int = 0
    waits: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether the state is a terminal one."""
        return self.state in OVER_STATES

    @property
    def undecided(self) -> int:
        """How many deliveries wait for a decision."""
        return sum(states.get(DeliveryState.UNDECIDED, 0) for states in self.deliveries.values())


def read_status(connection: Connection, job_id: str, tenant: str | None = None) -> JobStatus:
    """The status of a job; raises JobUnknown, also for another tenant's."""
    job = find_job(connection, job_id, tenant)
    if job is None:
        raise JobUnknown(f"there is no job {job_id!r}")
    return _status(connection, job)


def _status(connection: Connection, job: Job) -> JobStatus:
    counters = ranges.counters(connection, job.job_no, job.round)
    selection = read_selection(connection, job.first_selection_no)
    wanted = read_wish(connection, job.job_no)
    total = None if job.total is None else max(job.total, counters.processed)
    owed = effect.count_owed(connection, job.job_no)
    deliveries: dict[str, dict[str, int]] = {}
    for channel, state, count in effect.tally(connection, job.job_no):
        deliveries.setdefault(channel, {})[state] = count
    return JobStatus(
        job_id=job.job_id,
        tenant=job.tenant,
        operation=job.operation,
        lane=job.lane,
        state=job.state,
        reason=job.reason,
        round=job.round,
        total=total,
        duplicates=selection.duplicates,
        processed=counters.processed,
        changed=counters.changed,
        skipped=counters.skipped,
        failed=counters.failed,
        not_found=counters.not_found,
        not_started=None if total is None else total - counters.processed,
        owed=owed,
        deliveries=deliveries,
        who=job.who,
        why=job.why,
        wish=wanted.wish,
        wished_by=wanted.who,
        wished_why=wanted.why,
        accepted_at=job.accepted_at,
        selected_at=selection.selected_at,
        opened_at=job.opened_at,
        released_at=job.released_at,
        over_at=job.over_at,
        owed_at_freeze=selection.owed_at_freeze,
        throttle=read_throttled(connection, job.job_no),
        slowed_by=tuple(slowed_by(connection, job.job_no, job.round)) if job.state is JobState.WALKING else (),
        live=selection.live,
        calls_out=sum(states.get(DeliveryState.SENDING, 0) for states in deliveries.values()),
        waits=waits_of(connection, job.job_no) if owed else {},
    )
