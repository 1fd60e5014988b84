"""A stack of these tests' own: three kinds of provider, and times shorter than in production."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from bulklane.starter.local import LocalStack
from tests.acceptance.ownership.conftest import OF_WORKERS, SHARED
from tests.support import telling
from tests.support.stacks import engine_on, stack_of


@pytest.fixture(scope="package")
def local() -> Iterator[LocalStack]:
    """The running stack; its environment is this process's own."""
    with stack_of(telling.MODULE, OF_WORKERS, SHARED) as started:
        yield started


@pytest.fixture(scope="package")
def engine(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    with engine_on(local) as made:
        yield made
