"""What a stack keeps in its folder beside the servers' data: the lock of its owner, its ports, and what runs."""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from bulklane.stack.processes import PORTS, StackError, free_port, is_free


class FolderLock:
    """An exclusive lock on a folder. The kernel frees it when its holder ends, in whatever way."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: int | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this object holds it."""
        return self._file is not None

    def take(self, seconds: float = 1) -> None:
        """Take it and write our process id in. Raises StackError that names the holder's id.

        It tries for `seconds`, since a look by `is_held` holds the lock for a moment.
        """
        if self._file is not None:
            raise StackError(f"the stack in {self._path.parent} runs already, in this object: stop it first")
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + seconds
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = os.pread(file, 20, 0).decode().strip() or "unknown"
                os.close(file)
                raise StackError(
                    f"a stack runs in {self._path.parent} already, owned by process {holder}: "
                    "stop that one (Ctrl-C or SIGTERM), or use another folder"
                )
            time.sleep(0.02)
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def give_back(self) -> None:
        """Free it. Nothing where it isn't ours."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def is_held(folder: Path) -> bool:
        """Whether a living process holds the folder's lock."""
        try:
            file = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)


class Ports:
    """Ports by name, written down so that a restarted stack has the same ones where they are still free."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ports.json"

    def take(self, name: str, ports: range = PORTS) -> int:
        """The port this name had before, if it is free; else a new one, which is kept from now on."""
        kept = read_json(self._path) or {}
        port = kept.get(name)
        if not isinstance(port, int) or not is_free(port):
            port = free_port(ports)
            while port in kept.values():  # another name's, whose server isn't up yet
                port = free_port(ports)
            self.keep(name, port)
        return port

    def keep(self, name: str, port: int) -> None:
        """Write down the port that a server really took."""
        write_json(self._path, {**(read_json(self._path) or {}), name: port})


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote, or None where it is missing or no object."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write the file at once or not at all: a reader never sees half of it. For its owner only: it may hold a URL
    with a password."""
    draft = path.with_name(f".{path.name}.new")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)


def _try_lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
