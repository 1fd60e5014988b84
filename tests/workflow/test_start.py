"""What a start may be given, and which failures end it."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from bulklane.contracts.failure import FINAL_FAILURES, FailureType
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, result, skip, skipping

pytestmark = pytest.mark.anyio


async def failure_type(handle: Handle) -> str | None:
    """The type of what ended the workflow."""
    with pytest.raises(WorkflowFailureError) as failed:
        await result(handle)
    cause: BaseException | None = failed.value.cause
    while isinstance(cause, ActivityError):
        cause = cause.cause
    assert isinstance(cause, ApplicationError)
    return cause.type


@pytest.mark.parametrize(
    "arguments",
    [(), (None,), (5,), ("text",), ([1, 2],), ({}, {}, {}), ({"operation": "unknown"},), (float("nan"),)],
    ids=repr,
)
async def test_what_open_job_refuses_ends_the_workflow(arguments: tuple[Any, ...]) -> None:
    refusal = ApplicationError("refused", type=FailureType.INVALID_START, non_retryable=True)
    job = FakeJob(failing={"open": [refusal]})
    async with skipping(job, *arguments) as (env, handle):
        await skip(env)
        assert await failure_type(handle) == "InvalidStart"
    assert len(job.starts) == 1
    assert repr(job.starts[0]) == repr(list(arguments)), "open_job is given what the start was given"


@pytest.mark.parametrize("argument", [b"\x00\xff", {"ids": "ü" * 500_000}], ids=["bytes", "longer as JSON"])
async def test_what_no_activity_could_be_given_ends_the_workflow(argument: Any) -> None:
    job = FakeJob()
    async with skipping(job, argument) as (env, handle):
        await skip(env)
        assert await failure_type(handle) == "InvalidStart"
    assert job.log == []


@pytest.mark.parametrize("failure", FINAL_FAILURES)
async def test_a_final_failure_ends_the_workflow_at_once(failure: FailureType) -> None:
    job = FakeJob(failing={"open": [ApplicationError("no", type=failure)]})
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await failure_type(handle) == failure
    assert job.log == ["open"]


@pytest.mark.parametrize("step", ["range 0", "deliver notices", "release", "close"])
async def test_any_other_failure_is_retried(step: str) -> None:
    failures = [t for t in FailureType if t not in FINAL_FAILURES]
    channels = ["notices"] if step == "deliver notices" else []
    job = FakeJob(
        ranges=1, channels=channels, failing={step: [ApplicationError("again", type=failure) for failure in failures]}
    )
    async with skipping(job) as (env, handle):
        await skip(env)
        assert await result(handle) == "completed"
    assert job.count(step) == len(failures) + 1
