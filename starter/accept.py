"""Accepts a request: one transaction of the database, and after its commit the start of the workflow."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Engine

from bulklane.contracts.message import VerbMessage
from bulklane.database import accept
from bulklane.database.accept import Accepted, Conflict, LeaseMissed
from bulklane.database.engine import limited_transaction
from bulklane.database.job import JobUnknown, find_job
from bulklane.database.lease import holders
from bulklane.database.live_selection import LiveUnfit
from bulklane.database.retry import ResourcesOwned, Retried, retry
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from bulklane.operations.request import InvalidRequest, Problem, Request, read_request
from bulklane.operations.search import measure_search

STATEMENT_SECONDS = 60.0
TRIES = 5
NO_ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType({})


def accept_request(
    engine: Engine,
    registry: Registry,
    raw: dict[str, Any],
    small_max_records: int,
    endpoints: Mapping[str, Endpoint] = NO_ENDPOINTS,
) -> Accepted:
    """The job of a request; stored, or found where the same was accepted before.

    `endpoints`: by channel, where a search is counted; one that can't be counted goes to the bulk lane.
    Raises InvalidRequest, Conflict (the resources are owned) and JobIdReused; nothing is stored then.
    """
    request = read_request({"job_id": str(uuid4()), **raw}, registry)
    for _ in range(TRIES):
        found = _try(engine, registry, request, small_max_records, endpoints)
        if found is not None:
            return found
    raise LeaseMissed(request.resources)


def _try(
    engine: Engine, registry: Registry, request: Request, small_max_records: int, endpoints: Mapping[str, Endpoint]
) -> Accepted | None:
    with engine.connect() as connection:
        known = accept.find_accepted(connection, request)
    if known is not None:
        return known
    found = measure_search(request, registry, endpoints, small_max_records)
    with engine.connect() as connection:
        size = measure_request(connection, request, small_max_records, found)
    try:
        with limited_transaction(engine, statement=STATEMENT_SECONDS, transaction=STATEMENT_SECONDS * 2) as connection:
            return accept.store(connection, request, size=size, small_max_records=small_max_records)
    except LeaseMissed:
        return _owner(engine, request)


def measure_request(
    connection: Connection, request: Request, small_max_records: int, found_by_search: int | None
) -> int:
    """How many records a request selects, counted up to `small_max_records` + 1. Raises InvalidRequest."""
    try:
        return accept.measure(connection, request, small_max_records, found_by_search)
    except LiveUnfit as error:
        raise InvalidRequest([Problem("selection.live", str(error))]) from None


def _owner(engine: Engine, request: Request) -> Accepted | None:
    """After a missed lease: the same request's own job; None where the holder has gone, so that it is worth a try."""
    with engine.connect() as connection:
        answer = accept.conflict(connection, request)
    if isinstance(answer, Conflict):
        raise answer
    return answer


def retry_job(
    engine: Engine,
    job_id: str,
    message: VerbMessage,
    *,
    tenant: str | None,
    of_round: int | None,
    small_max_records: int,
) -> Retried:
    """Re-open a job's failed and not started records, and refused deliveries, as the next round.

    `of_round`: the round that the caller saw; None takes the present one. Raises JobUnknown, and Conflict where another
    job owns the data.
    """
    with engine.connect() as connection:
        job = find_job(connection, job_id, tenant)
    if job is None:
        raise JobUnknown(f"there is no job {job_id!r}")
    for _ in range(TRIES):
        try:
            with limited_transaction(
                engine, statement=STATEMENT_SECONDS, transaction=STATEMENT_SECONDS * 2
            ) as connection:
                return retry(
                    connection,
                    job.job_no,
                    message,
                    of_round=of_round or job.round,
                    small_max_records=small_max_records,
                )
        except ResourcesOwned as owned:
            resources = owned.resources
        with engine.connect() as connection:
            owners = holders(connection, resources)
        if owners:
            raise Conflict(owners[0])
    raise LeaseMissed(resources)
