"""What an operator sees of a job in the Temporal UI."""

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.job import JobState
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import Handle, result, running

pytestmark = pytest.mark.anyio


async def current_details(handle: Handle) -> str:
    """The text in the UI, while it runs."""
    shown: WorkflowMetadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return shown.current_details


async def test_search_attributes_follow_the_job_where_the_server_knows_them(client: Client) -> None:
    async with running(client, FakeJob(view={"search_attributes": True})) as handle:
        await result(handle)
        found = (await handle.describe()).typed_search_attributes
    shown = [found.get(SearchAttributeKey.for_keyword(name)) for name in ("Tenant", "Operation", "Lane", "State")]
    assert shown == ["acme", "close_accounts", "small", "completed"]


async def test_no_search_attribute_is_touched_where_the_server_may_not_know_them(client: Client) -> None:
    async with running(client, FakeJob()) as handle:
        await result(handle)
        assert "Tenant" not in {pair.key.name for pair in (await handle.describe()).typed_search_attributes}


async def test_current_details_tell_what_the_job_waits_for_and_no_longer_when_it_does_not(client: Client) -> None:
    held = DeliverAnswer(DeliverEnd.HELD, 0, "the provider answers 401", 3600.0)
    job = FakeJob(
        state=JobState.DELIVERING,
        released=True,
        held=True,
        owed={"notices": 1},
        answers={"notices": [held]},
        view={"undecided": 3},
    )
    async with running(client, job) as handle:

        async def tells() -> bool:
            return held.reason in await current_details(handle)

        async def tells_no_more() -> bool:
            return not await tells() and job.count("deliver notices") == 2

        await until_async(tells, what="the reason")
        assert "**delivering**, round 1, small lane" in await current_details(handle)
        assert "effects owed: 1" in await current_details(handle)
        assert "effects undecided: 3" in await current_details(handle)
        await handle.signal("look")
        await until_async(tells_no_more, what="no reason left")


async def test_activities_carry_a_summary(client: Client) -> None:
    async with running(client, FakeJob(ranges=1, to_freeze=True)) as handle:
        await result(handle)
        texts = [event.user_metadata.summary.data.decode() async for event in handle.fetch_history_events()]
    summaries = [text.strip('"') for text in texts if text]
    assert sorted(summaries) == [
        "close",
        "deliver notices",
        "freeze the selection",
        "look",
        "open job",
        "range 0",
        "release",
    ]
