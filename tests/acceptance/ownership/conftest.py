"""A stack of these tests' own: the counting operation, two bulk workers, and times shorter than in production."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from bulklane.contracts.timing import Timing
from bulklane.starter.local import LocalStack
from tests.support import counting, elsewhere
from tests.support.stacks import engine_on, stack_of

TIMES = Timing(heartbeat_timeout=1.5, sticky_timeout=0.5, workflow_task_timeout=2.0, suspect_after=6.5)
SHARED = {"BULKLANE_SMALL_MAX_RECORDS": "100", "BULKLANE_WORKFLOW_TASK_TIMEOUT": f"{TIMES.workflow_task_timeout:g}"}
OF_WORKERS = {
    f"BULKLANE_{name.upper()}": f"{getattr(TIMES, name):g}"
    for name in ("heartbeat_timeout", "sticky_timeout", "suspect_after")
}


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    modules = f"{counting.MODULE},{elsewhere.MODULE}"
    with stack_of(modules, OF_WORKERS, SHARED, connection_budget=190) as started:
        yield started


@pytest.fixture(scope="package")
def engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    with engine_on(local) as made:
        yield made
