"""All contenders in one run on the embedded PostgreSQL (fsync on), each on a table as new; then ten times the rows."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import typer
from sqlalchemy import Engine, make_url

from benchmarks.measure import Ceiling, Goal, RatioGoal, Rounds, console, report
from benchmarks.walk import bare, plain_temporal
from benchmarks.walk.jobs import Walked, walk
from benchmarks.walk.table import bytes_a_row, check_changed, fill
from bulklane.database.engine import connect_engine
from bulklane.starter.local import LocalStack, local_stack
from bulklane.starter.settings import StackSettings

CHUNKED_ROWS = 100_000
SINGLE_ROWS = 1_000
WORKERS = ("control", "small", "bulk-1", "bulk-2")
# nobody sends what is owed here, lest it would take its time from the walk that is measured
NO_DEBT_LIMIT = {"BULKLANE_DEBT_LIMIT": "1000000000"}
DOCUMENTS, NOTICES = "move_with_documents", "move_with_notices"


class Contenders:
    """Each fills the table, changes every row once, and gives its rate; what it noticed besides is kept."""

    def __init__(self, local: LocalStack, engine: Engine, rows: int) -> None:
        self.walks: dict[str, list[Walked]] = {}
        self._local = local
        self._engine = engine
        self._rows = rows
        url = make_url(local.addresses.database_url).set(drivername="postgresql")
        self._url = url.render_as_string(hide_password=False)

    def all(self) -> dict[str, Callable[[], float]]:
        """By name."""
        return {
            "raw UPDATE": partial(self._bare, bare.raw),
            "bare range": partial(self._bare, bare.range_loop),
            "bare frozen": partial(self._bare, bare.frozen_loop),
            "bare intent": partial(self._bare, bare.intent_loop),
            "bare parallel": partial(self._bare, partial(bare.frozen_loop, ranges=2)),
            "range": partial(self._job, "range", DOCUMENTS, live=True, parallelism=1),
            "frozen": partial(self._job, "frozen", DOCUMENTS, parallelism=1),
            "intent": partial(self._job, "intent", NOTICES, parallelism=1),
            "parallel": partial(self._job, "parallel", DOCUMENTS, parallelism=2),
            "Temporal, activity a chunk": partial(self._part, plain_temporal.per_chunk, CHUNKED_ROWS),
            "Temporal, activity a record": partial(self._part, plain_temporal.per_record, SINGLE_ROWS),
        }

    def _bare(self, seconds: Callable[[str], float]) -> float:
        fill(self._engine, self._rows)
        taken = seconds(self._url)
        self._check()
        return self._rows / taken

    def _job(self, name: str, operation: str, **options: Any) -> float:
        fill(self._engine, self._rows)
        walked = walk(self._local, self._engine, operation, **options)
        self._check()
        self.walks.setdefault(name, []).append(walked)
        return self._rows / walked.seconds

    def _part(self, rate: Callable[[str, int], float], rows: int) -> float:
        fill(self._engine, min(self._rows, CHUNKED_ROWS))
        return rate(self._url, rows)

    def _check(self) -> None:
        with self._engine.connect() as connection:
            check_changed(connection, self._rows)


def main(rows: int = 1_000_000, rounds: int = 3, scale: int = 10, only: str = "") -> None:
    """`rows`: of the table; `scale`: how many times as many for the last walk, 0 for none.

    `only`: a look at some contenders, comma-separated; nothing is written then.
    """
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        settings = StackSettings(folder=Path(folder), operations="benchmarks.walk.operation")
        with local_stack(settings, console.print, workers=False, worker_environment=NO_DEBT_LIMIT) as local:
            os.environ.update(local.environment)
            roles = local.workers()
            for name in WORKERS:
                local.start_worker(name, roles[name])
            local.wait_until_serving(WORKERS)
            engine = connect_engine(local.addresses.database_url, role="bench", pool_size=2)
            if only:
                all_of_them = Contenders(local, engine, rows).all()
                Rounds().run({name: all_of_them[name] for name in only.split(",")}, rounds)
                raise typer.Exit
            met = _measure(local, engine, rows, rounds, scale)
            engine.dispose()
    raise typer.Exit(0 if met else 1)


def _measure(local: LocalStack, engine: Engine, rows: int, rounds: int, scale: int) -> bool:
    measured, contenders = Rounds(), Contenders(local, engine, rows)
    measured.run(contenders.all(), rounds)
    with engine.connect() as connection:
        facts: dict[str, Any] = {"rows": rows, "bytes_a_row": bytes_a_row(connection)}
    facts |= {name: _facts(walks) for name, walks in contenders.walks.items()}
    goals: list[Goal] = [
        _goal(measured, "range", 0.85),
        _goal(measured, "frozen", 0.8),
        _goal(measured, "intent", 0.45),
        _goal(measured, "parallel", 1.1),
    ]
    if scale:
        large = Contenders(local, engine, rows * scale)
        rate = large.all()["frozen"]()
        walked = large.walks["frozen"][0]
        facts["large"] = {"rows": rows * scale, "rate": rate} | _facts([walked])
        goals += [
            Goal("scale", rate / median(measured.rates["frozen"]), 0.9),
            Ceiling("history", walked.events / (rows * scale / 1_000_000), 400),
            Ceiling("memory", max(late / early for early, late in walked.memory.values()), 1.1),
        ]
    return report("walk", measured, "raw UPDATE", goals, facts)


def _goal(measured: Rounds, name: str, goal: float) -> RatioGoal:
    return RatioGoal(name, measured.ratio(name, "raw UPDATE"), goal, measured.ratio(name, f"bare {name}"))


def _facts(walks: list[Walked]) -> dict[str, Any]:
    return {
        "seconds": [walk.seconds for walk in walks],
        "freeze_seconds": [walk.freeze_seconds for walk in walks],
        "chunks": [walk.chunks for walk in walks],
        "events": [walk.events for walk in walks],
        "worker_kilobytes": [walk.memory for walk in walks],
    }


if __name__ == "__main__":
    typer.run(main)
