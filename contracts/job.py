"""A job's states, the arrows between them, and what an activity tells the workflow about its job."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class JobState(StrEnum):
    """Where a job stands; stored in the job's row, shown to people and to Temporal's search attributes."""

    ACCEPTED = "accepted"
    OPENING = "opening"
    FREEZING = "freezing"
    WALKING = "walking"
    DELIVERING = "delivering"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    COMPLETED_WITH_FAILURES = "completed_with_failures"
    CANCELLED = "cancelled"
    FAILED = "failed"
    TERMINATED = "terminated"


class Wish(StrEnum):
    """What is wanted of a job. Cancel (people) and stop (the system) are final in a round."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"
    STOP = "stop"


class Phase(StrEnum):
    """What the workflow has to do for a job in its present state."""

    FREEZE = "freeze"
    WALK = "walk"
    PAUSED = "paused"
    DELIVER = "deliver"
    OVER = "over"


_S = JobState
_ENDS_EARLY = frozenset({_S.CANCELLING, _S.FAILED, _S.TERMINATED})

ALLOWED_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = MappingProxyType(
    {
        # a run of the workflow has stamped this round
        _S.ACCEPTED: _ENDS_EARLY | {_S.OPENING},
        # the selection has to be frozen first, or it was frozen at acceptance
        _S.OPENING: _ENDS_EARLY | {_S.FREEZING, _S.WALKING},
        # blocks and ranges are stored
        _S.FREEZING: _ENDS_EARLY | {_S.WALKING},
        # every range is done; or a pause is wished
        _S.WALKING: _ENDS_EARLY | {_S.DELIVERING, _S.PAUSING},
        # every effect is final; or a pause is wished
        _S.DELIVERING: _ENDS_EARLY | {_S.COMPLETED, _S.COMPLETED_WITH_FAILURES, _S.PAUSING},
        # the ranges are shut: true from here on; or a resume came first
        _S.PAUSING: _ENDS_EARLY | {_S.PAUSED, _S.WALKING, _S.DELIVERING},
        # a resume re-opens the ranges, or goes on delivering
        _S.PAUSED: _ENDS_EARLY | {_S.WALKING, _S.DELIVERING},
        # what was committed is delivered; failed where the system wished the stop
        _S.CANCELLING: frozenset({_S.CANCELLED, _S.FAILED, _S.TERMINATED}),
        # a retry re-opens the failed and not started records as the next round
        _S.COMPLETED_WITH_FAILURES: frozenset({_S.ACCEPTED}),
        _S.FAILED: frozenset({_S.ACCEPTED}),
        # final
        _S.COMPLETED: frozenset(),
        _S.CANCELLED: frozenset(),
        _S.TERMINATED: frozenset(),
    }
)

OVER_STATES: tuple[JobState, ...] = (
    _S.COMPLETED,
    _S.COMPLETED_WITH_FAILURES,
    _S.CANCELLED,
    _S.FAILED,
    _S.TERMINATED,
)

_PHASES: Mapping[JobState, Phase] = MappingProxyType(
    {
        _S.ACCEPTED: Phase.PAUSED,
        _S.OPENING: Phase.PAUSED,
        _S.FREEZING: Phase.FREEZE,
        _S.WALKING: Phase.WALK,
        _S.DELIVERING: Phase.DELIVER,
        _S.PAUSING: Phase.PAUSED,
        _S.PAUSED: Phase.PAUSED,
        _S.CANCELLING: Phase.DELIVER,
    }
)


def phase_of(state: JobState) -> Phase:
    """The workflow's phase for a state; every terminal state is `over`."""
    return _PHASES.get(state, Phase.OVER)


def check_transition(old: JobState, new: JobState) -> None:
    """Raise ValueError where the table has no arrow from `old` to `new`."""
    if new not in ALLOWED_TRANSITIONS[old]:
        raise ValueError(f"a job can't go from {old} to {new}")


@dataclass(frozen=True)
class JobView:
    """What the database says of a job at one moment: ids, counters and states, never record content.

    Times are in seconds. New fields have defaults, and none is ever removed: old histories hold old answers.
    """

    job_no: int
    job_id: str
    tenant: str
    operation: str
    round: int
    state: JobState
    phase: Phase
    lane: str
    ranges: int
    channels: list[str]
    total: int | None = None
    processed: int = 0
    owed: int = 0
    reason: str = ""
    segment_seconds: float = 5.0
    deliver_seconds: float = 120.0
    heartbeat_seconds: float = 3.0
    search_attributes: bool = False
    calls_out: int = 0
    undecided: int = 0
