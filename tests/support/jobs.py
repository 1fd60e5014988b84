"""What acceptance tests ask of jobs on a running stack."""

from typing import Any

from sqlalchemy import Engine, text
from temporalio.client import Client as TemporalClient
from temporalio.envconfig import ClientConfig

from bulklane import Client, JobStatus
from bulklane.starter.local import LocalStack
from bulklane.starter.verify import verify_job


async def temporal_client() -> TemporalClient:
    """A client of the stack's Temporal."""
    return await TemporalClient.connect(**ClientConfig.load_client_connect_config())


async def submit(client: Client, tenant: str, selection: dict[str, Any] | None = None, **options: Any) -> str:
    """A reschedule job's id."""
    submitted = await client.submit(
        "reschedule_flights",
        tenant=tenant,
        selection=selection or {"all": True},
        parameters={"minutes": 15},
        **options,
    )
    return submitted.job_id


async def finished(client: Client, job_id: str, seconds: float = 90) -> JobStatus:
    """The job's last status."""
    return await client.wait(job_id, seconds=seconds)


def assert_balance(local: LocalStack, engine: Engine, job_id: str) -> None:
    """The whole balance holds, against audit, index and provider."""
    report = verify_job(engine, local.registry, job_id, local.endpoints)
    failing = [check for check in report.checks if not check.holds]
    assert not failing, failing


def scalar(engine: Engine, statement: str, **values: Any) -> Any:
    """One value."""
    with engine.begin() as connection:
        return connection.execute(text(statement), values).scalar_one_or_none()


def run(engine: Engine, statement: str, **values: Any) -> None:
    """Run a statement and commit."""
    with engine.begin() as connection:
        connection.execute(text(statement), values)
