"""What operations' modules need around them on one machine: their data, their outside systems, our schema."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from bulklane.database.engine import connect_engine
from bulklane.operations.channel import Endpoint
from bulklane.operations.development import Development, DevelopmentService
from bulklane.operations.operation import Registry
from bulklane.operations.registry import load_registry
from bulklane.stack import Stack, StackError
from bulklane.stack.folder import Ports
from bulklane.stack.processes import Progress
from bulklane.starter.connect import naming
from bulklane.starter.install import install
from bulklane.starter.settings import StackSettings, python_path


def load_modules(settings: StackSettings) -> tuple[Registry, dict[str, Development]]:
    """The registry of the settings' modules, and what each needs on this machine.

    Raises StackError and OperationError.
    """
    modules = settings.modules()
    if not modules:
        raise StackError(
            "no operations: set BULKLANE_OPERATIONS to the modules that end in OPERATIONS = [...], such as"
            " BULKLANE_OPERATIONS=acme.bulk (they are imported from the current folder, PYTHONPATH and site-packages)"
        )
    registry = load_registry(modules)
    developments = {name: getattr(sys.modules[name], "DEVELOPMENT", Development()) for name in modules}
    for name, found in developments.items():
        if not isinstance(found, Development):
            raise StackError(f"DEVELOPMENT of the module {name} must be a bulklane.operations.development.Development")
    _check_channels(settings, registry, developments)
    return registry, developments


def _check_channels(settings: StackSettings, registry: Registry, developments: Mapping[str, Development]) -> None:
    known = set(settings.channels)
    for development in developments.values():
        known |= {*development.index_channels, *(service.channel for service in development.services)}
    for name in registry.channels:
        if name not in known:
            raise StackError(
                f"nobody says where the channel {name!r} goes: set {variable(name, 'URL')}, or name it in the"
                " module's DEVELOPMENT (services or index_channels)"
            )


def prepare(stack: Stack, registry: Registry, developments: Mapping[str, Development], progress: Progress) -> None:
    """The modules' data, then our schema and the row version triggers. Raises StackError and DatabaseUnfit."""
    begun = time.monotonic()
    addresses = stack.addresses()
    for name, development in developments.items():
        if development.prepare is None:
            continue
        try:
            development.prepare(addresses.database_url, addresses.opensearch_url)
        except Exception as error:
            raise StackError(f"`prepare` of {name}.DEVELOPMENT failed: {type(error).__name__}: {error}") from error
        progress(f"data of {name} is prepared after {time.monotonic() - begun:.1f} s")
    engine = connect_engine(addresses.database_url, role="up", pool_size=2)
    try:
        with naming(engine):
            tables = install(engine, registry)
    finally:
        engine.dispose()
    progress(f"database is migrated after {time.monotonic() - begun:.1f} s, row version triggers: {', '.join(tables)}")


def find_endpoints(
    stack: Stack,
    settings: StackSettings,
    registry: Registry,
    developments: Mapping[str, Development],
    progress: Progress,
) -> dict[str, Endpoint]:
    """Where each channel goes: what the caller's environment says, else the index or a service, which is started.

    Raises StackError where a service doesn't start.
    """
    found = {name: one for name, one in settings.endpoints().items() if name in registry.channels}
    search = Endpoint(stack.addresses().opensearch_url)
    for development in developments.values():
        for name in development.index_channels:
            found.setdefault(name, search)
        for service in development.services:
            if service.channel not in found:
                found[service.channel] = Endpoint(_start_service(stack, service, progress))
    return found


def _start_service(stack: Stack, service: DevelopmentService, progress: Progress) -> str:
    begun = time.monotonic()
    folder: Path = stack.folder / "services" / service.name
    folder.mkdir(parents=True, exist_ok=True)
    port = Ports(stack.folder).take(f"service-{service.name}")
    url = f"http://127.0.0.1:{port}"
    ready = f"{url}/{service.ready_path.lstrip('/')}"
    command = service.command(port, folder)
    stack.start_service(service.name, command, {"PYTHONPATH": python_path()}, ready=lambda: _answers(ready))
    progress(f"{service.name} is ready after {time.monotonic() - begun:.1f} s: {url}")
    return url


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def variable(channel: str, field: str) -> str:
    """The environment variable of a channel's `URL` or `TOKEN`."""
    return f"BULKLANE_CHANNELS__{channel.upper()}__{field}"
