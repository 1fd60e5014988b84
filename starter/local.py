"""The local stack put together: servers, an operations module's data and services, and the workers of every role."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from bulklane.contracts.lane import EFFECTS_PREFIX
from bulklane.contracts.search_attribute import SEARCH_ATTRIBUTES
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Registry
from bulklane.stack import Addresses, ChildProcess, Stack, StackError
from bulklane.stack.processes import Progress
from bulklane.stack.servers import Options
from bulklane.starter.running import READY, check_given, client_environment
from bulklane.starter.settings import StackSettings, python_path
from bulklane.starter.surroundings import find_endpoints, load_modules, prepare, variable

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_ROLES: Mapping[str, Mapping[str, str]] = MappingProxyType({})
SERVING = '"event": "serving"'
SERVING_SECONDS = 60.0
MOST_SLOTS = 8
POOL_BEYOND_SLOTS = 2  # what a worker's pool has beside one connection a slot


@dataclass(frozen=True)
class LocalStack:
    """A running stack with what its clients and workers need to know.

    `environment`: for clients, `StarterSettings` and Temporal's own configuration. `endpoints`: by channel.
    `worker_environment` goes over it for every worker, `role_environment` for one role's.
    """

    stack: Stack
    settings: StackSettings
    registry: Registry
    endpoints: Mapping[str, Endpoint]
    environment: dict[str, str]
    worker_environment: Mapping[str, str]
    role_environment: Mapping[str, Mapping[str, str]]

    @property
    def addresses(self) -> Addresses:
        """Where the parts are."""
        return self.stack.addresses()

    def workers(self) -> dict[str, str]:
        """The worker processes that the settings ask for: the role by the process's name."""
        bulk = {f"bulk-{number}": "bulk" for number in range(1, self.settings.bulk_workers + 1)}
        effects = {f"effects-{name}": EFFECTS_PREFIX + name for name in self.registry.channels}
        return {"small": "small", "control": "control", **bulk, **effects}

    def start_worker(self, name: str, role: str, environment: Mapping[str, str] = NOTHING) -> ChildProcess:
        """Start one more worker; `environment` goes over that of its role. Raises StackError where the name runs."""
        whole = {**self._environment_of(name, role), **environment}
        return self.stack.start_worker(name, [sys.executable, "-m", "bulklane.workers", role], whole)

    def wait_until_serving(self, names: Sequence[str], seconds: float = SERVING_SECONDS) -> None:
        """Wait until each of these workers has said that it serves. Raises StackError where one ends, or takes longer.

        They say so at the log levels INFO and DEBUG only.
        """
        deadline = time.monotonic() + seconds
        for name in names:
            while SERVING not in (said := self.stack.workers[name].tail_of_log(20_000)):
                process = self.stack.workers[name]
                if not process.running:
                    raise StackError(f"{name} ended with {process.returncode} (log: {process.log}): {said[-1500:]}")
                if time.monotonic() > deadline:
                    raise StackError(f"{name} doesn't serve after {seconds:g} s (log: {process.log}): {said[-1500:]}")
                time.sleep(0.05)

    def _environment_of(self, name: str, role: str) -> dict[str, str]:
        settings, processes = self.settings, len(self.workers())
        left = settings.connection_budget // processes - POOL_BEYOND_SLOTS
        slots = settings.bulk_slots if role == "bulk" else settings.slots or max(1, min(MOST_SLOTS, left))
        tokens = {variable(name, "TOKEN"): one.token for name, one in self.endpoints.items() if one.token}
        return {
            **self.environment,
            **tokens,
            "PYTHONPATH": python_path(),
            "BULKLANE_PROCESSES": str(processes),
            "BULKLANE_CONNECTION_BUDGET": str(settings.connection_budget),
            "BULKLANE_PROCESS_NAME": name,
            "BULKLANE_SLOTS": str(slots),
            "BULKLANE_LOG_LEVEL": "DEBUG" if settings.log_level == "DEBUG" else "INFO",
            **self.worker_environment,
            **self.role_environment.get(role, NOTHING),
        }


def _quiet(_line: str) -> None:
    """Progress that nobody wants to see."""


@contextmanager
def local_stack(
    settings: StackSettings,
    progress: Progress = _quiet,
    *,
    worker_environment: Mapping[str, str] = NOTHING,
    role_environment: Mapping[str, Mapping[str, str]] = NO_ROLES,
    workers: bool = True,
) -> Iterator[LocalStack]:
    """Start all, wait until the workers serve, and stop all at the end. It does not watch: see `Stack.watch`.

    `worker_environment` goes to every worker, `role_environment` to those of a role (`small`, `bulk`, `control`,
    `effects:<channel>`). Without `workers`, the caller starts them by `LocalStack.start_worker`. Raises StackError
    and OperationError, each with the way out.
    """
    registry, developments = load_modules(settings)
    check_given(settings)
    with Stack(settings.folder, progress=progress, **_options(settings, registry)) as stack:
        stack.start_servers()
        prepare(stack, registry, developments, progress)
        endpoints = find_endpoints(stack, settings, registry, developments, progress)
        for name, endpoint in endpoints.items():
            stack.add_extra(variable(name, "URL"), endpoint.url)
        stack.add_extra("BULKLANE_OPERATIONS", settings.operations)
        environment = client_environment(stack.addresses())
        local = LocalStack(
            stack, settings, registry, endpoints, environment, dict(worker_environment), dict(role_environment)
        )
        if workers:
            _start_workers(local, progress)
        stack.add_extra(READY, datetime.now(UTC).isoformat(timespec="milliseconds"))
        yield local


def _options(settings: StackSettings, registry: Registry) -> Options:
    return Options(
        cache=settings.cache,
        postgres_url=settings.postgres_url,
        temporal_address=settings.temporal_address,
        opensearch_url=settings.opensearch_url,
        search_attributes=dict.fromkeys(SEARCH_ATTRIBUTES, "Keyword"),
        # a module whose channels index nothing is spared the server that takes longest
        without=() if any(channel.indexes for channel in registry.channels.values()) else ("opensearch",),
    )


def _start_workers(local: LocalStack, progress: Progress) -> None:
    begun = time.monotonic()
    roles = local.workers()
    for name, role in roles.items():
        local.start_worker(name, role)
    local.wait_until_serving(list(roles))
    progress(f"{len(roles)} workers serve after {time.monotonic() - begun:.1f} s: {', '.join(roles)}")
