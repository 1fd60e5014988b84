"""The two ways in, against a real database: the Python client and the command line. Temporal is away from both.

A job that is accepted is therefore stored, and nobody has started it: the test walks it itself.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine
from typer.testing import CliRunner

from bulklane import Client, Submission
from bulklane.database.job import Job, find_job
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.starter.cli import app
from tests.database.jobs import look, opened
from tests.support import kinds
from tests.support.walking import walk_whole

NOBODY = "127.0.0.1:1"


@dataclass(frozen=True)
class Doors:
    """Both ways to a database with the tables of `kinds`."""

    engine: Engine
    url: str

    @property
    def registry(self) -> Registry:
        """The operations of `kinds`."""
        return load_registry([kinds.MODULE])

    def submit(self, operation: str, selection: Any, parameters: Any = None, **options: Any) -> Submission:
        """By the client."""
        client = Client(self.engine, self.registry, small_max_records=100)
        asked = client.submit(operation, tenant="acme", selection=selection, parameters=parameters, **options)
        return asyncio.run(asked)

    def command(self, operation: str, *words: str) -> tuple[int, str]:
        """By `bulklane submit`: its exit code, and what it said on standard error."""
        environment = {
            "BULKLANE_DATABASE_URL": self.url,
            "BULKLANE_OPERATIONS": kinds.MODULE,
            "TEMPORAL_ADDRESS": NOBODY,
        }
        result = CliRunner(env=environment).invoke(app, ["submit", operation, "--tenant", "acme", *words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stderr

    def job(self, submission: Submission) -> Job:
        """The job as it stands."""
        with self.engine.connect() as connection:
            found = find_job(connection, submission.job_id)
        assert found is not None
        return found

    def run(self, submission: Submission) -> Job:
        """Open, walk and end a job that owes nothing."""
        job = opened(self.engine, self.job(submission))
        walk_whole(self.engine, self.registry, job)
        return look(self.engine, job)
