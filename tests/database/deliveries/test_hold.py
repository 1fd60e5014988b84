"""A held channel in the delivery activity: shown first, sat out in the slot, over by itself or by a resume."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import Engine, text
from temporalio.testing import ActivityEnvironment

from bulklane.activities import deliver
from bulklane.activities.deliver import Deliver
from bulklane.contracts.effect import DeliverAnswer, DeliverEnd, DeliverRequest
from bulklane.contracts.message import Verb
from bulklane.database import hold
from bulklane.database.job import Job
from bulklane.operations.channel import Endpoint
from bulklane.operations.registry import load_registry
from bulklane.starter.channels import ChannelUnknown, end_hold, read_channels
from bulklane.starter.status import read_status
from tests.database.jobs import accepted, look, opened, rows, say, walk
from tests.support.calling import MODULE, Ledger
from tests.support.counting import make_items
from tests.support.delivering import owing_jobs
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only."""
    return "asyncio"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume is seen sooner than in production."""
    monkeypatch.setattr(deliver, "HELD_LOOK_SECONDS", 0.2)


@asynccontextmanager
async def activity(engine: Engine, url: str) -> AsyncIterator[Deliver]:
    """The delivery activity of the channel `limited`."""
    registry = load_registry([MODULE])
    channel = registry.channels["limited"]
    sender = channel.sender.connect(Endpoint(url), channel.concurrency)
    try:
        yield Deliver(engine, registry, {"limited": sender}, "test")
    finally:
        await sender.close()


async def attempt(made: Deliver, job: Job, shown: str = "") -> DeliverAnswer:
    """One delivery activity."""
    return await ActivityEnvironment().run(made.deliver, DeliverRequest(job.job_no, "limited", 300.0, shown))


async def test_one_refused_call_holds_all_jobs_and_a_resume_lets_them_go_on(
    counted: Engine, url: str, provider: Ledger
) -> None:
    provider.misbehave({"kind": "unauthorized"})
    first, other = owing_jobs(counted, "call_limited", make_items(counted, "held", 60), 2)
    async with activity(counted, url) as made:
        answer = await attempt(made, first)
        assert (answer.end, answer.retry_seconds) == (DeliverEnd.HELD, 0.0)
        assert "channel limited is held since" in answer.reason
        calls = len(provider.calls(first.job_id))
        assert 0 < calls <= 20
        # the other job makes no call of its own to find out
        assert (await attempt(made, other)).reason == answer.reason
        assert provider.calls(other.job_id) == []
        sitting = [asyncio.create_task(attempt(made, job, answer.reason)) for job in (first, other)]
        with counted.connect() as connection:
            status = read_status(connection, other.job_id)
        assert "held since" in status.waits["limited"]
        await asyncio.sleep(0.6)
        assert not any(one.done() for one in sitting)
        provider.behave()
        assert end_hold(counted, made.registry.channels, "limited")
        assert [one.end for one in await asyncio.gather(*sitting)] == [DeliverEnd.DONE] * 2
    assert set(provider.applied(first.job_id).values()) == {1}
    states = "SELECT state, count(*) FROM bulklane.delivery GROUP BY state"
    assert rows(counted, states) == [("done", 60)]


async def test_put_right_it_goes_on_by_itself_with_one_probe(counted: Engine, url: str, provider: Ledger) -> None:
    provider.misbehave({"kind": "unauthorized", "status": 403})
    jobs = owing_jobs(counted, "call_limited", make_items(counted, "probed", 40), 2)
    async with activity(counted, url) as made:
        reason = (await attempt(made, jobs[0])).reason
        before = len(provider.calls())
        sitting = [asyncio.create_task(attempt(made, job, reason)) for job in jobs]
        _probe_now(counted)

        async def probed() -> bool:
            return len(provider.calls()) == before + 1

        await until_async(probed, what="a probe")
        await asyncio.sleep(0.5)
        assert await probed()
        provider.behave()
        _probe_now(counted)
        assert [one.end for one in await asyncio.gather(*sitting)] == [DeliverEnd.DONE] * 2
        channel = next(one for one in read_channels(counted, made.registry.channels) if one.name == "limited")
        assert (channel.held_since, channel.owed) == (None, 0)


async def test_a_pause_is_heeded_while_the_channel_is_held(counted: Engine, url: str, provider: Ledger) -> None:
    (job,) = owing_jobs(counted, "call_limited", make_items(counted, "paused", 10), 1)
    with counted.begin() as connection:
        hold.hold(connection, "limited", "by hand")
    async with activity(counted, url) as made:
        reason = (await attempt(made, job)).reason
        sitting = asyncio.create_task(attempt(made, job, reason))
        say(counted, job, Verb.PAUSE)
        assert (await sitting).end is DeliverEnd.PAUSED
    assert provider.calls(job.job_id) == []


async def test_a_long_block_is_waited_for_in_a_timer(counted: Engine, url: str, provider: Ledger) -> None:
    (job,) = owing_jobs(counted, "call_limited", make_items(counted, "blocked", 30), 1)
    provider.misbehave({"kind": "rate_limit", "retry_after": 100})
    async with activity(counted, url) as made:
        answer = await attempt(made, job)
    assert answer.end is DeliverEnd.WAITING
    assert 90 < answer.retry_seconds <= 111
    assert len(provider.calls(job.job_id)) <= 20


async def test_a_later_turn_is_nudged_when_the_earlier_owes_nothing_more(
    counted: Engine, url: str, provider: Ledger
) -> None:
    tenant = make_items(counted, "turns", 10)
    (earlier,) = owing_jobs(counted, "call_limited", tenant, 1)
    registry = load_registry([MODULE])
    later = opened(counted, accepted(counted, registry=registry, operation="call_limited", tenant=tenant))
    walk(counted, later, registry=registry)
    look(counted, later)
    unheard = "SELECT count(*) FROM bulklane.wish WHERE looked_at < wished_at AND job_no = :n"
    async with activity(counted, url) as made:
        waiting = await attempt(made, later)
        assert waiting.end is DeliverEnd.WAITING
        assert earlier.job_id in waiting.reason
        assert rows(counted, unheard, n=later.job_no) == [(0,)]
        assert (await attempt(made, earlier)).end is DeliverEnd.DONE
        # the control loop signals those whose wish is unheard
        assert rows(counted, unheard, n=later.job_no) == [(1,)]
        assert (await attempt(made, later)).end is DeliverEnd.DONE


def test_a_channel_that_nobody_knows_is_named(counted: Engine) -> None:
    with pytest.raises(ChannelUnknown, match=r"limits.*limited"):
        end_hold(counted, load_registry([MODULE]).channels, "limits")
    assert not end_hold(counted, load_registry([MODULE]).channels, "limited")


def _probe_now(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.channel_limit SET probe_at = clock_timestamp()"))
