"""Fixtures of all tests: the real PostgreSQL, and a database of one's own; and how processes share the files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from bulklane.database.engine import connect_engine
from tests.support.databases import fresh_database, make_template, running_postgres

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """With `--dist loadfile`, who has started a stack gets the files that use it."""
    if config.getoption("dist") != "loadfile":
        return None
    # pytest wants to import its plugins itself
    from tests.support.by_stack import ByStack

    return ByStack(config, log)


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a running PostgreSQL with the template database."""
    with running_postgres() as server:
        make_template(server.url)
        yield server.url


@pytest.fixture
def database_url(server_url: str) -> Iterator[str]:
    """The URL of a migrated database of this test's own."""
    with fresh_database(server_url) as url:
        yield url


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on it."""
    made = connect_engine(database_url, role="test", pool_size=10)
    yield made
    made.dispose()
