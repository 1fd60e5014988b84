"""The verbs that people and services say to a running job."""

from dataclasses import dataclass
from enum import StrEnum


class Verb(StrEnum):
    """A message to a job; stored as a row before anything acts on it."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"


@dataclass(frozen=True)
class VerbMessage:
    """One message: applied once by its id, whatever is replayed or repeated. `who` and `why` are for people."""

    message_id: str
    verb: Verb
    who: str = ""
    why: str = ""


@dataclass(frozen=True)
class VerbRequest:
    """Write a message of a signal as a row. `run_id` is the run that received it."""

    job_no: int
    message: VerbMessage
    run_id: str
