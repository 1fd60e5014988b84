"""Effects: what a delivery activity is asked and answers, delivery states, and the idempotency key."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

MAX_KEY_LENGTH = 255
LONGEST_PREFIX = 100


class DeliveryState(StrEnum):
    """Where one effect for one record stands, from its first sending on."""

    SENDING = "sending"
    DONE = "done"
    REFUSED = "refused"
    LATER = "later"
    UNKNOWN = "unknown"
    UNDECIDED = "undecided"
    GIVEN_UP = "given_up"


FINAL_DELIVERY_STATES: tuple[DeliveryState, ...] = (
    DeliveryState.DONE,
    DeliveryState.REFUSED,
    DeliveryState.UNDECIDED,
    DeliveryState.GIVEN_UP,
)


@dataclass(frozen=True)
class DeliverRequest:
    """Deliver what one job owes on one channel, for about `seconds`; `shown`: what people see that it waits for."""

    job_no: int
    channel: str
    seconds: float
    shown: str = ""


class DeliverEnd(StrEnum):
    """Why a delivery activity came back."""

    DONE = "done"
    CONTINUE = "continue"
    PAUSED = "paused"
    HELD = "held"
    WAITING = "waiting"


@dataclass(frozen=True)
class DeliverAnswer:
    """Why the delivery ended, how many effects it settled, and what it waits for."""

    end: DeliverEnd
    settled: int = 0
    reason: str = ""
    retry_seconds: float = 0.0


def idempotency_key(job_id: str, effect: str, record_key: str, generation: int) -> str:
    """The provider's key of one delivery: the same for every attempt, other for every job, effect, record, generation.

    Printable ASCII of at most 255 characters, since providers refuse others (Stripe documents that limit); a longer
    one is replaced by its digest.
    """
    key = f"{key_prefix(job_id, effect)}{quote(record_key, safe='')}/{generation}"
    if len(key) <= MAX_KEY_LENGTH:
        return key
    return f"{quote(job_id, safe='')[:LONGEST_PREFIX]}/sha256-{hashlib.sha256(key.encode()).hexdigest()}"


def key_prefix(job_id: str, effect: str | None = None) -> str:
    """What every key of a job begins with (digests too), or every key of one of its effects (digests not)."""
    job = quote(job_id, safe="")
    return job[:LONGEST_PREFIX] if effect is None else f"{job}/{quote(effect, safe='')}/"
