"""What people see of a job in the Temporal UI."""

from collections.abc import Mapping
from dataclasses import replace

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from bulklane.contracts.job import JobView
from bulklane.contracts.search_attribute import SEARCH_ATTRIBUTES
from bulklane.contracts.walk import SegmentAnswer

TENANT, OPERATION, LANE, STATE = (SearchAttributeKey.for_keyword(name) for name in SEARCH_ATTRIBUTES)


def show_job(job: JobView, waits: Mapping[str, str], ignored: str) -> None:
    """Current details and, where the server knows them, search attributes."""
    workflow.set_current_details(details(job, waits, ignored))
    if not job.search_attributes:
        return
    wanted = {TENANT: job.tenant, OPERATION: job.operation, LANE: job.lane, STATE: str(job.state)}
    known = workflow.info().typed_search_attributes
    updates = [key.value_set(value) for key, value in wanted.items() if known.get(key) != value]
    if updates:
        workflow.upsert_search_attributes(updates)


def show_progress(job: JobView, answer: SegmentAnswer, waits: Mapping[str, str], ignored: str) -> None:
    """Current details between two looks, from a segment's answer."""
    at_least = max(job.processed, answer.processed)
    workflow.set_current_details(details(replace(job, processed=at_least, owed=answer.owed), waits, ignored))


def details(job: JobView, waits: Mapping[str, str], ignored: str = "") -> str:
    """Progress, what the job waits for, and the last message that could not be read, as Markdown."""
    total = "not counted yet" if job.total is None else str(job.total)
    lines = [
        f"**{job.state}**, round {job.round}, {job.lane} lane",
        f"records: {job.processed} of {total}; effects owed: {job.owed}",
    ]
    if job.calls_out:
        lines.append(f"provider calls still out: {job.calls_out}")
    if job.undecided:
        lines.append(f"effects undecided: {job.undecided}; each waits for a decision (the signal `decide`)")
    if job.reason:
        lines.append(f"reason: {job.reason}")
    lines += [f"{stream} waits: {why}" for stream, why in waits.items()]
    if ignored:
        lines.append(f"ignored: {ignored}")
    return "\n\n".join(lines)
