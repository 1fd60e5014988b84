"""OpenSearch's Java archives: from the cache at once, or from a resolution that runs in the background."""

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

from bulklane.stack import jars
from bulklane.stack.processes import ChildProcess, Progress, StackError, child_environment

MISSING = "the package {0} is missing: install it (pip install {0}), or give the URL of a running OpenSearch"


class Archives:
    """The class path from the cache, or from a resolution that runs in the background and reports every few seconds."""

    def __init__(self, cache: Path, progress: Progress) -> None:
        self._cache = cache
        self._progress = progress
        self._resolver: ChildProcess | None = None
        self._stopped = threading.Event()

    @property
    def are_ready(self) -> bool:
        """Whether `wait` would return at once."""
        return self._resolver is None and jars.finished(self._cache) is not None

    def begin(self) -> None:
        """Start the resolving process, unless the cache is whole or it runs already."""
        if self._resolver is not None or jars.finished(self._cache) is not None:
            return
        if importlib.util.find_spec("jgo") is None:
            raise StackError(MISSING.format("jgo"))
        self._stopped.clear()
        command = [sys.executable, "-P", jars.__file__, str(self._cache)]
        log = self._cache / f"resolve-{os.getpid()}.log"
        self._resolver = ChildProcess("resolving OpenSearch", command, log, child_environment())
        self._resolver.start()
        threading.Thread(target=self._report, args=(self._resolver,), name="resolving OpenSearch", daemon=True).start()

    def wait(self, seconds: float) -> list[Path]:
        """The class path, begun now where it wasn't. Raises StackError where it can't be had within `seconds`."""
        self.begin()
        resolver = self._resolver
        if resolver is not None:
            code = resolver.wait(seconds)
            last_line = resolver.tail_of_log(600).rpartition("\n")[2]
            self.stop()
            if code != 0:
                why = f"not done within {seconds:g} s" if code is None else last_line or f"ended with {code}"
                raise StackError(
                    f"OpenSearch {jars.VERSION} can't be resolved from Maven Central into {self._cache} ({why}): "
                    "check the network, copy that folder from another machine, or give the URL of a running OpenSearch"
                )
            resolver.log.unlink(missing_ok=True)
        paths = jars.finished(self._cache)
        if paths is None:
            raise StackError(f"the cache {self._cache} lost files: remove it and start again")
        return paths

    def stop(self) -> None:
        """End the resolution; what was downloaded is kept."""
        self._stopped.set()
        if self._resolver is not None:
            self._resolver.stop(2)
            self._resolver = None

    def _report(self, resolver: ChildProcess) -> None:
        begun = time.monotonic()
        while resolver.running and not self._stopped.wait(3):
            count, size = jars.downloaded(self._cache)
            seconds = time.monotonic() - begun
            self._progress(
                f"resolving OpenSearch {jars.VERSION}: {count} jars, {size / 1e6:.0f} MB, {seconds:.0f} s "
                "(once for this machine)"
            )
