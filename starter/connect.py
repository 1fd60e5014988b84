"""A client for a command: of the environment's database or the running stack's, with errors that name the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import typer
from sqlalchemy import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bulklane.starter.client import Client
from bulklane.starter.complaints import Unavailable, explain_database, first_line
from bulklane.starter.pace import Pace
from bulklane.starter.running import use_running
from bulklane.starter.settings import StarterSettings, user_name
from bulklane.starter.show import make_console
from bulklane.starter.status import JobStatus
from bulklane.starter.views import View, make_view

AWAY_SECONDS = 60.0


@asynccontextmanager
async def connected(folder: Path, *, operations: bool = False) -> AsyncIterator[Client]:
    """A client; with the operations' modules loaded only where they are needed.

    Raises NoStack, ValidationError, OperationError and Unavailable.
    """
    use_running(folder)
    settings = StarterSettings() if operations else StarterSettings(operations="")
    read_url("BULKLANE_DATABASE_URL", settings.database_url)
    client = Client.connect(settings)
    client.who = client.who or user_name()
    try:
        with naming(client.engine):
            yield client
    finally:
        client.close()


def read_url(variable: str, text: str) -> URL:
    """A database's URL; raises Unavailable, without showing any of it: what can't be read may be a password."""
    try:
        url = make_url(text)
        url.get_dialect()
    except (ArgumentError, ImportError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise Unavailable(
            f"{variable} is no URL of a PostgreSQL database: it looks like"
            " postgresql+psycopg://user:password@host:5432/name, special characters percent-encoded"
        )
    return url


@contextmanager
def naming(engine: Engine) -> Iterator[None]:
    """Database errors as Unavailable that names the database, never its password."""
    try:
        yield
    except (DBAPIError, PoolTimeout) as error:
        raise Unavailable(explain_database(error, f"the database {place_of(engine.url)}")) from error


def place_of(url: URL) -> str:
    """Host, port and name."""
    host = url.host or url.query.get("host") or "of the local socket"
    port = f":{url.port}" if url.port else ""
    return f"{url.database} at {host}{port}"


async def watch_job(client: Client, job_id: str, *, json_lines: bool) -> JobStatus:
    """Watch a job on standard output; its last status. Raises JobUnknown."""
    try:
        return await follow(client, job_id, make_view(make_console(), json_lines=json_lines))
    except asyncio.CancelledError:
        typer.echo(f"no longer watched, the job goes on: `bulklane watch {job_id}`", err=True)
        raise


async def follow(client: Client, job_id: str, view: View, *, every: float = 0.25) -> JobStatus:
    """Show the job until it is over; its last status. It sits out a minute without the database.

    Raises JobUnknown, and what the database raises where it was away from the start or stays away.
    """
    begun = time.monotonic()
    pace, away_since, last = Pace(), None, None
    try:
        while last is None or not last.over:
            try:
                last = await client.get(job_id)
            except OperationalError as error:
                if last is None:
                    raise
                if away_since is None:
                    view.say(f"the database doesn't answer ({first_line(error.orig or error)}); asking again")
                    away_since = time.monotonic()
                if time.monotonic() - away_since > AWAY_SECONDS:
                    raise
                await asyncio.sleep(1)
                continue
            away_since = None
            seconds = time.monotonic() - begun
            view.show(seconds, last, pace.note(seconds, last))
            if not last.over:
                await asyncio.sleep(every)
    finally:
        view.end(last if last is not None and last.over else None)
    return last
