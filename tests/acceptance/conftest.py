"""One whole local stack for the acceptance tests: real servers, worker processes of every role, the flights example."""

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.starter.local import LocalStack
from tests.support.stacks import engine_on, stack_of

# shorter than in production, so that what waits for them is seen soon; in the same relation
QUICK_TIMES = {
    "BULKLANE_HEARTBEAT_TIMEOUT": "2",
    "BULKLANE_SEGMENT": "2",
    "BULKLANE_SUSPECT_AFTER": "11",
}
SHARED = {"BULKLANE_SMALL_MAX_RECORDS": "100"}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests."""
    return "asyncio"


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with stack_of("examples.flights.operation", QUICK_TIMES, SHARED) as started:
        yield started


@pytest.fixture(scope="package")
def flights_engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    with engine_on(local) as made:
        yield made


@pytest.fixture
async def client(local: LocalStack) -> AsyncIterator[Client]:
    """A client of the stack."""
    async with Client.connect() as connected:
        yield connected
