"""One whole local stack for the acceptance tests: real servers, worker processes of every role, the flights example."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane import Client
from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings

# shorter than in production, so that what waits for them is seen soon; in the same relation
QUICK_TIMES = {
    "BULKLANE_HEARTBEAT_TIMEOUT": "2",
    "BULKLANE_SEGMENT": "2",
    "BULKLANE_SUSPECT_AFTER": "11",
    "BULKLANE_SMALL_MAX_RECORDS": "100",
}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        settings = StackSettings(folder=Path(folder), operations="examples.flights.operation")
        with local_stack(settings, worker_environment=QUICK_TIMES) as started:
            before = dict(os.environ)
            os.environ.update(started.environment | {"BULKLANE_SMALL_MAX_RECORDS": "100"})
            yield started
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture(scope="session")
def flights_engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    engine = connect_engine(local.addresses.database_url, role="test", pool_size=10)
    yield engine
    engine.dispose()


@pytest.fixture
async def client(local: LocalStack) -> AsyncIterator[Client]:
    """A client of the stack."""
    async with Client.connect() as connected:
        yield connected
