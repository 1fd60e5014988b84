"""Servers that run already: the stack of a folder, and those that the caller names by an address."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from bulklane.stack import Addresses, Stack, StackError, StackRecord
from bulklane.starter.settings import OWN_PREFIX, StackSettings, adopt, is_set

READY = "ready_at"
CONNECT_SECONDS = 3.0
PORTS = {"http": 80, "https": 443, "postgres": 5432, "postgresql": 5432, "temporal": 7233}


class NoStack(RuntimeError):
    """No stack runs in the folder, or not yet; the message says what helps."""


def running_stack(folder: Path) -> StackRecord:
    """What the stack of this folder has written down. Raises NoStack."""
    record = Stack.read(folder)
    if record is None:
        raise NoStack(f"no stack runs in {folder}: start one with `bulklane up`, or name its folder with --folder")
    return record


def client_environment(addresses: Addresses) -> dict[str, str]:
    """The variables that a client of a running stack needs; without a channel's token, which is never written down."""
    ours = {name: value for name, value in addresses.extras.items() if name.startswith(OWN_PREFIX)}
    found = {"BULKLANE_DATABASE_URL": addresses.database_url, "TEMPORAL_ADDRESS": addresses.temporal_address, **ours}
    if addresses.temporal_ui_url:  # it is the stack's own: a namespace meant for another server doesn't count
        found["TEMPORAL_NAMESPACE"] = "default"
    return found


def use_running(folder: Path) -> None:
    """Take the folder's stack for this process, unless BULKLANE_DATABASE_URL names a database. Raises NoStack."""
    if is_set("BULKLANE_DATABASE_URL"):
        return
    try:
        record = running_stack(folder)
    except NoStack as error:
        raise NoStack(f"{error}; or set BULKLANE_DATABASE_URL") from None
    if "BULKLANE_OPERATIONS" not in record.addresses.extras:
        raise NoStack(f"the stack in {folder} is still starting: `bulklane env --wait 60` waits until it is ready")
    adopt(client_environment(record.addresses))


def check_given(settings: StackSettings) -> None:
    """Raise StackError where a server that the caller names doesn't take connections: a leftover variable, mostly."""
    temporal = f"temporal://{settings.temporal_address}" if settings.temporal_address else None
    _check("DATABASE_URL", settings.postgres_url)
    _check("TEMPORAL_ADDRESS", temporal)
    _check("OPENSEARCH_URL", settings.opensearch_url)


def _check(variable: str, url: str | None) -> None:
    if not url:
        return
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0], 0)
    except ValueError as error:
        raise StackError(f"{variable} is no address: {error}") from None
    if parts.hostname is None:  # a Unix socket, which the first query will try
        return
    try:
        socket.create_connection((parts.hostname, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise StackError(
            f"{variable} names {parts.hostname}:{port}, where nothing answers ({error}): start that server, or unset"
            f" {variable} to have one started here"
        ) from None
