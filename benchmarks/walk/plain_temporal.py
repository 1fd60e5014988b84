"""The walk as it is usually written with Temporal: an activity for each chunk, or for each record."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.worker import Worker

QUEUE = "bench-plain"
CHUNK = 1_000
AT_ONCE = 50

_CHANGE_CHUNK = """
WITH ahead AS (SELECT id FROM flights_large WHERE id > %(after)s ORDER BY id LIMIT %(size)s), changed AS (
  UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now()
  WHERE tenant = 'nyc' AND id > %(after)s AND id <= (SELECT max(id) FROM ahead)
)
SELECT max(id) FROM ahead
"""
_CHANGE_RECORD = """
UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now() WHERE tenant = 'nyc' AND id = %s
"""
_KEYS = "SELECT id FROM flights_large ORDER BY id LIMIT %s"


@dataclass(frozen=True)
class Rows:
    """The activities."""

    url: str

    @activity.defn
    def change_chunk(self, after: int) -> int | None:
        """Change the next chunk; the last key of it."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(_CHANGE_CHUNK, {"after": after, "size": CHUNK}).fetchone()
        return found[0] if found else None

    @activity.defn
    def change_record(self, key: int) -> None:
        """Change one record."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_CHANGE_RECORD, (key,))


@workflow.defn(sandboxed=False)
class PerChunk:
    """An activity for each chunk."""

    @workflow.run
    async def run(self, chunks: int) -> int:
        """That many chunks; how many were done."""
        after: int | None = -1
        for number in range(chunks):
            after = await workflow.execute_activity_method(
                Rows.change_chunk, after, start_to_close_timeout=timedelta(seconds=30)
            )
            if after is None:
                return number
        return chunks


@workflow.defn(sandboxed=False)
class PerRecord:
    """An activity for each record, many at once."""

    @workflow.run
    async def run(self, keys: list[int]) -> int:
        """Change these."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def change(key: int) -> None:
            async with slots:
                await workflow.execute_activity_method(
                    Rows.change_record, key, start_to_close_timeout=timedelta(seconds=30)
                )

        await asyncio.gather(*(change(key) for key in keys))
        return len(keys)


def per_chunk(url: str, rows: int) -> float:
    """Rows a second of a part of the table, a chunk an activity."""
    chunks = rows // CHUNK
    return asyncio.run(_run(url, PerChunk.run, chunks, chunks * CHUNK))


def per_record(url: str, rows: int) -> float:
    """Rows a second of a part of the table, a record an activity."""
    with psycopg.connect(url) as connection:
        keys = [row[0] for row in connection.execute(_KEYS, (rows,))]
    return asyncio.run(_run(url, PerRecord.run, keys, rows))


async def _run(url: str, workflow_run: object, argument: object, rows: int) -> float:
    client = await Client.connect(**ClientConfig.load_client_connect_config())
    activities = Rows(url)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[PerChunk, PerRecord],
            activities=[activities.change_chunk, activities.change_record],
            activity_executor=threads,
            max_concurrent_activities=AT_ONCE,
        ):
            began = time.perf_counter()
            await client.execute_workflow(
                workflow_run,  # type: ignore[arg-type]
                argument,
                id=f"bench-{time.time_ns()}",
                task_queue=QUEUE,
            )
            return rows / (time.perf_counter() - began)
