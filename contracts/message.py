"""The verbs that people and services say to a running job."""

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """A message to a job; stored as a row before anything acts on it."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
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


@dataclass(frozen=True)
class VerbMessage:
    """One message: applied once by its id, whatever is replayed or repeated. `who` and `why` are for people."""

    message_id: str
    verb: Verb
    who: str = ""
    why: str = ""
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class VerbRequest:
    """Write a message of a signal as a row. `run_id` is the run that received it."""

    job_no: int
    message: VerbMessage
    run_id: str
