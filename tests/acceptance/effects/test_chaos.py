"""5,000 effects on each kind of provider, with faults of the provider's and of ours: `make chaos-effects`."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.jobs import finished
from tests.support.telling import make_told
from tests.support.waiting import until_async

pytestmark = pytest.mark.anyio

RECORDS = 5_000
KILL_SECONDS = 10.0
FAULTS: list[dict[str, object]] = [
    {"kind": "apply_then_hang", "share": 0.1, "seconds": 60},
    {"kind": "reset", "share": 0.025},
    {"kind": "apply_then_reset", "share": 0.025},
    {"kind": "rate_limit", "share": 0.05, "retry_after": "0.1"},
    {"kind": "ok_with_error", "share": 0.02},
]
LOST_ANSWERS: list[dict[str, object]] = [
    {"kind": "apply_then_hang", "share": 0.05, "seconds": 60},
    {"kind": "apply_then_reset", "share": 0.05},
]
_DELIVERIES = text("""
SELECT key, delivery.state, generation, attempts
FROM bulklane.delivery JOIN bulklane.job USING (job_no) WHERE job_id = :job
""")


@dataclass(frozen=True)
class Told:
    """What became of a record, by our record and by the provider's."""

    state: str
    generation: int
    attempts: int
    applied: int
    calls: int
    answered: int
    """Calls with an answer of which nobody can be in doubt."""


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["keeping", "asking", "blind"])
async def test_every_fault_and_killed_workers(local: LocalStack, client: Client, engine: Engine, kind: str) -> None:
    """Workers are killed every 10 s; each kind of provider then has what it can promise."""
    promise = {"keeping": _keeping, "asking": _asking, "blind": _blind}[kind]
    url = local.endpoints[kind].url
    with faults(url, FAULTS):
        killer = asyncio.create_task(_kill(local, kind))
        job_id = await _tell(client, engine, kind, "chaos")
        await finished(client, job_id, seconds=400)
        killer.cancel()
    await promise(client, engine, job_id, url)


@pytest.mark.slow
@pytest.mark.case("C28")
async def test_applied_and_the_answer_lost(local: LocalStack, client: Client, engine: Engine) -> None:
    """10 % of the calls are applied and then hang or are reset; the worker is killed in the middle, three times."""
    url = local.endpoints["keeping"].url
    with faults(url, LOST_ANSWERS):
        job_id = await _tell(client, engine, "keeping", "lost")
        for share in (0.2, 0.4, 0.6):
            await until_async(lambda share=share: _applied(url, job_id, share), 60, what="some are applied")  # type: ignore[misc]
            local.stack.kill_worker("effects-keeping")
            await asyncio.to_thread(local.stack.restart_worker, "effects-keeping")
        assert (await finished(client, job_id, seconds=150)).state == "completed"
    told = _told(engine, job_id, url)
    assert _states(told) == {"done": RECORDS}
    assert {one.applied for one in told.values()} == {1}
    assert {one.generation for one in told.values()} == {1}


async def _tell(client: Client, engine: Engine, kind: str, tenant: str) -> str:
    make_told(engine, f"{tenant}-{kind}", RECORDS)
    job = await client.submit(f"tell_{kind}", tenant=f"{tenant}-{kind}", selection={"all": True})
    return job.job_id


async def _applied(url: str, job_id: str, share: float) -> bool:
    return sum(bool(entry["applied"]) for entry in _lines(url, "ledger", job_id)) >= RECORDS * share


@contextmanager
def faults(url: str, wanted: list[dict[str, object]]) -> Iterator[None]:
    """A provider that misbehaves for the body of a `with`."""
    httpx.put(f"{url}/faults", json=wanted, trust_env=False).raise_for_status()
    try:
        yield
    finally:
        httpx.delete(f"{url}/faults", trust_env=False).raise_for_status()


async def _kill(local: LocalStack, kind: str) -> None:
    """Every 10 s the worker of the channel, and in turn one of another role, which come back at once."""
    others = ["bulk-1", "control", "bulk-2"]
    for turn in itertools.count():
        await asyncio.sleep(KILL_SECONDS)
        for name in (f"effects-{kind}", others[turn % len(others)]):
            local.stack.kill_worker(name)
            await asyncio.to_thread(local.stack.restart_worker, name)


async def _keeping(client: Client, engine: Engine, job_id: str, url: str) -> None:
    """After one retry each record is applied once, under at most two keys."""
    before = _told(engine, job_id, url)
    assert set(_states(before)) == {"done", "refused"}
    refused = {key for key, told in before.items() if told.state == "refused"}
    assert refused == {key for key, told in before.items() if told.applied == 0}
    await client.retry(job_id)
    assert (await finished(client, job_id)).state == "completed"
    after = _told(engine, job_id, url)
    assert _states(after) == {"done": RECORDS}
    assert {told.applied for told in after.values()} == {1}
    assert {key for key, told in after.items() if told.generation > 1} == refused


async def _asking(client: Client, engine: Engine, job_id: str, url: str) -> None:
    """Never two applications; what the look-up doesn't find is undecided."""
    before = _told(engine, job_id, url)
    await client.retry(job_id)
    await finished(client, job_id)
    after = _told(engine, job_id, url)
    assert max(told.applied for told in after.values()) == 1
    assert set(_states(after)) == {"done", "undecided"}
    for key, told in after.items():
        assert told.applied == (told.state == "done"), (key, told, before[key])


async def _blind(client: Client, engine: Engine, job_id: str, url: str) -> None:
    """No second call after a doubtful one; every doubtful one is listed."""
    await client.retry(job_id)
    await finished(client, job_id)
    after = _told(engine, job_id, url)
    assert set(_states(after)) == {"done", "undecided"}
    for key, told in after.items():
        # a definite answer (429, refused and then retried) lets another call follow, a doubt does not
        assert told.calls - told.answered <= 1, (key, told)
        assert told.state == "undecided" or (told.applied, told.calls) == (1, told.answered), (key, told)
        assert told.applied <= 1, (key, told)
        assert told.attempts >= told.calls, (key, told)


def _told(engine: Engine, job_id: str, url: str) -> dict[str, Told]:
    with engine.begin() as connection:
        rows = connection.execute(_DELIVERIES, {"job": job_id}).all()
    applied: Counter[str] = Counter()
    for entry in _lines(url, "ledger", job_id):
        applied[_record(entry["key"])] += entry["applied"]
    calls, answered = Counter[str](), Counter[str]()
    for call in _lines(url, "calls", job_id):
        calls[_record(call["key"])] += 1
        # a call that was cut off has no status in the provider's log, nor has one that nobody waited for
        answered[_record(call["key"])] += call["status"] is not None
    return {
        row.key: Told(row.state, row.generation, row.attempts, applied[row.key], calls[row.key], answered[row.key])
        for row in rows
    }


def _lines(url: str, what: str, job_id: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{url}/{what}", params={"prefix": f"{job_id}/"}, timeout=60, trust_env=False)
    return [json.loads(line) for line in answer.raise_for_status().text.splitlines()]


def _record(key: str) -> str:
    return key.split("/")[2]


def _states(told: dict[str, Told]) -> Counter[str]:
    return Counter(one.state for one in told.values())
