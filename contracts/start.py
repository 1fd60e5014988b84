"""How the workflow of a job is started: the same from the starter, the control loop and a service of one's own."""

from datetime import timedelta
from typing import Any

from temporalio.common import Priority, WorkflowIDReusePolicy

from bulklane.contracts.lane import Lane, workflow_queue


def start_options(
    job_id: str, operation: str, tenant: str, lane: str, priority: int, task_timeout: float
) -> dict[str, Any]:
    """Arguments of `Client.start_workflow` for an accepted job. `task_timeout` in seconds.

    The workflow gets no argument: the database knows the job by the workflow's id. A second start while one runs is
    refused by Temporal; after its end it is allowed, and finds out from the database what is left to do.
    """
    return {
        "id": job_id,
        "task_queue": workflow_queue(Lane(lane)),
        "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        "task_timeout": timedelta(seconds=task_timeout),
        "static_summary": f"{operation} for {tenant}, {lane} lane"[:200],
        "priority": Priority(priority_key=priority, fairness_key=tenant.encode()[:64].decode(errors="ignore") or None),
    }
