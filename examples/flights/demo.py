"""`make demo`: the main job on real data and real servers, with a kill in the middle, checked against the outside.

Exit code 0 only if every step happened. The figures are left in `demo.json` in the data folder.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, create_engine, text

from bulklane import Client, Conflict, JobStatus
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings
from bulklane.starter.verify import Report, verify_job
from examples.flights.demo_watch import (
    BulkBackend,
    MemoryWatch,
    attempts_of,
    bulk_backends,
    first_commit_seconds,
    held_rows,
    histories,
)

FOLDER = Path(".run/demo")
MINUTES = 15
MOST_SECONDS_OF_A_STEP = 120.0

# The demo holds rows locked for seconds, to show bulk workers in the middle of a chunk; so it raises the times that
# belong together (contracts/timing.py). The defaults give way after 0.6 s.
HELD_TIMES = {
    "BULKLANE_STATEMENT_TIMEOUT": "3",
    "BULKLANE_TRANSACTION_TIMEOUT": "3.5",
    "BULKLANE_DEADLOCK_TIMEOUT": "4",
    "BULKLANE_HEARTBEAT_TIMEOUT": "4.5",
}

console = Console()
T = TypeVar("T")


class Missed(RuntimeError):
    """A step of the demo did not happen."""


class Demo:
    """One run of the demo."""

    def __init__(self, local: LocalStack) -> None:
        self.local = local
        self.engine: Engine = create_engine(local.addresses.database_url)
        self.figures: dict[str, Any] = {}
        self._begun = time.monotonic()

    async def run(self) -> None:
        """Every step; raises Missed where one did not happen."""
        with MemoryWatch() as memory:
            async with Client.connect() as client:
                await self._jobs(client)
        self.figures["peak_memory_mb"] = memory.peak_mb
        self.say(f"peak memory of all processes: {memory.peak_mb} MB")

    def say(self, line: str) -> None:
        """A line with the time since the start."""
        console.print(f"[dim]{time.monotonic() - self._begun:6.1f} s[/dim]  {line}", highlight=False)

    async def _jobs(self, client: Client) -> None:
        with self._holding_both_ranges() as release:
            submitted = time.monotonic()
            large = await client.submit(
                "reschedule_flights",
                tenant="UA",
                selection={"all": True},
                parameters={"minutes": MINUTES},
                parallelism=2,
                why="demo",
            )
            self.say(f"UA: job {large.job_id} in the {large.lane} lane")
            self._must(large.lane == "bulk", "UA's job is in the bulk lane")
            small = await self._small_beside_bulk(client)
            await self._refused(client, large.job_id)
            await self._killed(large.job_id)
            release()
        finished = [
            await self._finished(client, small, "OO", submitted),
            await self._finished(client, large.job_id, "UA", submitted),
        ]
        for status in finished:
            self._verified(status)
        await self._histories(large.job_id, small)

    @contextmanager
    def _holding_both_ranges(self) -> Iterator[Callable[[], None]]:
        """Lock one of UA's flights in the middle of each range, as a user's transaction may."""
        with held_rows(self.engine, "UA", shares=(0.2, 0.7)) as release:
            self.say("a user's transaction holds one of UA's flights in each half")
            yield release

    async def _small_beside_bulk(self, client: Client) -> str:
        slots = self.local.settings.bulk_workers * self.local.settings.bulk_slots
        before = await self._until("every bulk slot in the middle of a chunk", lambda: self._waiting(slots))
        submitted = await client.submit(
            "reschedule_flights",
            tenant="OO",
            selection={"all": True},
            parameters={"minutes": MINUTES},
            why="demo",
        )
        seconds = await self._until("OO's first commit", lambda: first_commit_seconds(self.engine, submitted.job_id))
        after = self._waiting(slots, fresh=False)
        same = {one.transaction for one in before} == {one.transaction for one in after}
        self._must(same, "every bulk slot was in the middle of the same chunk before and after OO's first commit")
        self._must(submitted.lane == "small", "OO's job is in the small lane")
        self.say(
            f"OO: job {submitted.job_id} in the {submitted.lane} lane: first commit {seconds * 1000:.0f} ms after its"
            f" acceptance, while all {slots} bulk slots were in the middle of a chunk"
        )
        self.figures["small_accept_to_first_commit_ms"] = round(seconds * 1000)
        return submitted.job_id

    def _waiting(self, slots: int, *, fresh: bool = True) -> list[BulkBackend]:
        """The bulk workers' transactions, where every slot is in one (and has most of its patience left)."""
        found = bulk_backends(self.engine)
        enough = len(found) == slots and all(one.seconds < 1.0 or not fresh for one in found)
        return found if enough else []

    async def _refused(self, client: Client, holder: str) -> None:
        try:
            await client.submit(
                "reschedule_flights", tenant="UA", selection={"all": True}, parameters={"minutes": 1}, why="demo"
            )
        except Conflict as conflict:
            self._must(conflict.holder.job_id == holder, "the refusal names the holder")
            self.say(f"a second UA job is refused at once: {conflict}")
        else:
            raise Missed("a second UA job was accepted while the first one ran")

    async def _killed(self, job_id: str) -> None:
        """SIGKILL one bulk worker inside a chunk's transaction; wait until a later attempt has the range."""
        slots = self.local.settings.bulk_workers * self.local.settings.bulk_slots
        victim = (await self._until("a chunk's transaction", lambda: self._waiting(slots)))[0]
        name = next(name for name, one in self.local.stack.workers.items() if one.pid == victim.worker_pid)
        before = await attempts_of(job_id)
        self.local.stack.kill_worker(name)
        killed = time.monotonic()
        self.say(
            f"{name} (pid {victim.worker_pid}) killed with SIGKILL inside a chunk's transaction,"
            f" {victim.seconds * 1000:.0f} ms old"
        )
        self.local.start_worker(f"{name}-again", "bulk")
        later = await self._until_async("a later attempt", lambda: _later(job_id, before))
        seconds = time.monotonic() - killed
        self.figures["later_attempt_seconds"] = round(seconds, 1)
        self.say(f"{later} began {seconds:.1f} s after the kill")

    async def _finished(self, client: Client, job_id: str, tenant: str, submitted: float) -> JobStatus:
        shown = 0.0
        async for status in client.watch(job_id, every=0.25):
            now = time.monotonic()
            if now - shown > 5 or status.over:
                shown = now
                self.say(
                    f"{tenant}: {status.state}, {status.processed} of {status.total} records,"
                    f" {status.owed} effects owed"
                )
            if now - submitted > MOST_SECONDS_OF_A_STEP * 3:
                raise Missed(f"{tenant}'s job isn't over after {now - submitted:.0f} s")
        self._must(status.state == "completed", f"{tenant}'s job is completed, not {status.state}")
        assert status.over_at is not None
        seconds = (status.over_at - status.accepted_at).total_seconds()
        self.figures[tenant] = {
            "job_id": job_id,
            "records": status.changed,
            "seconds": round(seconds, 1),
            "rows_per_second": round(status.changed / seconds),
        }
        self.say(f"{tenant}: {status.changed} records in {seconds:.1f} s, {status.changed / seconds:.0f} rows/s")
        return status

    def _verified(self, status: JobStatus) -> None:
        report = verify_job(self.engine, self.local.registry, status.job_id, self.local.endpoints)
        show_report(status.tenant, report)
        self.figures[status.tenant]["verified"] = [asdict(check) for check in report.checks]
        self._must(report.holds, f"the balance of {status.tenant}'s job is exact")

    async def _histories(self, large: str, small: str) -> None:
        found = await histories([large, small], self.local.stack.folder / "histories")
        self.figures["histories"] = found
        largest = max(one["largest_payload_bytes"] for one in found.values())
        events = found[large]["events"]
        self.say(f"UA's history: {events} events; the largest payload of any history: {largest} bytes")
        self._must(largest < 16 * 1024, "no payload is over 16 KB")
        self._must(events < 400, "UA's history is under 400 events")

    def _must(self, holds: bool, what: str) -> None:
        if not holds:
            raise Missed(f"this did not hold: {what}")

    async def _until(self, what: str, question: Callable[[], T | None]) -> T:
        async def ask() -> T | None:
            return question()

        return await self._until_async(what, ask)

    async def _until_async(self, what: str, question: Callable[[], Awaitable[T | None]]) -> T:
        deadline = time.monotonic() + MOST_SECONDS_OF_A_STEP
        while time.monotonic() < deadline:
            answer = await question()
            if answer:
                return answer
            await asyncio.sleep(0.005)
        raise Missed(f"not within {MOST_SECONDS_OF_A_STEP:g} s: {what}")


async def _later(job_id: str, before: dict[str, int]) -> str:
    now = await attempts_of(job_id)
    return next((f"attempt {attempt} of {name}" for name, attempt in now.items() if attempt > before.get(name, 1)), "")


def show_report(tenant: str, report: Report) -> None:
    """The balance as a table."""
    table = Table("what", "expected", "found", "", title=f"verify {tenant}: job {report.job_id}", title_justify="left")
    for check in report.checks:
        table.add_row(check.name, check.expected, check.found, "holds" if check.holds else f"FAILS {check.detail}")
    console.print(table)


def main() -> int:
    """Run the demo; 0 only if all of it happened."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun = time.monotonic()
    settings = StackSettings(folder=FOLDER, bulk_workers=2, bulk_slots=1)
    try:
        with local_stack(settings, console.print, worker_environment=HELD_TIMES, workers=False) as local:
            figures = _run(local)
    except Missed as missed:
        console.print(f"[bold red]{missed}[/bold red]")
        return 1
    figures["seconds"] = round(time.monotonic() - begun, 1)
    (FOLDER / "demo.json").write_text(json.dumps(figures, indent=2, default=str) + "\n")
    console.print(f"all of it happened, in {figures['seconds']} s; figures in {FOLDER / 'demo.json'}")
    return 0


def _run(local: LocalStack) -> dict[str, Any]:
    demo = Demo(local)
    _raise_deadlock_timeout(demo.engine)
    for name, role in local.workers().items():
        local.start_worker(name, role)
    local.wait_until_serving(list(local.workers()))
    os.environ.update(local.environment)
    addresses = local.addresses
    console.print(f"Temporal UI: {addresses.temporal_ui_url}   search: {addresses.opensearch_url}")
    console.print(f"database: {addresses.database_url}")
    for name, endpoint in local.endpoints.items():
        console.print(f"channel {name}: {endpoint.url}")
    asyncio.run(demo.run())
    demo.engine.dispose()
    return demo.figures


def _raise_deadlock_timeout(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ALTER SYSTEM SET deadlock_timeout = '4s'"))
        connection.execute(text("SELECT pg_reload_conf()"))


if __name__ == "__main__":
    sys.exit(main())
