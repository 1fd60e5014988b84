"""Pause and resume by signals, whatever is in them."""

from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from bulklane.contracts.effect import DeliverAnswer, DeliverEnd
from bulklane.contracts.failure import FailureType
from bulklane.contracts.job import JobState
from bulklane.contracts.message import Decision, Verb, VerbMessage, Verdict
from tests.support.waiting import until_async
from tests.workflow.fake_job import FakeJob
from tests.workflow.serving import logged, result, running

pytestmark = pytest.mark.anyio

ODD_ARGUMENTS: list[list[Any]] = [
    [],
    [None],
    [1, 2, 3],
    ["why", "who", "id-1", "surplus", {"more": "surplus"}],
    [{"why": 3, "who": ["x"], "message_id": {}, "surplus": 1}],
    [["a", "list"]],
    [b"\x00\xff"],
    ["NUL \x00", "half a pair \ud800", "id \x00\ud800"],
    ["long " * 1000],
]


async def test_a_pause_holds_in_the_middle_of_a_segment_until_it_is_resumed(client: Client) -> None:
    job = FakeJob(ranges=2, held=True)
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await handle.signal("pause", args=["maintenance", "ann", "m1"])

        async def stands_still() -> bool:
            waits = (await handle.query("status"))["waits"]
            return bool(waits == dict.fromkeys(("range 0", "range 1", "deliver notices"), "paused"))

        await until_async(stands_still, what="every stream paused")
        assert job.state is JobState.PAUSED
        assert job.messages["m1"] == VerbMessage("m1", Verb.PAUSE, "ann", "maintenance")
        job.held = False
        await handle.signal("resume", {"who": "bob", "why": "done", "message_id": "m2"})
        assert await result(handle) == "completed"
    assert job.messages["m2"] == VerbMessage("m2", Verb.RESUME, "bob", "done")
    assert job.most_busy["range 0"] == 1


async def test_odd_arguments_never_hang_the_job(client: Client) -> None:
    job = FakeJob(held=True)
    async with running(client, job) as handle:
        for arguments in ODD_ARGUMENTS:
            await handle.signal("pause", args=arguments)
            await handle.signal("look", args=arguments)
            await handle.signal("unknown", args=arguments)
        await handle.signal("resume", args=["why", "who", "id-2", "surplus"])
        job.held = False
        assert await result(handle) == "completed"
    assert len(job.messages) == len(ODD_ARGUMENTS) + 1
    for message in job.messages.values():
        for text in (message.message_id, message.who, message.why):
            assert "\x00" not in text
            assert len(text.encode()) <= 200
    assert {"id-1", "id-2"} < job.messages.keys()


async def test_a_message_counts_once_by_its_id(client: Client) -> None:
    job = FakeJob(held=True)
    async with running(client, job) as handle:
        await handle.signal("pause", args=["", "", "m1"])
        await handle.signal("resume", args=["", "", "m2"])
        await handle.signal("pause", args=["", "", "m1"])
        job.held = False
        assert await result(handle) == "completed"
    assert job.heard == ["m1", "m2", "m1"]


async def test_a_signal_that_comes_before_the_job_is_open_is_heeded(client: Client) -> None:
    job = FakeJob(failing={"open": [ApplicationError("not yet") for _ in range(3)]})
    async with running(client, job) as handle:
        await handle.signal("pause")
        await logged(job, "pause")
        await handle.signal("resume")
        assert await result(handle) == "completed"
    assert [message.who for message in job.messages.values()] == ["signal", "signal"]


async def test_a_nudge_ends_a_wait(client: Client) -> None:
    held = DeliverAnswer(DeliverEnd.HELD, 0, "alarm", 3600.0)
    job = FakeJob(state=JobState.DELIVERING, released=True, owed={"notices": 1}, answers={"notices": [held]})
    async with running(client, job) as handle:
        await logged(job, "deliver notices")
        await handle.signal("look")
        assert await result(handle) == "completed"


async def test_a_nudge_during_a_look_leads_to_another(client: Client) -> None:
    job = FakeJob(held=True)
    async with running(client, job) as handle:
        await logged(job, "range 0")
        job.after["look"] = lambda: handle.signal("look")
        await handle.signal("look")
        await logged(job, "look", 2)
        job.held = False
        assert await result(handle) == "completed"
    assert job.count("look") == 2


async def test_a_verb_that_can_never_be_written_ends_the_job_and_is_not_lost_in_silence(client: Client) -> None:
    refusal = ApplicationError("no", type=FailureType.PAYLOADS_TOO_LARGE, non_retryable=True)
    job = FakeJob(held=True, failing={"pause": [refusal]})
    async with running(client, job) as handle:
        await logged(job, "range 0")
        await handle.signal("pause")
        with pytest.raises(WorkflowFailureError):
            await result(handle)


async def test_decisions_come_through_and_what_cannot_be_read_is_left_out(client: Client) -> None:
    job = FakeJob(held=True)
    one = {"effect": "notice", "key": "17", "doubt": 1, "verdict": "resend"}
    odd = [
        None, 3, {}, {**one, "doubt": True}, {**one, "doubt": 2**31}, {**one, "doubt": 0}, {**one, "doubt": "1"},
        {**one, "verdict": "RESEND"}, {**one, "key": 17}, {**one, "key": "NUL \x00"}, {**one, "key": "k" * 5000},
    ]  # fmt: skip
    longest = {**one, "effect": "e" * 200, "key": "\u20ac" * 2700}
    async with running(client, job) as handle:
        for arguments in ODD_ARGUMENTS:
            await handle.signal("decide", args=arguments)
        await handle.signal("decide", {**one, "who": "ann", "why": "seen in their log", "message_id": "m1"})
        await handle.signal("decide", {"decisions": [*odd, one], "message_id": "m2"})
        await handle.signal("decide", {"decisions": [longest] * 120, "message_id": "m3"})

        async def heard() -> bool:
            return "m3" in job.messages

        await until_async(heard, what="the last decisions")
        job.held = False
        assert await result(handle) == "completed"
    decision = Decision("notice", "17", 1, Verdict.RESEND)
    assert job.messages["m1"] == VerbMessage("m1", Verb.DECIDE, "ann", "seen in their log", decisions=(decision,))
    assert job.messages["m2"].decisions == (decision,)
    assert len(job.messages["m3"].decisions) == 100
    odd_ones = [one for name, one in job.messages.items() if name not in ("m1", "m2", "m3")]
    assert odd_ones
    assert all(message.decisions == () for message in odd_ones)
