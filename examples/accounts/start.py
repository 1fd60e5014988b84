"""Starts a job and waits for its end."""

import asyncio

from bulklane import Client, Conflict


async def main() -> None:
    """What your service does."""
    async with Client.connect() as client:
        try:
            job = await client.submit(
                "close_accounts",
                tenant="acme",
                selection={"filter": {"field": "state", "op": "=", "value": "dormant"}},
                parameters={"reason": "dormant for two years"},
                idempotency_key="close-dormant-2026-11",
            )
        except Conflict as conflict:
            print(conflict.holder.job_id, "owns the data")
            return
        status = await client.wait(job.job_id)
        print(status.state, status.changed, "changed", status.failed, "failed")


if __name__ == "__main__":
    asyncio.run(main())
