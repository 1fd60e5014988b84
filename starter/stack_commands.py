"""The commands for the stack on this machine, and for the database."""

import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bulklane.starter.complaints import complaints
from bulklane.starter.options import DEFAULT_FOLDER, AsJson, Folder

if TYPE_CHECKING:
    from bulklane.stack import Addresses, StackRecord
    from bulklane.starter.local import LocalStack


def up(
    folder: Folder = DEFAULT_FOLDER,
    bulk_workers: Annotated[
        int | None, typer.Option(help="Bulk worker processes; by default BULKLANE_BULK_WORKERS or 2.")
    ] = None,
    operations: Annotated[
        str | None, typer.Option(help="Modules, comma-separated; by default BULKLANE_OPERATIONS or the example.")
    ] = None,
) -> None:
    """Run servers, workers and the operations' services on this machine until Ctrl-C or SIGTERM.

    DATABASE_URL, TEMPORAL_ADDRESS and OPENSEARCH_URL each replace a server; BULKLANE_CHANNELS__<NAME>__URL a service.
    """
    with complaints(), _stoppable():
        from bulklane.starter.connect import read_url
        from bulklane.starter.local import local_stack
        from bulklane.starter.settings import StackSettings

        given: dict[str, Any] = {"folder": folder, "bulk_workers": bulk_workers, "operations": operations}
        settings = StackSettings(**{name: value for name, value in given.items() if value is not None})
        if settings.postgres_url:
            read_url("DATABASE_URL", settings.postgres_url)
        begun = time.monotonic()

        def progress(line: str) -> None:
            typer.echo(f"{time.monotonic() - begun:6.1f} s  {line}")

        with local_stack(settings, progress) as local:
            _welcome(local, time.monotonic() - begun)
            local.stack.watch()
            _ignore_signals()


def _welcome(local: "LocalStack", seconds: float) -> None:
    typer.echo(f"\nBulklane is up after {seconds:.1f} s, in {local.stack.folder}\n")
    for name, url in _urls(local.addresses).items():
        typer.echo(f"  {name:<22}{url}")
    typer.echo(f"  {'operations':<22}{', '.join(local.registry.operations)}")
    folder = "" if local.settings.folder == DEFAULT_FOLDER else f" --folder {shlex.quote(str(local.settings.folder))}"
    typer.echo(f"\nIn another terminal: bulklane submit OPERATION --tenant TENANT --all --watch{folder}")
    typer.echo("Ctrl-C stops all; data and addresses are kept.\n")


def env(
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
    export: Annotated[
        bool, typer.Option("--export", help='Print lines for a shell: eval "$(bulklane env --export)".')
    ] = False,
    wait: Annotated[float, typer.Option(help="Wait so many seconds until the stack is ready.")] = 0.0,
) -> None:
    """Show where the running stack's parts are. Exit code 1: none runs, or it isn't ready in time."""
    from bulklane.starter.running import READY, NoStack, client_environment

    if as_json and export:
        typer.echo("--export: excludes --json", err=True)
        raise typer.Exit(2)
    try:
        record = _record(folder, wait)
    except NoStack as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    environment = client_environment(record.addresses)
    if as_json:
        _print_json(record, environment)
    elif export:
        for name, value in environment.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
    else:
        ready = record.addresses.extras.get(READY)
        typer.echo(f"{'process':<22}{record.owner}, {f'ready since {ready}' if ready else 'still starting'}")
        for name, url in _urls(record.addresses).items():
            typer.echo(f"{name:<22}{url}")


def install(folder: Folder = DEFAULT_FOLDER) -> None:
    """Bring the schema of BULKLANE_DATABASE_URL up to date and install the operations' row version triggers."""
    with complaints():
        from bulklane.database.engine import connect_engine
        from bulklane.operations.registry import load_registry
        from bulklane.starter import install as installing
        from bulklane.starter.connect import naming, place_of, read_url
        from bulklane.starter.running import use_running
        from bulklane.starter.settings import StarterSettings

        use_running(folder)
        settings = StarterSettings()
        read_url("BULKLANE_DATABASE_URL", settings.database_url)
        registry = load_registry(settings.modules())
        engine = connect_engine(settings.database_url, role="install", pool_size=2)
        begun = time.monotonic()
        with naming(engine):
            tables = installing.install(engine, registry)
        took = f"after {time.monotonic() - begun:.1f} s"
        typer.echo(f"{place_of(engine.url)} is ready {took}; row version triggers: {', '.join(tables) or 'none'}")


def _record(folder: Path, wait: float) -> "StackRecord":
    from bulklane.starter.running import READY, NoStack, running_stack

    deadline = time.monotonic() + wait
    while True:
        try:
            record = running_stack(folder)
            if wait <= 0 or READY in record.addresses.extras:
                return record
            missing = NoStack(f"the stack in {folder} isn't ready after {wait:g} s")
        except NoStack as error:
            missing = error
        if time.monotonic() >= deadline:
            raise missing
        time.sleep(0.1)


def _print_json(record: "StackRecord", environment: Mapping[str, str]) -> None:
    from bulklane.starter.running import READY
    from bulklane.starter.show import as_json

    ready = record.addresses.extras.get(READY)
    whole = {"owner": record.owner, "ready": ready is not None, "ready_at": ready, **asdict(record.addresses)}
    del whole["extras"]
    typer.echo(as_json({**whole, "environment": dict(environment), "pids": record.pids}))


def _urls(addresses: "Addresses") -> dict[str, str]:
    """For people: without the database's password."""
    from sqlalchemy import make_url

    channels = {
        name.removeprefix("BULKLANE_CHANNELS__").removesuffix("__URL").lower(): url
        for name, url in addresses.extras.items()
        if name.startswith("BULKLANE_CHANNELS__")
    }
    found = {
        "database": make_url(addresses.database_url).render_as_string(hide_password=True),
        "Temporal": addresses.temporal_address,
        "Temporal's interface": addresses.temporal_ui_url,
        "OpenSearch": addresses.opensearch_url,
        **{f"channel {name}": url for name, url in channels.items()},
    }
    return {name: url for name, url in found.items() if url}


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM during the start is as Ctrl-C: what was started is stopped. A second one doesn't break that off."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
