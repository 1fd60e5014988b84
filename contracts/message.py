"""The verbs that people and services say to a running job."""

from dataclasses import dataclass
from enum import StrEnum

from bulklane.contracts.key import shown

SLOWEST_ROWS_PER_SECOND = 0.01
FASTEST_ROWS_PER_SECOND = 1_000_000.0
MOST_PARALLELISM = 64


class Verb(StrEnum):
    """A message to a job; stored as a row before anything acts on it."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    THROTTLE = "throttle"
    RETRY = "retry"
    DECIDE = "decide"


class Verdict(StrEnum):
    """What a person decides about an undecided delivery: send it again under its key, take it as done, give it up."""

    RESEND = "resend"
    DONE = "done"
    GIVE_UP = "give-up"


@dataclass(frozen=True)
class Decision:
    """A verdict on one delivery (effect and record's key), for the doubt that was shown: it hits no newer one."""

    effect: str
    key: str
    doubt: int
    verdict: Verdict


class InvalidThrottle(ValueError):
    """A throttle that can't be meant; `field` names the place, `rule` the value and the rule."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@dataclass(frozen=True)
class Throttle:
    """How fast a job may walk: rows a second over all its ranges, and ranges side by side. None: no limit.

    A throttle replaces the one before as a whole; one without any limit lifts it.
    """

    rows_per_second: float | None = None
    parallelism: int | None = None

    @property
    def lifted(self) -> bool:
        """Whether it limits nothing."""
        return self.rows_per_second is None and self.parallelism is None


def read_throttle(rows_per_second: object, parallelism: object, *, lift: object = None) -> Throttle:
    """A throttle of values that nobody has checked; raises InvalidThrottle."""
    if lift is True and rows_per_second is None and parallelism is None:
        return Throttle()
    if lift not in (None, False):
        raise InvalidThrottle("lift", "takes only true, and neither rows_per_second nor parallelism beside it")
    if rows_per_second is None and parallelism is None:
        raise InvalidThrottle("throttle", "needs rows_per_second, parallelism or both; `lift` takes the limits away")
    return Throttle(_rate(rows_per_second), _ranges(parallelism))


def _rate(value: object) -> float | None:
    if value is None:
        return None
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if SLOWEST_ROWS_PER_SECOND <= number <= FASTEST_ROWS_PER_SECOND:
        return float(number)
    raise InvalidThrottle(
        "rows_per_second",
        f"{shown(value)} is no number from {SLOWEST_ROWS_PER_SECOND:g} to {FASTEST_ROWS_PER_SECOND:,.0f};"
        " to stop the job, pause it",
    )


def _ranges(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PARALLELISM:
        return value
    raise InvalidThrottle(
        "parallelism", f"{shown(value)} is no whole number from 1 to {MOST_PARALLELISM}; to stop the job, pause it"
    )


@dataclass(frozen=True)
class VerbMessage:
    """One message: applied once by its id, whatever is replayed or repeated. `who` and `why` are for people.

    `throttle` goes with that verb.
    """

    message_id: str
    verb: Verb
    who: str = ""
    why: str = ""
    throttle: Throttle | None = None
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class VerbRequest:
    """Write a message of a signal as a row. `run_id` is the run that received it."""

    job_no: int
    message: VerbMessage
    run_id: str
