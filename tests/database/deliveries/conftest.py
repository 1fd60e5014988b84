"""Providers as processes, and the table of the calling operations."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from bulklane.stack import free_port
from tests.support.calling import Ledger, prepare
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]


@contextmanager
def running_provider(folder: Path, *options: str) -> Iterator[str]:
    """The URL of a provider as a process of its own."""
    port = free_port()
    data = ("--port", str(port), "--data", str(folder / "provider.sqlite"))
    process = subprocess.Popen([sys.executable, "-m", "examples.flights.provider", *data, *options], cwd=ROOT)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{address}/healthz", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        until(answers, what="the provider serves")
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="package")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A provider that answers at once."""
    with running_provider(tmp_path_factory.mktemp("provider")) as address:
        yield address


@pytest.fixture(scope="package")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that takes 20 ms."""
    with running_provider(tmp_path_factory.mktemp("slow-provider"), "--latency-ms", "20") as address:
        yield address


@pytest.fixture
def provider(url: str) -> Iterator[Ledger]:
    """The one that answers at once."""
    yield from _ledger(url)


@pytest.fixture
def slow(slow_url: str) -> Iterator[Ledger]:
    """The one that takes 20 ms."""
    yield from _ledger(slow_url)


@pytest.fixture
def counted(engine: Engine, database_url: str) -> Engine:
    """The engine, with the table of the calling operations."""
    prepare(database_url, "")
    return engine


def _ledger(url: str) -> Iterator[Ledger]:
    ledger = Ledger(url)
    ledger.behave()
    yield ledger
    ledger.behave()
    ledger.close()
