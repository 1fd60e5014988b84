"""Child processes that end with their owner, each with a log file, and free ports for them."""

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

# Below the range from which Linux and macOS take ports of outgoing connections, so that a port that was written down is
# still free at the next start.
PORTS = range(15_000, 32_000)
LAUNCH = Path(__file__).with_name("launch.py")

Progress = Callable[[str], None]


class StackError(RuntimeError):
    """A part can't be run. The message names what is missing and the way out."""


@dataclass(frozen=True)
class Account:
    """The user a child runs as."""

    name: str
    user: int
    group: int


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port just given back looks taken
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(ports: range = PORTS) -> int:
    """One of these ports of 127.0.0.1 that nobody listens on. Raises StackError where none is found in 200 tries."""
    for port in random.SystemRandom().sample(ports, min(200, len(ports))):
        if is_free(port):
            return port
    raise StackError(
        f"no free port between {ports.start} and {ports.stop} of 127.0.0.1: end some of what listens there"
    )


def child_environment(changes: Mapping[str, str] | None = None, without: str | None = None) -> dict[str, str]:
    """This process's environment for a child, with changes, and without the variables that begin so."""
    kept = {name: value for name, value in os.environ.items() if without is None or not name.startswith(without)}
    return {**kept, **(changes or {})}


class ChildProcess:
    """One program as a child in a session of its own, so that Ctrl-C reaches the owner alone, which stops it in order.

    On Linux the kernel sends it `death_signal` when the owner ends in whatever way, also by SIGKILL. Elsewhere a child
    outlives an owner that was killed. `start` may be called from any thread.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        cwd: Path | None = None,
        run_as: Account | None = None,
        *,
        death_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self.environment = dict(environment)
        self.cwd = cwd
        self.run_as = run_as
        self.death_signal = death_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process id of the last start, also after its end; None before the first."""
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        """How it ended (negative: the signal); None while it runs or before the first start."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        """Whether it was started and hasn't ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; its output is appended to the log. Raises StackError where it runs already or can't be started."""
        if self.running:
            raise StackError(f"{self.name} runs already as process {self.pid}: stop it first")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        account = f"{self.run_as.user}:{self.run_as.group}" if self.run_as else ""
        launch = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(int(self.death_signal)), account]
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            try:
                self._process = _forker.run(
                    lambda: subprocess.Popen(
                        [*launch, *self.command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env=self.environment,
                        cwd=self.cwd,
                        start_new_session=True,
                    )
                )
            except OSError as error:
                raise StackError(f"{self.name} can't be started: {error}") from error

    def wait(self, seconds: float | None = None) -> int | None:
        """Wait for its end, at most so long; what it ended with, or None while it still runs."""
        if self._process is None:
            return None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, seconds: float, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        """Send each signal in turn and wait up to `seconds` after each; then SIGKILL. Nothing where it has ended."""
        for number in signals:
            if not self.running or self._process is None:
                return
            self._process.send_signal(number)
            if self.wait(seconds) is not None:
                return
        self.kill()

    def kill(self) -> None:
        """SIGKILL to it and to what it started in its session, and wait for its end."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def tail_of_log(self, characters: int = 2_000) -> str:
        """The end of what it wrote since its last start; nothing of earlier runs."""
        try:
            with self.log.open("rb") as output:
                size = output.seek(0, os.SEEK_END)
                output.seek(max(self._log_start, size - 4 * characters))
                return output.read().decode(errors="replace")[-characters:].strip()
        except OSError:
            return ""


class _Forker:
    """One thread that starts all children and lives as long as this process.

    The parent-death signal comes when the *thread* that forked ends, not only when the process does.
    """

    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]]
        self._wanted = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # the first time, and after a fork of this process
                self._thread = threading.Thread(target=self._serve, name="starts children", daemon=True)
                self._thread.start()
        answer: Future[subprocess.Popen[bytes]] = Future()
        self._wanted.put((start, answer))
        return answer.result()

    def _serve(self) -> None:
        while True:
            start, answer = self._wanted.get()
            try:
                answer.set_result(start())
            except BaseException as error:  # it belongs to the caller
                answer.set_exception(error)


_forker = _Forker()
