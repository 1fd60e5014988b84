"""Every activity that a workflow may call: its name and types. The bodies are in `activities/`, under these names."""

from typing import Any

from temporalio import activity

from bulklane.contracts.effect import DeliverAnswer, DeliverRequest
from bulklane.contracts.job import JobView
from bulklane.contracts.message import VerbRequest
from bulklane.contracts.walk import FreezeRequest, SegmentAnswer, SegmentRequest


@activity.defn
def open_job(start_arguments: list[Any]) -> JobView:
    """Accept a direct start, stamp round and run, answer with what stands. Raises the final failures."""
    raise NotImplementedError


@activity.defn
def look(job_no: int) -> JobView:
    """Take each step of the job that is due."""
    raise NotImplementedError


@activity.defn
def release(job_no: int) -> JobView:
    """The rows are done: fix the counters, free the lease."""
    raise NotImplementedError


@activity.defn
def close(job_no: int) -> JobView:
    """The effects are final: the terminal state."""
    raise NotImplementedError


@activity.defn
def apply_verb(request: VerbRequest) -> None:
    """Write what a signal asks for as a row."""
    raise NotImplementedError


@activity.defn
def freeze(request: FreezeRequest) -> None:
    """Expand the selection into blocks and ranges."""
    raise NotImplementedError


@activity.defn
def segment(request: SegmentRequest) -> SegmentAnswer:
    """Walk chunks of one range until its time budget ends."""
    raise NotImplementedError


@activity.defn
async def deliver(request: DeliverRequest) -> DeliverAnswer:
    """Send what the job owes on one channel until nothing is owed or the budget ends."""
    raise NotImplementedError
