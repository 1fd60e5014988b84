"""A stack of these tests' own: three kinds of provider, and times shorter than in production."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings
from tests.acceptance.ownership.conftest import OF_WORKERS, SHARED
from tests.support import telling


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        settings = StackSettings(folder=Path(folder), operations=telling.MODULE)
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
