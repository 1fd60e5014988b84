"""The three servers of a stack, each either given by its address or run by us."""

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict, Unpack

from bulklane.stack.folder import Ports
from bulklane.stack.opensearch import PORTS as OPENSEARCH_PORTS
from bulklane.stack.opensearch import OpenSearchNode
from bulklane.stack.postgres import Postgres
from bulklane.stack.processes import ChildProcess, Progress, StackError
from bulklane.stack.record import Addresses
from bulklane.stack.temporal import Setting, TemporalServer

DEFAULT_CACHE = Path("~/.cache/bulklane/opensearch")
NAMES = ("postgres", "temporal", "opensearch")
NOTHING: Mapping[str, str] = MappingProxyType({})


class Options(TypedDict, total=False):
    """What a stack can be told about its servers.

    A URL or address given replaces that part; `without` leaves parts out by name. `cache` keeps OpenSearch's archives.
    The others are parameters of `Postgres`, `TemporalServer` and `OpenSearchNode`.
    """

    cache: Path
    postgres_url: str | None
    temporal_address: str | None
    opensearch_url: str | None
    without: Collection[str]
    postgres_binaries: Path | None
    postgres_settings: Mapping[str, str]
    postgres_port: int | None
    search_attributes: Mapping[str, str]
    dynamic_config: Mapping[str, Setting]
    opensearch_settings: Mapping[str, str]


class Servers:
    """PostgreSQL, Temporal and OpenSearch in `folder`. Raises StackError for an unknown name in `without`."""

    def __init__(self, folder: Path, progress: Progress, **options: Unpack[Options]) -> None:
        without = set(options.get("without", ()))
        if not without <= set(NAMES):
            raise StackError(f"no such part: {', '.join(without - set(NAMES))}; leave out some of {', '.join(NAMES)}")
        self._folder = folder
        self._progress = progress
        self._options = options
        self._given = {
            "postgres": options.get("postgres_url"),
            "temporal": options.get("temporal_address"),
            "opensearch": options.get("opensearch_url"),
        }
        self._wanted = {name for name, given in self._given.items() if not given and name not in without}
        self._ports = Ports(folder)
        self._lock = threading.RLock()  # held while a server is down on purpose
        self.postgres: Postgres | None = None
        self.temporal: TemporalServer | None = None
        self.opensearch: OpenSearchNode | None = None

    def start(self) -> None:
        """Start those that are ours and wait until each answers. Raises StackError where one can't be had."""
        self._make()  # not before: ports are taken when the folder is ours
        begun = time.monotonic()
        if self.opensearch:
            self.opensearch.prepare()  # takes longest where the cache is empty
            if self.opensearch.is_prepared:
                self.opensearch.start()  # boots beside the others
        if self.postgres:
            self.postgres.start()
            self._report("PostgreSQL", begun, self.postgres.url)
        if self.temporal:
            self.temporal.start()
            self._report("Temporal", begun, f"{self.temporal.address}, web interface {self.temporal.ui_url}")
        if self.opensearch:
            if self.opensearch.process is None:
                self.opensearch.start()
            self.opensearch.wait_until_ready()
            self._ports.keep("opensearch", self.opensearch.port)
            self._report("OpenSearch", begun, self.opensearch.url)

    def stop(self) -> None:
        """End all, each even if another fails."""
        with ExitStack() as last_first:
            for server in (self.postgres, self.temporal, self.opensearch):
                if server:
                    last_first.callback(server.stop)

    @contextmanager
    def outage(self, name: str) -> Iterator[None]:
        """Kill -9 a server of ours by name, and start it again at the end on the same data and ports.

        `check` waits meanwhile. Raises StackError where that server isn't ours, or doesn't come back.
        """
        known = {"postgres": self.postgres, "temporal": self.temporal, "opensearch": self.opensearch}
        server = known.get(name)
        if server is None:
            raise StackError(f"this stack runs no {name} of its own")
        with self._lock:
            server.kill()
            try:
                yield
            finally:
                server.start()
                if isinstance(server, OpenSearchNode):
                    server.wait_until_ready()

    def check(self) -> None:
        """Raises StackError where a server of ours died, with the end of its log."""
        with self._lock:
            for process in self.processes().values():
                if not process.running:
                    tail = process.tail_of_log(800)
                    raise StackError(f"{process.name} ended with {process.returncode} (log: {process.log}): {tail}")

    def processes(self) -> dict[str, ChildProcess]:
        """Those of ours that were started, by name."""
        servers = {"postgres": self.postgres, "temporal": self.temporal, "opensearch": self.opensearch}
        return {name: server.process for name, server in servers.items() if server and server.process}

    def addresses(self, extras: Mapping[str, str]) -> Addresses:
        """Where the parts are now. Before `start`, those of ours are empty."""
        return Addresses(
            database_url=self.postgres.url if self.postgres else self._given["postgres"] or "",
            temporal_address=self.temporal.address if self.temporal else self._given["temporal"] or "",
            temporal_ui_url=self.temporal.ui_url if self.temporal else "",
            opensearch_url=self.opensearch.url if self.opensearch else self._given["opensearch"] or "",
            extras=dict(extras),
        )

    def _make(self) -> None:
        options, ports = self._options, self._ports
        if "postgres" in self._wanted:
            self.postgres = Postgres(
                self._folder / "postgres",
                options.get("postgres_settings"),
                options.get("postgres_port"),
                binaries=options.get("postgres_binaries"),
            )
        if "temporal" in self._wanted:
            self.temporal = TemporalServer(
                self._folder / "temporal",
                ports.take("temporal"),
                ports.take("temporal_ui"),
                options.get("search_attributes"),
                options.get("dynamic_config"),
            )
        if "opensearch" in self._wanted:
            self.opensearch = OpenSearchNode(
                self._folder / "opensearch",
                options.get("cache", DEFAULT_CACHE),
                ports.take("opensearch", OPENSEARCH_PORTS),
                options.get("opensearch_settings"),
                progress=self._progress,
            )

    def _report(self, name: str, begun: float, where: str) -> None:
        self._progress(f"{name} is ready after {time.monotonic() - begun:.1f} s: {where}")
