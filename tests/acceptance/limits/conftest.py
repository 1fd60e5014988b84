"""A stack of these tests' own: two provider channels, no search engine, and more effect workers where a test asks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy import Engine

from bulklane.starter.local import LocalStack
from tests.support.calling import MODULE, Ledger
from tests.support.stacks import engine_on, stack_of

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
    with stack_of(MODULE, OF_WORKERS, SHARED, bulk_workers=1, connection_budget=190) as started:
        yield started


@pytest.fixture(scope="package")
def engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    with engine_on(local) as made:
        yield made


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
