"""What people see of a job in the Temporal UI, and what a signal's arguments mean."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from bulklane.contracts.job import JobView
from bulklane.contracts.message import Verb, VerbMessage
from bulklane.contracts.walk import SegmentAnswer

TENANT = SearchAttributeKey.for_keyword("Tenant")
OPERATION = SearchAttributeKey.for_keyword("Operation")
LANE = SearchAttributeKey.for_keyword("Lane")
STATE = SearchAttributeKey.for_keyword("State")

LONGEST_TEXT = 200


def show_job(job: JobView, waits: Mapping[str, str]) -> None:
    """Current details and, where the server knows them, search attributes."""
    workflow.set_current_details(details(job, waits))
    if not job.search_attributes:
        return
    wanted = {TENANT: job.tenant, OPERATION: job.operation, LANE: job.lane, STATE: str(job.state)}
    known = workflow.info().typed_search_attributes
    updates = [key.value_set(value) for key, value in wanted.items() if known.get(key) != value]
    if updates:
        workflow.upsert_search_attributes(updates)


def show_progress(job: JobView, answer: SegmentAnswer, waits: Mapping[str, str]) -> None:
    """Current details between two looks, from a segment's answer."""
    at_least = max(job.processed, answer.processed)
    workflow.set_current_details(details(replace(job, processed=at_least, owed=answer.owed), waits))


def details(job: JobView, waits: Mapping[str, str]) -> str:
    """Progress and what the job waits for, as Markdown."""
    total = "not counted yet" if job.total is None else str(job.total)
    lines = [
        f"**{job.state}**, round {job.round}, {job.lane} lane",
        f"records: {job.processed} of {total}; effects owed: {job.owed}",
    ]
    if job.reason:
        lines.append(f"reason: {job.reason}")
    lines += [f"{stream} waits: {why}" for stream, why in waits.items()]
    return "\n\n".join(lines)


def read_message(verb: Verb, arguments: Sequence[Any], default_id: str) -> VerbMessage:
    """A signal's message: why, who and message id in this order, or one object with these names; all optional."""
    given: Mapping[Any, Any] = {}
    if arguments and isinstance(arguments[0], Mapping):
        given = arguments[0]
    else:
        given = dict(zip(("why", "who", "message_id"), arguments, strict=False))
    why, who, message_id = (_text(given.get(name)) for name in ("why", "who", "message_id"))
    return VerbMessage(message_id or default_id, verb, who or "signal", why)


def _text(value: Any) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""
