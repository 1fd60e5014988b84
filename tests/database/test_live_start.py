"""A live job started as a plain workflow: `open_job` reads the same request, and refuses the same."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Engine, Index, MetaData, Table
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from bulklane.activities.job_lifecycle import JobLifecycle
from bulklane.contracts.timing import Timing
from bulklane.operations.operation import Registry
from tests.database.jobs import common_columns, registry_of, rows, simple_operation
from tests.database.live_jobs import ALL, fill


def open_directly(engine: Engine, registry: Registry) -> Any:
    """What the first activity of such a workflow answers."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, current_attempt_scheduled_time=datetime.now(UTC))
    lifecycle = JobLifecycle(engine, registry, Timing(), 100, False, "test")
    start = {"operation": "made", "tenant": "acme", "selection": ALL}
    return environment.run(lifecycle.open_job, [start])


@pytest.mark.parametrize("indexed", [True, False])
def test_a_plain_start_is_bounded_or_refused(engine: Engine, indexed: bool) -> None:
    key = Column("id", BigInteger, primary_key=indexed, nullable=False)
    table = Table("thing", MetaData(), key, *common_columns(), Index("by_n", "n"))
    registry = registry_of(simple_operation(engine, table, ["id"]))
    fill(engine, table, [{"id": number} for number in range(5)] if indexed else [{"id": 1}])
    if indexed:
        view = open_directly(engine, registry)
        assert (view.phase, view.total, view.ranges) == ("walk", 5, 1)
        assert rows(engine, "SELECT live, state FROM bulklane.selection") == [(True, "bounded")]
        return
    with pytest.raises(ApplicationError, match="thing has no index") as refused:
        open_directly(engine, registry)
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidStart", True)
    assert rows(engine, "SELECT count(*) FROM bulklane.job") == [(0,)]
