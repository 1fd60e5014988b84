"""Dev servers for what is concurrent; time-skipping servers are started test by test."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from temporalio.client import Client

from bulklane.stack import TemporalServer

SEARCH_ATTRIBUTES = dict.fromkeys(("Tenant", "Operation", "Lane", "State"), "Keyword")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """asyncio only: Temporal's client knows no other."""
    return "asyncio"


@contextmanager
def dev_server(**dynamic_config: int) -> Iterator[TemporalServer]:
    """A dev server in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        config = {name.replace("__", "."): value for name, value in dynamic_config.items()}
        server = TemporalServer(Path(folder), search_attributes=SEARCH_ATTRIBUTES, dynamic_config=config)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def dev_address() -> Iterator[str]:
    """A dev server as the stack starts it."""
    with dev_server() as server:
        yield server.address


@pytest.fixture(scope="session")
def short_history_address() -> Iterator[str]:
    """One that suggests a new run after 40 events."""
    with dev_server(limit__historyCount__suggestContinueAsNew=40) as server:
        yield server.address


@pytest.fixture
async def client(dev_address: str) -> Client:
    """A client of the dev server."""
    return await Client.connect(dev_address)


@pytest.fixture
async def short_history(short_history_address: str) -> Client:
    """A client of the server with short histories."""
    return await Client.connect(short_history_address)
