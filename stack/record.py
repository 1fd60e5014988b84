"""What a running stack tells others: its addresses and processes, in one file of its folder."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from bulklane.stack.folder import FolderLock, read_json, write_json

NAME = "stack.json"


@dataclass(frozen=True)
class Addresses:
    """Where the parts are; empty for one that is left out, and for the web interface of a Temporal given by address."""

    database_url: str
    temporal_address: str
    temporal_ui_url: str
    opensearch_url: str
    extras: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StackRecord:
    """A running stack: its owner's process id, its addresses, and the ids of its processes by name."""

    owner: int
    addresses: Addresses
    pids: dict[str, int]


def write_record(folder: Path, record: StackRecord) -> None:
    """Write it at once or not at all."""
    write_json(folder / NAME, asdict(record))


def read_record(folder: Path) -> StackRecord | None:
    """The record of the stack that runs in this folder; None where none runs, whatever an earlier one left."""
    content = read_json(folder / NAME)
    if content is None or not FolderLock.is_held(folder):
        return None
    try:
        return StackRecord(int(content["owner"]), Addresses(**content["addresses"]), dict(content["pids"]))
    except (KeyError, TypeError, ValueError):
        return None


def remove_record(folder: Path) -> None:
    """Remove it. Nothing where there is none."""
    (folder / NAME).unlink(missing_ok=True)
