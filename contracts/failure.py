"""Failure type names that cross the wire, and which of them no retry can help.

BulklaneFailure
├── InvalidStart      the start argument can't be read, or names no known operation      final
├── LeaseHeld         another job owns one of the resources                              final
├── JobIdReused       the same job id with other content                                 final
├── Overloaded        no room; a time to come back is in the details                     final
├── Superseded        a later attempt owns the range                                     retried after a delay
├── Yielded           the attempt gave way to a pause, a reset or a cancellation         retried
├── DatabaseTrouble   lost connection, time-outs, deadlocks beyond the segment           retried
├── SearchTrouble     the search engine is away, or has lost the point in time           retried
└── OperationMissing  the operation is not deployed on this worker                       retried
"""

from enum import StrEnum


class FailureType(StrEnum):
    """The `type` of each ApplicationError that leaves an activity."""

    INVALID_START = "InvalidStart"
    LEASE_HELD = "LeaseHeld"
    JOB_ID_REUSED = "JobIdReused"
    OVERLOADED = "Overloaded"
    SUPERSEDED = "Superseded"
    YIELDED = "Yielded"
    DATABASE_TROUBLE = "DatabaseTrouble"
    SEARCH_TROUBLE = "SearchTrouble"
    OPERATION_MISSING = "OperationMissing"
    PAYLOADS_TOO_LARGE = "PayloadsTooLarge"


FINAL_FAILURES: tuple[FailureType, ...] = (
    FailureType.INVALID_START,
    FailureType.LEASE_HELD,
    FailureType.JOB_ID_REUSED,
    FailureType.OVERLOADED,
    # Temporal's own name; its default is to retry for ever what can never fit
    FailureType.PAYLOADS_TOO_LARGE,
)
