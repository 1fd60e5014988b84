"""What a module of operations needs on a developer's machine besides the servers: data, and outside systems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DevelopmentService:
    """A program that stands for a channel's outside system.

    `command` makes the argument list from a port and a folder of its own; `ready_path` answers 200 when it serves.
    """

    name: str
    channel: str
    command: Callable[[int, Path], Sequence[str]]
    ready_path: str = "/healthz"


@dataclass(frozen=True)
class Development:
    """`DEVELOPMENT` of a module: `bulklane up` prepares its data and starts its services.

    `prepare` gets the URLs of the database and of the search engine, before the workers start; running it again does
    no harm. `index_channels` are those that go to the search engine of the stack.
    """

    prepare: Callable[[str, str], None] | None = None
    services: Sequence[DevelopmentService] = ()
    index_channels: Sequence[str] = ()
