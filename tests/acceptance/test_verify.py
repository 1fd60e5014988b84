"""`verify` is tested itself: it fails on each planted fault, and holds again when the fault is taken back."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import Engine, text

from bulklane import Client
from bulklane.starter.local import LocalStack
from bulklane.starter.verify import verify_job
from tests.support.jobs import finished, scalar, submit

TENANT = "HA"


@pytest.fixture(scope="module")
def job_id(local: LocalStack) -> str:
    """A completed job over all 342 flights of HA."""
    return asyncio.run(completed())


async def completed() -> str:
    """Submit and wait."""
    async with Client.connect() as client:
        job = await submit(client, TENANT)
        assert (await finished(client, job)).state == "completed"
        return job


@pytest.fixture
def flight(flights_engine: Engine) -> str:
    """One of its flights."""
    return str(scalar(flights_engine, "SELECT max(flight_id) FROM flights WHERE carrier = :t", t=TENANT))


def failing(local: LocalStack, engine: Engine, job_id: str) -> set[str]:
    """The names of the lines that don't hold."""
    report = verify_job(engine, local.registry, job_id, local.endpoints)
    return {check.name for check in report.checks if not check.holds}


def ledger(local: LocalStack) -> sqlite3.Connection:
    """The provider's own ledger."""
    return sqlite3.connect(local.stack.folder / "services" / "provider" / "provider.sqlite", timeout=10)


@contextmanager
def taken_back(engine: Engine, plant: str, undo: str, **values: object) -> Iterator[None]:
    """Plant by SQL, undo afterwards; user triggers stay out of it."""

    def quietly(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text(statement), values)

    quietly(plant)
    try:
        yield
    finally:
        quietly(undo)


def test_it_holds_for_a_job_without_a_fault(local: LocalStack, flights_engine: Engine, job_id: str) -> None:
    assert failing(local, flights_engine, job_id) == set()


def test_a_record_changed_twice(local: LocalStack, flights_engine: Engine, job_id: str, flight: str) -> None:
    again = (
        "INSERT INTO flight_audit (flight_id, carrier, old_scheduled_departure, new_scheduled_departure)"
        " SELECT flight_id, carrier, scheduled_departure, scheduled_departure FROM flights"
        " WHERE flight_id = CAST(:f AS bigint)"
    )
    undo = "DELETE FROM flight_audit WHERE id = (SELECT max(id) FROM flight_audit WHERE flight_id = CAST(:f AS bigint))"
    with taken_back(flights_engine, again, undo, f=flight):
        assert failing(local, flights_engine, job_id) == {"records changed twice"}


def test_a_record_missed(local: LocalStack, flights_engine: Engine, job_id: str, flight: str) -> None:
    plant = "UPDATE flight_audit SET flight_id = -1 WHERE flight_id = CAST(:f AS bigint)"
    undo = "UPDATE flight_audit SET flight_id = CAST(:f AS bigint) WHERE flight_id = -1"
    with taken_back(flights_engine, plant, undo, f=flight):
        assert "records changed" in failing(local, flights_engine, job_id)


def test_a_stale_document(local: LocalStack, flights_engine: Engine, job_id: str, flight: str) -> None:
    plant = "UPDATE flights SET row_version = row_version + 1 WHERE flight_id = CAST(:f AS bigint)"
    undo = "UPDATE flights SET row_version = row_version - 1 WHERE flight_id = CAST(:f AS bigint)"
    with taken_back(flights_engine, plant, undo, f=flight):
        assert failing(local, flights_engine, job_id) == {"index flights: versions other than the row's"}


def test_an_extra_document(local: LocalStack, flights_engine: Engine, job_id: str) -> None:
    url = f"{local.addresses.opensearch_url}/flights/_doc/999999999"
    document = {"key": "999999999", "tenant": TENANT, "row_version": 1, "deleted": False}
    httpx.put(url, json=document).raise_for_status()
    assert failing(local, flights_engine, job_id) == {"index flights: documents without a row"}
    httpx.delete(url).raise_for_status()
    assert failing(local, flights_engine, job_id) == set()


def test_a_missing_document(local: LocalStack, flights_engine: Engine, job_id: str, flight: str) -> None:
    url = f"{local.addresses.opensearch_url}/flights/_doc/{flight}"
    found = httpx.get(url).json()
    same_version = {"version": found["_version"], "version_type": "external_gte"}
    httpx.delete(url, params=same_version).raise_for_status()
    assert failing(local, flights_engine, job_id) == {"index flights: documents missing"}
    httpx.put(url, json=found["_source"], params=same_version).raise_for_status()


@pytest.mark.parametrize(
    ("applied", "line"),
    [(2, "provider notices: applied twice"), (0, "provider notices: missing")],
)
def test_a_provider_application_twice_or_missing(
    local: LocalStack, flights_engine: Engine, job_id: str, flight: str, applied: int, line: str
) -> None:
    key = f"{job_id}/notice/{flight}/1"
    with ledger(local) as connection:
        assert connection.execute("UPDATE notice SET applied = ? WHERE key = ?", (applied, key)).rowcount == 1
    assert failing(local, flights_engine, job_id) >= {line}
    with ledger(local) as connection:
        connection.execute("UPDATE notice SET applied = 1 WHERE key = ?", (key,))


def test_a_lease_left(local: LocalStack, flights_engine: Engine, job_id: str) -> None:
    plant = (
        "INSERT INTO bulklane.lease (resource, job_no, round) SELECT 'left behind', job_no, 1"
        " FROM bulklane.job WHERE job_id = :j"
    )
    with taken_back(flights_engine, plant, "DELETE FROM bulklane.lease WHERE resource = 'left behind'", j=job_id):
        assert failing(local, flights_engine, job_id) == {"leases left"}


def test_a_record_selected_beyond_the_input(
    local: LocalStack, flights_engine: Engine, job_id: str, monkeypatch: pytest.MonkeyPatch, flight: str
) -> None:
    operation = local.registry.operation("reschedule_flights")
    verification = operation.verification
    assert verification is not None
    real = verification.expected

    def without_one(tenant: str, kind: str, spec: object) -> set[str]:
        return (real(tenant, kind, {}) or set()) - {flight}

    monkeypatch.setattr(verification, "expected", without_one)
    assert failing(local, flights_engine, job_id) == {"records selected beyond the input"}
