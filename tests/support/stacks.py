"""Whole local stacks of tests' own: real servers and worker processes, in a folder that is gone afterwards."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from bulklane.database.engine import connect_engine
from bulklane.starter.local import NO_ROLES, LocalStack, local_stack
from bulklane.starter.settings import StackSettings

# what running stacks have put into this process's environment: another one is not to use their servers
_given: list[dict[str, str]] = []


@contextmanager
def stack_of(
    operations: str,
    of_workers: Mapping[str, str],
    of_clients: Mapping[str, str],
    of_roles: Mapping[str, Mapping[str, str]] = NO_ROLES,
    **settings: Any,
) -> Iterator[LocalStack]:
    """The running stack; what clients need of its environment is this process's own until the end."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder, _environment_without_stacks():
        Path(folder).chmod(0o755)
        known = StackSettings(folder=Path(folder), operations=operations, **settings)
        with local_stack(known, worker_environment={**of_clients, **of_workers}, role_environment=of_roles) as started:
            _given.append({**started.environment, **of_clients})
            os.environ.update(_given[-1])
            yield started
            _given.pop()


@contextmanager
def _environment_without_stacks() -> Iterator[None]:
    before = dict(os.environ)
    for name in {name for one in _given for name in one}:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def engine_on(local: LocalStack) -> Iterator[Engine]:
    """An engine on the stack's database."""
    engine = connect_engine(local.addresses.database_url, role="test", pool_size=10)
    yield engine
    engine.dispose()
