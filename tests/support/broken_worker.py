"""A control worker of a bad deploy: its BulkJob has a bug. Everything else is the product's."""

import sys
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from bulklane.contracts.job import JobView
    from bulklane.workflows.activity_options import control_options


@workflow.defn(name="BulkJob")
class BrokenJob:
    """Opens the job; then, by the beginning of its id, fails, or raises what Temporal retries the task for."""

    @workflow.run
    async def run(self, *arguments: Any) -> None:
        """Open, and break."""
        await workflow.execute_activity("open_job", list(arguments), result_type=JobView, **control_options("control"))
        if workflow.info().workflow_id.startswith("fails"):
            raise ApplicationError("a bug", non_retryable=True)
        raise RuntimeError("a bug")

    @workflow.signal
    def look(self, *_arguments: Any) -> None:
        """As the product's."""


if __name__ == "__main__":
    from bulklane.workers import build
    from bulklane.workers.__main__ import main
    from tests.support.broken_worker import BrokenJob as Imported

    build.WORKFLOWS = {**build.WORKFLOWS, "BulkJob": Imported}
    main("control")
    sys.exit(0)
