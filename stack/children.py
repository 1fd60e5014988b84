"""The worker and service processes of a stack: started, killed, brought back after a death."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bulklane.stack.processes import ChildProcess, Progress, StackError, child_environment

FIRST_PAUSE = 0.5  # seconds before the first restart; doubled with each death soon after the last
LONGEST_PAUSE = 10.0
HEALTHY_AFTER = 30.0  # seconds of life after which a death counts as the first again


@dataclass
class Supervised:
    """One child with what is known of its restarts. `due` is a time of `time.monotonic`; None: none is due."""

    process: ChildProcess
    pause: float = FIRST_PAUSE
    started: float = 0.0
    due: float | None = None
    restarts: int = 0


class Children:
    """Named children with a log each in `logs`. All methods may be called from any thread."""

    def __init__(self, logs: Path, progress: Progress) -> None:
        self._logs = logs
        self._progress = progress
        self._lock = threading.RLock()
        self._all: dict[str, Supervised] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> ChildProcess:
        """Start a new one; `environment` goes over ours. Raises StackError where the name runs or the start fails."""
        with self._lock:
            known = self._all.get(name)
            if known and known.process.running:
                raise StackError(f"{name} runs already as process {known.process.pid}: choose another name")
            process = ChildProcess(name, command, self._logs / f"{name}.log", child_environment(environment))
            process.start()
            self._all[name] = Supervised(process, started=time.monotonic())
            return process

    def processes(self) -> dict[str, ChildProcess]:
        """All by name, dead ones that are to come back included."""
        with self._lock:
            return {name: child.process for name, child in self._all.items()}

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would end it: `look` brings it back. Raises StackError for an unknown name."""
        self._get(name).process.kill()

    def stop(self, name: str, seconds: float) -> None:
        """SIGTERM, SIGKILL after `seconds`, and forget it: it doesn't come back. Raises StackError as `kill`."""
        child = self._get(name)
        with self._lock:
            self._all.pop(name, None)
        child.process.stop(seconds)

    def restart(self, name: str, seconds: float) -> None:
        """Stop it as `stop` does where it runs, and start it again. Raises StackError as `kill`."""
        child = self._get(name)
        with self._lock:
            child.process.stop(seconds)
            self._revive(child)

    def stop_all(self, seconds: float) -> None:
        """Ask all at once, wait up to `seconds` for all together, then SIGKILL."""
        with self._lock:
            children, self._all = list(self._all.values()), {}
        threads = [threading.Thread(target=child.process.stop, args=(seconds,), daemon=True) for child in children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def look(self) -> bool:
        """Report those that died, and start again those whose pause is over. Whether something was started."""
        changed = False
        with self._lock:
            for child in self._all.values():
                changed |= self._look_at(child)
        return changed

    def _look_at(self, child: Supervised) -> bool:
        now = time.monotonic()
        if child.process.running:
            return False
        if child.due is None:
            child.pause = FIRST_PAUSE if now - child.started > HEALTHY_AFTER else child.pause
            child.due = now + child.pause
            self._progress(
                f"{child.process.name} ended with {child.process.returncode}, starts again in {child.pause:g} s "
                f"(log: {child.process.log})"
            )
            child.pause = min(2 * child.pause, LONGEST_PAUSE)
            return False
        if now < child.due:
            return False
        self._revive(child)
        child.restarts += 1
        self._progress(f"{child.process.name} runs again as process {child.process.pid}")
        return True

    def _revive(self, child: Supervised) -> None:
        child.process.start()
        child.started, child.due = time.monotonic(), None

    def _get(self, name: str) -> Supervised:
        with self._lock:
            if name not in self._all:
                raise StackError(f"nothing is called {name} here: there is {', '.join(self._all) or 'nothing'}")
            return self._all[name]
