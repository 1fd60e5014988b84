"""A stack of these tests' own: the counting operation, two bulk workers, and times shorter than in production."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from bulklane.contracts.timing import Timing
from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings
from tests.support import counting, elsewhere

TIMES = Timing(heartbeat_timeout=1.5, sticky_timeout=0.5, workflow_task_timeout=2.0, suspect_after=6.5)
SHARED = {"BULKLANE_SMALL_MAX_RECORDS": "100", "BULKLANE_WORKFLOW_TASK_TIMEOUT": f"{TIMES.workflow_task_timeout:g}"}
OF_WORKERS = {
    f"BULKLANE_{name.upper()}": f"{getattr(TIMES, name):g}"
    for name in ("heartbeat_timeout", "sticky_timeout", "suspect_after")
}


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        modules = f"{counting.MODULE},{elsewhere.MODULE}"
        settings = StackSettings(folder=Path(folder), operations=modules, connection_budget=190)
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
