"""Operations whose only effects are provider calls, in parts that don't exclude each other; the items of `counting`.

Two providers: `limited`, that answers at once and is given limits by the tests, and `slow`, that takes 20 ms.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import create_engine, text

from bulklane.operations.channel import Channel
from bulklane.operations.development import Development, DevelopmentService
from bulklane.operations.operation import CallEffect, Operation, Records
from bulklane.operations.senders.http_provider import HttpProvider
from examples.flights.operation import judge_look_up, judge_notice
from tests.support.counting import TRIGGERS, items, metadata

MODULE = "tests.support.calling"


@dataclass(frozen=True)
class PartParameters:
    """Which part of the tenant's items: parts have jobs side by side."""

    part: int = 0


class CallLimited(Operation):
    """One call an item to `limited`."""

    name = "call_limited"
    parameters = PartParameters
    records = Records(table=items, key=[items.c.item], tenant=items.c.tenant, row_version=items.c.row_version)
    fields = {"item": items.c.item}
    effects = (CallEffect("notice", channel="limited", body={"record": items.c.item, "n": items.c.n}),)

    def change(self, parameters: PartParameters) -> Any:
        """One statement."""
        return items.update().values(n=items.c.n + 1)

    def resources(self, tenant: str, parameters: PartParameters) -> Sequence[str]:
        """The part alone."""
        return [f"{self.name}:{tenant}:{parameters.part}"]


class CallSlow(CallLimited):
    """One call an item to `slow`."""

    name = "call_slow"
    effects = (CallEffect("notice", channel="slow", body={"record": items.c.item, "n": items.c.n}),)


def prepare(database_url: str, _opensearch_url: str) -> None:
    """Tables and triggers."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        metadata.create_all(connection)
        connection.execute(text(TRIGGERS))
    engine.dispose()


def _provider(*options: str) -> Callable[[int, Path], list[str]]:
    def command(port: int, folder: Path) -> list[str]:
        data = str(folder / "provider.sqlite")
        return [sys.executable, "-m", "examples.flights.provider", "--port", str(port), "--data", data, *options]

    return command


def _calls(seconds: float) -> HttpProvider:
    return HttpProvider(
        path="/notices",
        judge=judge_notice,
        look_up_path="/notices/by-key/{key}",
        judge_look_up=judge_look_up,
        call_seconds=seconds,
    )


class Ledger:
    """A provider as the tests see it: faults and limits put, calls and applications read."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def close(self) -> None:
        """Give up the connections."""
        self._client.close()

    def behave(self) -> None:
        """No faults, no limit."""
        self._client.delete("/faults").raise_for_status()
        self._client.delete("/limit").raise_for_status()

    def misbehave(self, *faults: Mapping[str, Any]) -> None:
        """These faults, and no others."""
        self._client.put("/faults", json=list(faults)).raise_for_status()

    def limit(self, **limit: Any) -> None:
        """A token bucket, full."""
        self._client.put("/limit", json=limit).raise_for_status()

    def foreign_call(self, key: str) -> int:
        """Somebody else's call on the same account; its status."""
        headers = {"Idempotency-Key": key}
        return self._client.post("/notices", json={"record": "foreign"}, headers=headers).status_code

    def calls(self, prefix: str = "", method: str = "POST") -> list[dict[str, Any]]:
        """The requests in the order of their arrival."""
        return self._lines("/calls", prefix=prefix, method=method)

    def applied(self, prefix: str) -> dict[str, int]:
        """How often each key was applied."""
        return {line["key"]: int(line["applied"]) for line in self._lines("/ledger", prefix=prefix)}

    def _lines(self, path: str, **params: str) -> list[dict[str, Any]]:
        answer = self._client.get(path, params=params).raise_for_status()
        return [json.loads(line) for line in answer.text.splitlines()]


DEVELOPMENT = Development(
    prepare=prepare,
    services=[
        DevelopmentService("limited-provider", "limited", _provider()),
        DevelopmentService("slow-provider", "slow", _provider("--latency-ms", "20")),
    ],
)
OPERATIONS = [CallLimited(), CallSlow()]
CHANNELS = [
    Channel("limited", _calls(5.0), concurrency=20, call_seconds=5.0),
    Channel("slow", _calls(1.0), concurrency=10, call_seconds=1.0),
]
