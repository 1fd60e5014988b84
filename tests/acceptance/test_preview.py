"""A preview of the flights example on the whole stack: a search is sampled, nothing is left, the job does the same."""

from typing import Any

import pytest
from sqlalchemy import Engine

from bulklane import Client
from tests.database.jobs import counts, rows
from tests.support.jobs import finished, scalar, submit

pytestmark = pytest.mark.anyio
TENANT = "OO"
FROM_NEWARK = {"search": {"term": {"origin": "EWR"}}}
MATCHING = "SELECT count(*) FROM flights WHERE carrier = :tenant AND origin = 'EWR'"
STORED = "SELECT flight_id, xmin::text, ctid::text FROM flights WHERE carrier = :tenant ORDER BY flight_id"
DEPARTURES = "SELECT flight_id::text, scheduled_departure, row_version FROM flights WHERE flight_id::text = ANY(:keys)"


@pytest.mark.usefixtures("local")
async def test_a_search_is_previewed_and_then_run(client: Client, flights_engine: Engine) -> None:
    assert (await finished(client, await submit(client, TENANT))).state == "completed"
    count = scalar(flights_engine, MATCHING, tenant=TENANT)
    request: dict[str, Any] = {"tenant": TENANT, "selection": FROM_NEWARK, "parameters": {"minutes": 5}}
    before = counts(flights_engine), rows(flights_engine, STORED, tenant=TENANT)
    found = await client.preview("reschedule_flights", sample=5, **request)
    assert (counts(flights_engine), rows(flights_engine, STORED, tenant=TENANT)) == before
    assert (found.count.records, found.count.exact, found.lane, found.holders) == (count, True, "small", [])
    assert found.outcomes == {"changed": min(5, count)}
    assert {effect.effect: effect.in_all for effect in found.effects} == {"document": count, "notice": count}
    assert all(record.differing == ["scheduled_departure", "row_version"] for record in found.sample)
    assert all([owed.body is None for owed in record.owes] == [True, False] for record in found.sample)
    assert found.estimate.jobs >= 1
    assert found.scans == []
    status = await finished(client, (await client.submit("reschedule_flights", **request)).job_id)
    assert (status.state, status.changed) == ("completed", count)
    foretold = {record.key: record.after or {} for record in found.sample}
    for key, departure, version in rows(flights_engine, DEPARTURES, keys=list(foretold)):
        assert (foretold[key]["scheduled_departure"], foretold[key]["row_version"]) == (departure, version)
