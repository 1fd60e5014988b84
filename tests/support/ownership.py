"""What the ownership cases ask of a counting job: started, how far, who owns its records, whole in the end."""

from typing import Any

from sqlalchemy import Engine

from bulklane import Client, Conflict, JobStatus
from bulklane.starter.local import LocalStack
from tests.support.counting import FAMILY
from tests.support.jobs import assert_balance, scalar
from tests.support.waiting import until, until_async

_EPOCHS = """
SELECT array_agg(epoch ORDER BY range_no, seq) FROM bulklane.chunk JOIN bulklane.job USING (job_no)
WHERE job_id = :j AND range_no = :r
"""
_LATEST_EPOCH = "SELECT max(epoch) FROM bulklane.range JOIN bulklane.job USING (job_no) WHERE job_id = :j"
_SECOND_KEYS = """
SELECT count(*) FROM bulklane.delivery JOIN bulklane.job USING (job_no) WHERE job_id = :j AND generation > 1
"""
_HOLDER = """
SELECT job.job_id FROM bulklane.lease JOIN bulklane.job USING (job_no) WHERE resource = :resource
"""


async def count_up(client: Client, tenant: str, operation: str = "count_up", **options: Any) -> str:
    """A counting job's id; of all the tenant's items unless `selection` says otherwise."""
    wanted: dict[str, Any] = {"selection": {"all": True}, "parallelism": 1, **options}
    return (await client.submit(operation, tenant=tenant, **wanted)).job_id


async def in_state(client: Client, job_id: str, *states: str, seconds: float = 30) -> JobStatus:
    """The job's status once it is in one of these states."""

    async def there() -> JobStatus | None:
        status = await client.get(job_id)
        return status if status.state in states else None

    found = await until_async(there, seconds, what=f"{job_id} is {' or '.join(states)}")
    assert found is not None
    return found


async def delivered(client: Client, job_id: str, seconds: float = 60) -> None:
    """Wait until the job owes nothing."""

    async def nothing_owed() -> bool:
        return (await client.get(job_id)).owed == 0

    await until_async(nothing_owed, seconds, what=f"{job_id} owes nothing")


def holder(engine: Engine, tenant: str) -> str | None:
    """The job that owns the tenant's items."""
    found: str | None = scalar(engine, _HOLDER, resource=f"{FAMILY}:{tenant}")
    return found


async def refused(client: Client, tenant: str, owner: str, operation: str = "count_up") -> None:
    """A competitor is told who owns the items; fails where it is accepted."""
    try:
        job_id = await count_up(client, tenant, operation)
    except Conflict as conflict:
        assert conflict.holder.job_id == owner
    else:
        raise AssertionError(f"{job_id} was accepted beside {owner}")


def latest_epoch(engine: Engine, job_id: str) -> int:
    """The latest attempt that took a range of the job."""
    return int(scalar(engine, _LATEST_EPOCH, j=job_id) or 0)


def overtaken(engine: Engine, job_id: str, epoch: int, seconds: float = 20) -> None:
    """Wait until a later attempt than that one has taken a range."""
    until(lambda: latest_epoch(engine, job_id) > epoch, seconds, what="a later attempt took the range")


def changes(engine: Engine, tenant: str) -> int:
    """How many changes of the tenant's items the audit saw."""
    return int(scalar(engine, "SELECT count(*) FROM counted_audit WHERE tenant = :t", t=tenant))


def assert_owned(local: LocalStack, engine: Engine, job_id: str) -> None:
    """The whole balance; one key a record; in each range the epochs of the chunks never fall."""
    assert_balance(local, engine, job_id)
    assert scalar(engine, _SECOND_KEYS, j=job_id) == 0
    for number in range(4):
        epochs = scalar(engine, _EPOCHS, j=job_id, r=number) or []
        assert epochs == sorted(epochs)
