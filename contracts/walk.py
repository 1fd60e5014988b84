"""What the workflow and a segment say to each other."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class SegmentRequest:
    """Walk one range of one round for about `seconds`."""

    job_no: int
    round: int
    range_no: int
    seconds: float


class SegmentEnd(StrEnum):
    """Why a segment came back."""

    DONE = "done"
    CONTINUE = "continue"
    SHUT = "shut"
    WISH = "wish"
    HELD = "held"


@dataclass(frozen=True)
class SegmentAnswer:
    """Why the segment ended, and for people: how many records of the job are processed and effects owed by now.

    `reason`: why it was slower than it could be. Where it is held, nothing is to be tried for `retry_seconds`.
    """

    end: SegmentEnd
    processed: int = 0
    owed: int = 0
    reason: str = ""
    retry_seconds: float = 0.0


@dataclass(frozen=True)
class FreezeRequest:
    """Expand the selection of one round into blocks and ranges."""

    job_no: int
    round: int
