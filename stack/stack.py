"""The whole stack on one machine: real servers, workers and services, in one folder, owned by one process."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Self, Unpack

from bulklane.stack.children import Children
from bulklane.stack.folder import FolderLock
from bulklane.stack.processes import ChildProcess, Progress, StackError
from bulklane.stack.record import Addresses, StackRecord, read_record, remove_record, write_record
from bulklane.stack.servers import NOTHING, Options, Servers


class Stack:
    """Servers, workers and services in `folder`, which keeps data and ports over restarts.

    `options` say what the servers are (see `Options`); an address given replaces that part. `progress` gets a line for
    each step, from several threads. As root, others are let pass through the folder (not read it), since PostgreSQL
    runs as another user. As a context manager it starts nothing, and stops everything at the end.
    """

    def __init__(self, folder: Path, *, progress: Progress = lambda _: None, **options: Unpack[Options]) -> None:
        self.folder = folder.expanduser().resolve()
        self.servers = Servers(self.folder, progress, **options)
        self._progress = progress
        self._lock = FolderLock(self.folder)
        self._extras: dict[str, str] = {}
        self._stopping = threading.Event()
        self._workers = Children(self.folder / "logs", progress)
        self._services = Children(self.folder / "logs", progress)

    def start_servers(self) -> None:
        """Start the servers that aren't given, and wait until each answers.

        Raises StackError where another process owns the folder or a part can't be had; what was started is stopped.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        self._stopping.clear()
        try:
            if os.geteuid() == 0:
                self.folder.chmod(self.folder.stat().st_mode | 0o011)
            self.servers.start()
            self._write()
        except BaseException:
            self.stop()
            raise

    def start_worker(self, name: str, command: Sequence[str], environment: Mapping[str, str] = NOTHING) -> ChildProcess:
        """Start a worker; `environment` goes over ours. Raises StackError where the name runs or the start fails."""
        self._check_owned()
        process = self._workers.start(name, command, environment)
        self._write()
        return process

    def start_service(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] = NOTHING,
        ready: Callable[[], bool] = lambda: True,
        seconds: float = 30,
    ) -> ChildProcess:
        """Start some other process, which outlives the workers, and wait until `ready` says so.

        Raises StackError as `start_worker`, and where it ends or isn't ready within `seconds`.
        """
        self._check_owned()
        process = self._services.start(name, command, environment)
        deadline = time.monotonic() + seconds
        while not ready():
            if not process.running or time.monotonic() > deadline:
                ended = f"it ended with {process.returncode}" if not process.running else f"not within {seconds:g} s"
                self._services.stop(name, 2)
                raise StackError(f"{name} didn't get ready ({ended}): {process.tail_of_log()}")
            time.sleep(0.05)
        self._write()
        return process

    @property
    def workers(self) -> Mapping[str, ChildProcess]:
        """The workers by name, dead ones that `watch` brings back included."""
        return MappingProxyType(self._workers.processes())

    @property
    def services(self) -> Mapping[str, ChildProcess]:
        """The services by name, as `workers`."""
        return MappingProxyType(self._services.processes())

    def kill_worker(self, name: str) -> None:
        """SIGKILL. It stays dead until `watch` or `restart_worker` starts it again. Raises StackError if unknown."""
        self._workers.kill(name)

    def stop_worker(self, name: str, seconds: float = 20) -> None:
        """SIGTERM, SIGKILL after `seconds`; it doesn't come back. Raises StackError if unknown."""
        self._workers.stop(name, seconds)
        self._write()

    def restart_worker(self, name: str, seconds: float = 20) -> None:
        """Stop it as `stop_worker` does where it runs, and start it again. Raises StackError if unknown."""
        self._workers.restart(name, seconds)
        self._write()

    def outage(self, name: str) -> AbstractContextManager[None]:
        """Kill -9 a server ("postgres", "temporal", "opensearch") for the body of a `with`; see `Servers.outage`."""
        return self.servers.outage(name)

    def addresses(self) -> Addresses:
        """Where the parts are now. Before `start_servers`, those of ours are empty."""
        return self.servers.addresses(self._extras)

    def add_extra(self, name: str, value: str) -> None:
        """Publish one more address, such as a service's, in `addresses` and the record."""
        self._check_owned()
        self._extras[name] = value
        self._write()

    def watch(self) -> None:
        """Block until `request_stop`, SIGINT or SIGTERM; bring back workers and services that die.

        The pause before a restart grows from 0.5 to 10 s. Signals are taken in the main thread only. It stops
        nothing itself. Raises StackError where a server of ours dies, with the end of its log.
        """
        with _signals(self.request_stop):
            while not self._stopping.wait(0.2):
                self.servers.check()
                if self._workers.look() | self._services.look():
                    self._write()

    def request_stop(self) -> None:
        """Make `watch` return."""
        self._stopping.set()

    def stop(self, seconds: float = 20) -> None:
        """End all: workers (SIGTERM, SIGKILL after `seconds`), services, servers. Each even if another fails."""
        self._stopping.set()
        if not self._lock.is_ours:
            return
        with ExitStack() as last_first:
            last_first.callback(self._lock.give_back)
            last_first.callback(remove_record, self.folder)
            last_first.callback(self.servers.stop)
            last_first.callback(self._services.stop_all, seconds)
            last_first.callback(self._workers.stop_all, seconds)
            self._progress("stopping")

    @staticmethod
    def read(folder: Path) -> StackRecord | None:
        """What the stack that runs in this folder wrote down; None where none runs, whatever an earlier one left."""
        return read_record(folder.expanduser())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check_owned(self) -> None:
        if not self._lock.is_ours:
            raise StackError(f"the stack in {self.folder} doesn't run: call start_servers first")

    def _write(self) -> None:
        if not self._lock.is_ours:
            return
        running = {**self.servers.processes(), **self._services.processes(), **self._workers.processes()}
        pids = {name: process.pid for name, process in running.items() if process.pid}
        write_record(self.folder, StackRecord(os.getpid(), self.addresses(), pids))


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
