"""The delivery of provider effects: what an answer means for a delivery, in doubt and out of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from bulklane.activities import call_delivery
from bulklane.activities.call_delivery import CallDelivery
from bulklane.contracts.effect import idempotency_key
from bulklane.database import delivery as deliveries
from bulklane.database.job import Job
from bulklane.operations.channel import Channel
from bulklane.operations.sender import Answer, Call, Done, Held, Later, NoLookUp, Refused, Unknown
from bulklane.operations.senders.http_provider import HttpProvider
from tests.database.jobs import accepted, opened, rows, walk
from tests.support.ledgers import make_entries
from tests.support.notices import make_due

STATES = "SELECT state, count(*) FROM bulklane.delivery GROUP BY state ORDER BY state"

# of the one that was claimed first, but for those that are not claimed anew yet
CLAIM_LEFT = """
SELECT extract(epoch FROM min(claimed_until) - clock_timestamp())::float FROM bulklane.delivery
WHERE state = 'sending' AND claimed_until > clock_timestamp()
"""


@dataclass
class ScriptedProvider:
    """Answers as it is told; remembers every call and look-up. `known`: what a look-up finds, or why there is none."""

    answers: Sequence[Answer]
    known: Answer | str | None = None
    sent: list[Call] = field(default_factory=list)
    looked_up: list[Call] = field(default_factory=list)

    async def send(self, call: Call) -> Answer:
        """The next answer; the last one again and again."""
        self.sent.append(call)
        return self.answers[min(len(self.sent), len(self.answers)) - 1]

    async def look_up(self, call: Call) -> Answer | None:
        """What is known of the key."""
        self.looked_up.append(call)
        if isinstance(self.known, str):
            raise NoLookUp(self.known)
        return self.known

    async def close(self) -> None:
        """Nothing to close."""


def owing(engine: Engine, count: int = 1) -> Job:
    """A job that owes a booking for each of so many entries."""
    make_entries(engine, count)
    job = opened(engine, accepted(engine, parallelism=1))
    walk(engine, job)
    return job


def in_doubt(engine: Engine, job: Job) -> None:
    """A sender has marked all as `sending` and died; its claim has run out."""
    with engine.begin() as connection:
        claimed = deliveries.claim(
            connection, job.job_no, "bookings", turn=job.turn, most=100, token=uuid4(), claim_seconds=-1
        )
    assert claimed


def deliver(engine: Engine, job: Job, provider: ScriptedProvider, rounds: int = 2, **channel: Any) -> CallDelivery:
    """One delivery with so many rounds of claims, ended in order."""

    async def run() -> CallDelivery:
        made = Channel("bookings", HttpProvider("/", lambda status, body: None), **channel)
        delivery = CallDelivery(engine, made, job, provider)
        for _ in range(rounds):
            await delivery.send_some()
        await delivery.finish()
        return delivery

    return asyncio.run(run())


def test_each_record_is_sent_once_with_its_key_and_body(engine: Engine) -> None:
    job = owing(engine, 25)
    provider = ScriptedProvider([Done()])
    assert deliver(engine, job, provider, rounds=6).settled == 25
    assert rows(engine, STATES) == [("done", 25)]
    assert len({call.idempotency_key for call in provider.sent}) == 25
    assert provider.looked_up == []


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (Done(), "done"),
        (Refused("422"), "refused"),
        (Later(5.0), "later"),
        (Unknown("no answer"), "unknown"),
        (Held("401"), "later"),
    ],
)
def test_what_a_first_answer_means(engine: Engine, answer: Answer, state: str) -> None:
    job = owing(engine)
    deliver(engine, job, ScriptedProvider([answer]))
    assert rows(engine, STATES) == [(state, 1)]


def test_a_doubt_is_looked_up_before_anything_is_sent(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()], known=Done("look-up"))
    deliver(engine, job, provider)
    assert (provider.sent, len(provider.looked_up)) == ([], 1)
    assert rows(engine, STATES) == [("done", 1)]


def test_a_look_up_that_finds_nothing_sends_the_same_key_again(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()])
    deliver(engine, job, provider)
    key = rows(engine, "SELECT key FROM bulklane.delivery")[0][0]
    assert [call.idempotency_key for call in provider.sent] == [idempotency_key(job.job_id, "booking", key, 1)]
    assert rows(engine, STATES) == [("done", 1)]


@pytest.mark.parametrize("answer", [Later(0.0), Held("401"), Unknown("no answer")])
def test_a_doubt_stays_one_until_it_is_answered(engine: Engine, answer: Answer) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    deliver(engine, job, ScriptedProvider([answer]))
    assert rows(engine, STATES) == [("unknown", 1)]


def test_a_look_up_that_is_put_off_is_waited_for_and_the_doubt_stays(engine: Engine) -> None:
    job = owing(engine, 3)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()], known=Later(30.0, "the provider answered 429"))

    delivery = deliver(engine, job, provider, concurrency=1)

    assert (len(provider.looked_up), provider.sent) == (1, [])
    assert 25 < delivery.blocked_seconds <= 40
    ((seconds,),) = rows(
        engine, "SELECT extract(epoch FROM max(blocked_until) - now())::float FROM bulklane.channel_limit"
    )
    assert 25 < seconds <= 30
    due = "SELECT count(*) FROM bulklane.delivery WHERE state = 'unknown' AND due > now() + interval '20 s'"
    assert rows(engine, due) == [(1,)]


@pytest.mark.parametrize("known", [Unknown("reset"), Later(0.0, "busy"), Held("401")], ids=str)
def test_look_ups_that_fail_use_up_no_attempt(engine: Engine, known: Answer) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    out = ScriptedProvider([Done()], known=known)
    while len(out.looked_up) < 12:
        make_due(engine)
        deliver(engine, job, out)
    assert out.sent == []
    assert rows(engine, "SELECT state, attempts FROM bulklane.delivery") == [("unknown", 1)]
    # the outage is over, and the look-up finds nothing
    back = ScriptedProvider([Done()])
    while not back.looked_up:
        make_due(engine)
        deliver(engine, job, back)
    assert rows(engine, STATES) == [("done", 1)]


def test_no_call_begins_that_its_claim_may_not_outlast(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # what is marked ahead waits for the one slot: longer than its claim has time beside a look-up and a call
    monkeypatch.setattr(call_delivery, "CLAIM_MARGIN", 1.0)
    job = owing(engine, 3)
    in_doubt(engine, job)
    left: list[float] = []

    class Slow(ScriptedProvider):
        async def look_up(self, call: Call) -> Answer | None:
            left.extend(seconds for (seconds,) in await asyncio.to_thread(rows, engine, CLAIM_LEFT))
            return None

        async def send(self, call: Call) -> Answer:
            await asyncio.sleep(1.5)
            return await super().send(call)

    async def run() -> None:
        made = Channel("bookings", HttpProvider("/", lambda status, body: None), concurrency=1, call_seconds=2.0)
        provider = Slow([Done()])
        delivery = CallDelivery(engine, made, job, provider)
        async with asyncio.timeout(30):
            while len(provider.sent) < 3:
                await delivery.send_some()
        await delivery.finish()

    asyncio.run(run())
    assert len(left) == 3
    assert min(left) > 3.9
    assert rows(engine, "SELECT state, attempts FROM bulklane.delivery") == [("done", 2)] * 3


def test_a_refusal_after_an_unanswered_call_is_definite_only_where_it_is_stored(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    deliver(engine, job, ScriptedProvider([Refused("409")]))
    assert rows(engine, STATES) == [("unknown", 1)]


def test_a_stored_refusal_is_definite(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    deliver(engine, job, ScriptedProvider([Refused("409")]), stores_refusals=True)
    assert rows(engine, STATES) == [("refused", 1)]


def test_a_look_up_that_says_not_applied_is_definite(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()], known=Refused("not_applied"))
    deliver(engine, job, provider)
    assert (provider.sent, rows(engine, STATES)) == ([], [("refused", 1)])


@pytest.mark.parametrize("known", [None, "no look-up here"])
def test_without_keys_no_second_call_is_made_without_a_decision(engine: Engine, known: str | None) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()], known=known)
    deliver(engine, job, provider, keeps_keys=False)
    assert (provider.sent, rows(engine, STATES)) == ([], [("undecided", 1)])


def test_without_a_look_up_the_key_alone_makes_a_repeat_safe(engine: Engine) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()], known="no look-up here")
    deliver(engine, job, provider)
    assert (len(provider.sent), rows(engine, STATES)) == (1, [("done", 1)])


@pytest.mark.parametrize("bound", [{"key_lifetime": -1.0}, {"most_attempts": 1}, {"most_seconds": -1.0}])
def test_beyond_its_bounds_a_doubt_is_undecided(engine: Engine, bound: dict[str, Any]) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    provider = ScriptedProvider([Done()])
    deliver(engine, job, provider, **bound)
    assert (provider.sent, rows(engine, STATES)) == ([], [("undecided", 1)])


def test_a_held_channel_claims_nothing_more(engine: Engine) -> None:
    job = owing(engine, 10)
    provider = ScriptedProvider([Held("401")])
    delivery = deliver(engine, job, provider, rounds=4, concurrency=1, keeps_keys=False)
    assert delivery.held == "401"
    assert len(provider.sent) == 1
    assert rows(engine, "SELECT sum(size - taken_to) FROM bulklane.owed")[0][0] == 9


def test_what_was_marked_and_not_sent_is_no_doubt(engine: Engine) -> None:
    """The delivery is cancelled while its first call hangs: those behind it were never sent."""
    job = owing(engine, 10)
    hanging = asyncio.Event()

    class Hanging(ScriptedProvider):
        async def send(self, call: Call) -> Answer:
            self.sent.append(call)
            await hanging.wait()
            return Done()

    channel = Channel("bookings", HttpProvider("/", lambda status, body: None), concurrency=1)

    async def run(provider: ScriptedProvider) -> None:
        delivery = CallDelivery(engine, channel, job, provider)
        sending = asyncio.create_task(delivery.send_some())
        while not provider.sent:
            await asyncio.sleep(0.01)
        sending.cancel()
        hanging.set()
        await delivery.finish()

    provider = Hanging([])
    asyncio.run(run(provider))
    assert len(provider.sent) == 1
    assert rows(engine, STATES) == [("done", 1), ("later", 1)]
