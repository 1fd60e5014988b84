"""A stack of these tests' own: an operation that owes nothing, short segments, and histories that fill up soon."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane.contracts.search_attribute import SEARCH_ATTRIBUTES
from bulklane.stack import free_port
from bulklane.stack.temporal import TemporalServer
from bulklane.starter.local import LocalStack
from tests.support import plain
from tests.support.stacks import engine_on, stack_of

# events, after which the server suggests a new run; 4,096 by default
SHORT_HISTORY = 60
SHARED = {"BULKLANE_SMALL_MAX_RECORDS": "100"}
QUICK_TIMES = {"BULKLANE_HEARTBEAT_TIMEOUT": "2", "BULKLANE_SEGMENT": "0.5"}


@pytest.fixture(scope="package")
def temporal_address() -> Iterator[str]:
    """A server of short histories."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        limit = {"limit.historyCount.suggestContinueAsNew": SHORT_HISTORY}
        attributes = dict.fromkeys(SEARCH_ATTRIBUTES, "Keyword")
        server = TemporalServer(Path(folder), search_attributes=attributes, dynamic_config=limit)
        server.start()
        try:
            yield server.address
        finally:
            server.stop()


@pytest.fixture(scope="package")
def health_ports() -> dict[str, int]:
    """Where the worker of each role tells its health."""
    return {role: free_port() for role in ("small", "bulk", "control")}


@pytest.fixture(scope="package")
def local(temporal_address: str, health_ports: dict[str, int]) -> Iterator[LocalStack]:
    """The running stack, with one bulk worker; its environment is this process's own."""
    ports = {role: {"BULKLANE_HEALTH_PORT": str(port)} for role, port in health_ports.items()}
    options = {"bulk_workers": 1, "TEMPORAL_ADDRESS": temporal_address}
    with stack_of(plain.MODULE, QUICK_TIMES, SHARED, ports, **options) as started:
        yield started


@pytest.fixture(scope="package")
def engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    with engine_on(local) as made:
        yield made
