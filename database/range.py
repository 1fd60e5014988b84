"""Ranges: which attempt may walk one, where it stands, and shutting them all."""

from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, case, false, func, or_, select, update

from bulklane.database.tables import range_

_ONE = and_(
    range_.c.job_no == bindparam("of_job"),
    range_.c.round == bindparam("of_round"),
    range_.c.no == bindparam("of_no"),
)
MOST_DEATHS = 5
# of a record that stands alone, the first death may be chance too
MOST_BLAMELESS = MOST_DEATHS + 1
LARGEST_CHUNK = 5000
_SHRINK = 6


def largest_after(deaths: int) -> int:
    """How many records a chunk may take at a place where workers have died: one after five deaths."""
    return max(1, LARGEST_CHUNK // int(_SHRINK**deaths))


def largest_chunk(deaths: ColumnElement[int]) -> ColumnElement[int]:
    """The same as an expression."""
    known = {number: largest_after(number) for number in range(MOST_DEATHS)}
    return case(known, value=deaths, else_=1)


_ALL = and_(range_.c.job_no == bindparam("of_job"), range_.c.round == bindparam("of_round"))


@dataclass(frozen=True)
class RangeRef:
    """One range of one round."""

    job_no: int
    round: int
    range_no: int


@dataclass(frozen=True)
class Standing:
    """Where a range stands: cursor and end, whose epoch, whether open, and how many attempts died at the cursor."""

    lo: int
    hi: int
    cursor: int
    epoch: int
    open: bool
    deaths: int
    suspect_to: int
    chunk_size: int
    cursor_key: str | None = None
    bound_key: str | None = None

    @property
    def live(self) -> bool:
        """Whether it is walked in key order up to its bound; else by the ordinals of frozen keys."""
        return self.bound_key is not None

    @property
    def done(self) -> bool:
        """Whether every record of the range has its outcome."""
        return self.cursor >= self.hi

    def at(self, cursor: int) -> "Standing":
        """The same range further on; past the records that were suspected, its deaths are over."""
        return replace(self, cursor=cursor, deaths=0 if cursor >= self.suspect_to else self.deaths)


@dataclass(frozen=True)
class Counters:
    """What became of records."""

    changed: int = 0
    skipped: int = 0
    failed: int = 0
    not_found: int = 0

    @property
    def processed(self) -> int:
        """How many records have an outcome."""
        return self.changed + self.skipped + self.failed + self.not_found


# An epoch that ended without progress and without saying so is a death of the chunk at its cursor. From then on, until
# the records that it may have been about are passed, each disorderly end narrows them down. Only a record that stood
# alone, and at which two epochs ended without any progress, is blamed: workers may be killed for reasons of their own.
_STUCK = range_.c.epoch_cursor == range_.c.cursor
_SUSPECTED = range_.c.cursor < func.coalesce(range_.c.suspect_to, 0)
_DIED = and_(range_.c.epoch > 0, ~range_.c.orderly, or_(_STUCK, _SUSPECTED))
_COUNTS = and_(_DIED, or_(_STUCK, range_.c.deaths < MOST_DEATHS))
_TAKE = (
    update(range_)
    .where(_ONE, range_.c.epoch < bindparam("mine"))
    .values(
        epoch=bindparam("mine"),
        epoch_cursor=range_.c.cursor,
        orderly=false(),
        slowed_by="",
        deaths=case((_COUNTS, range_.c.deaths + 1), else_=range_.c.deaths),
        suspect_to=case(
            (_DIED, range_.c.cursor + largest_chunk(range_.c.deaths)),
            else_=range_.c.suspect_to,
        ),
    )
)
_LEAVE = (
    update(range_).where(_ONE, range_.c.epoch == bindparam("mine")).values(orderly=True, chunk_size=bindparam("size"))
)
_READ = select(
    range_.c.lo,
    range_.c.hi,
    range_.c.cursor,
    range_.c.epoch,
    range_.c.open,
    range_.c.deaths,
    func.coalesce(range_.c.suspect_to, 0).label("suspect_to"),
    range_.c.chunk_size,
    range_.c.cursor_key,
    range_.c.bound_key,
).where(_ONE)
_SHUT = update(range_).where(_ALL, range_.c.open).values(open=False)
_REOPEN = update(range_).where(_ALL, ~range_.c.open).values(open=True)
_UNDONE: Select[int] = select(func.count()).select_from(range_).where(_ALL, range_.c.cursor < range_.c.hi)
_UNDONE_BEFORE = _UNDONE.where(range_.c.no < bindparam("of_no"))
# a round re-opens what failed in the rounds before: only the last one's failures stand
_STANDING = case((range_.c.round == bindparam("of_round"), range_.c.failed), else_=0)
_COUNTERS = select(
    *(
        func.coalesce(func.sum(counter), 0)
        for counter in (range_.c.changed, range_.c.skipped, _STANDING, range_.c.not_found)
    )
).where(range_.c.job_no == bindparam("of_job"), range_.c.round <= bindparam("of_round"))
_ROUND_COUNTERS = select(
    *(
        func.coalesce(func.sum(one), 0)
        for one in (range_.c.changed, range_.c.skipped, range_.c.failed, range_.c.not_found)
    )
).where(_ALL)
_COUNT: Select[int] = select(func.count()).select_from(range_).where(_ALL)
_EPOCHS = select(func.coalesce(func.sum(range_.c.epoch), 0)).where(range_.c.job_no == bindparam("of_job"))


def take(connection: Connection, ref: RangeRef, epoch: int) -> Standing:
    """Write the epoch into the range where it is later than what stands there; the range as it then stands.

    The caller owns the range only where the answer carries its epoch.
    """
    connection.execute(_TAKE, _of(ref) | {"mine": epoch})
    return read(connection, ref)


def read(connection: Connection, ref: RangeRef) -> Standing:
    """Where the range stands now."""
    row = connection.execute(_READ, _of(ref)).one()
    return Standing(**row._mapping)


def leave(connection: Connection, ref: RangeRef, epoch: int, chunk_size: int) -> None:
    """Say that the epoch ends in order, and which chunk size it had come to."""
    connection.execute(_LEAVE, _of(ref) | {"mine": epoch, "size": chunk_size})


def shut(connection: Connection, job_no: int, round_no: int) -> None:
    """Shut every range of the round: waits for the chunks in flight; none commits afterwards."""
    connection.execute(_SHUT, {"of_job": job_no, "of_round": round_no})


def reopen(connection: Connection, job_no: int, round_no: int) -> None:
    """Open every range of the round again."""
    connection.execute(_REOPEN, {"of_job": job_no, "of_round": round_no})


def all_done(connection: Connection, job_no: int, round_no: int) -> bool:
    """Whether no range of the round has records left."""
    return connection.execute(_UNDONE, {"of_job": job_no, "of_round": round_no}).scalar_one() == 0


def count_ranges(connection: Connection, job_no: int, round_no: int) -> int:
    """How many ranges the round was cut into; 0 until it is frozen."""
    return int(connection.execute(_COUNT, {"of_job": job_no, "of_round": round_no}).scalar_one())


def undone_before(connection: Connection, ref: RangeRef) -> int:
    """How many ranges of the round with smaller numbers have records left."""
    return int(connection.execute(_UNDONE_BEFORE, _of(ref)).scalar_one())


def counters(connection: Connection, job_no: int, round_no: int) -> Counters:
    """What became of the job's records by the end of this round, added up over the ranges."""
    row = connection.execute(_COUNTERS, {"of_job": job_no, "of_round": round_no}).one()
    return Counters(*(int(value) for value in row))


def round_counters(connection: Connection, job_no: int, round_no: int) -> Counters:
    """What became of the records of this round alone."""
    row = connection.execute(_ROUND_COUNTERS, {"of_job": job_no, "of_round": round_no}).one()
    return Counters(*(int(value) for value in row))


_LEFT_OVER = (
    select(range_.c.cursor, range_.c.hi)
    .where(_ALL, range_.c.cursor < range_.c.hi, range_.c.bound_key.is_(None))
    .order_by(range_.c.no)
)


def left_over(connection: Connection, job_no: int, round_no: int) -> list[tuple[int, int]]:
    """The ordinals (from, to exclusive) of the round's frozen selection that have no outcome."""
    rows = connection.execute(_LEFT_OVER, {"of_job": job_no, "of_round": round_no})
    return [(int(row.cursor), int(row.hi)) for row in rows]


def sum_of_epochs(connection: Connection, job_no: int) -> int:
    """A number that grows whenever any attempt takes any range of the job."""
    return int(connection.execute(_EPOCHS, {"of_job": job_no}).scalar_one())


def _of(ref: RangeRef) -> dict[str, int]:
    return {"of_job": ref.job_no, "of_round": ref.round, "of_no": ref.range_no}
