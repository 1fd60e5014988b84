"""A stack of these tests' own: two provider channels, no search engine, and more effect workers where a test asks."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings
from tests.support.calling import MODULE, Ledger

SHARED = {"BULKLANE_SMALL_MAX_RECORDS": "100"}
# the relation of production, shorter
# the budget: as 60,000 calls at 10/s have it, which is 300 s, by 3,000 calls at 100/s
OF_WORKERS = {
    "BULKLANE_HEARTBEAT_TIMEOUT": "2",
    "BULKLANE_SUSPECT_AFTER": "11",
    "BULKLANE_SLOTS": "4",
    "BULKLANE_DELIVER": "1.5",
}

Workers = Callable[..., AbstractContextManager[list[str]]]


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        settings = StackSettings(folder=Path(folder), operations=MODULE, bulk_workers=1, connection_budget=190)
        with local_stack(settings, worker_environment={**SHARED, **OF_WORKERS}) as started:
            before = dict(os.environ)
            os.environ.update(started.environment | SHARED)
            yield started
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture(scope="package")
def engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    made = connect_engine(local.addresses.database_url, role="test", pool_size=10)
    yield made
    made.dispose()


@pytest.fixture
def limited(local: LocalStack) -> Iterator[Ledger]:
    """The provider that answers at once."""
    yield from _ledger(local, "limited")


def _ledger(local: LocalStack, channel: str) -> Iterator[Ledger]:
    ledger = Ledger(local.endpoints[channel].url)
    ledger.behave()
    yield ledger
    ledger.behave()
    ledger.close()


@pytest.fixture
def workers(local: LocalStack, engine: Engine) -> Workers:
    """Effect workers in the place of a channel's own, with limits and times of the test's."""

    @contextmanager
    def many(channel: str, count: int, **settings: object) -> Iterator[list[str]]:
        own, role = f"effects-{channel}", f"effects:{channel}"
        local.stack.stop_worker(own)
        environment = {
            f"BULKLANE_CHANNELS__{channel.upper()}__{name.upper()}": str(value) for name, value in settings.items()
        }
        names = [f"{channel}-{number}" for number in range(count)]
        for name in names:
            local.start_worker(name, role, environment)
        local.wait_until_serving(names)
        try:
            yield names
        finally:
            for name in names:
                local.stack.stop_worker(name)
            local.start_worker(own, role)
            local.wait_until_serving([own])

    return many
