"""Retry on the real parts: the provider refuses some notices, is put right, and the operator presses retry."""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.jobs import assert_balance, finished, submit

pytestmark = pytest.mark.anyio


@pytest.fixture
def provider(local: LocalStack) -> Iterator[httpx.Client]:
    """The notice provider; its faults are gone afterwards."""
    with httpx.Client(base_url=local.endpoints["notices"].url) as connected:
        yield connected
        connected.delete("/faults").raise_for_status()


def applications(provider: httpx.Client, job_id: str) -> list[tuple[str, int]]:
    """By key: how often the provider applied it."""
    lines = provider.get("/ledger", params={"prefix": f"{job_id}/"}).text.splitlines()
    return sorted((entry["key"], entry["applied"]) for entry in map(json.loads, lines))


@pytest.mark.case("C06")
@pytest.mark.case("C32")
async def test_refused_notices_are_sent_again_under_a_new_key(
    local: LocalStack, client: Client, flights_engine: Engine, provider: httpx.Client
) -> None:
    faults = [{"kind": "server_error", "stored": True, "share": 0.2}, {"kind": "bad_request", "share": 0.2}]
    provider.put("/faults", json=faults).raise_for_status()
    job_id = await submit(client, "OO")
    status = await finished(client, job_id)
    assert status.state == "completed_with_failures"
    refused = status.deliveries["notices"]["refused"]
    assert 0 < refused < 32
    provider.delete("/faults").raise_for_status()
    pressed = await asyncio.gather(*(client.retry(job_id, of_round=1) for _ in range(5)))
    assert sorted(one.deliveries for one in pressed) == [0, 0, 0, 0, refused]
    status = await finished(client, job_id)
    assert (status.state, status.round, status.deliveries["notices"]) == ("completed", 2, {"done": 32})
    applied = applications(provider, job_id)
    assert [times for _, times in applied].count(1) == 32
    assert len({key.rsplit("/", 1)[0] for key, times in applied if times}) == 32
    assert_balance(local, flights_engine, job_id)
