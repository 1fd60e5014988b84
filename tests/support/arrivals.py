"""What a provider saw, second by second."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bulklane import Client
from tests.support.counting import items_of

log = logging.getLogger("figures")


def note(name: str, value: object) -> None:
    """A figure for people: shown by `--log-cli-level=INFO`."""
    log.info("%s: %s", name, value)


@dataclass(frozen=True)
class Arrivals:
    """The requests of some jobs: when they came (seconds from the first) and what they were answered."""

    times: list[float]
    statuses: list[int | None]

    @property
    def limited_share(self) -> float:
        """The share of 429s."""
        return self.statuses.count(429) / len(self.statuses)

    def rate(self, since: float, until: float) -> float:
        """Answered with success, a second."""
        good = sum(
            since <= at < until and status in (200, 201) for at, status in zip(self.times, self.statuses, strict=True)
        )
        return good / (until - since)

    def busiest_second(self) -> int:
        """The most that came in any second that begins with one."""
        most, first = 0, 0
        for last, at in enumerate(self.times):
            while self.times[first] <= at - 1:
                first += 1
            most = max(most, last - first + 1)
        return most

    def histogram(self) -> dict[int, int]:
        """By whole second."""
        return dict(sorted(Counter(int(at) for at in self.times).items()))

    def between(self, since: float, until: float) -> int:
        """How many came then."""
        return sum(since < at < until for at in self.times)


def arrivals(calls: Sequence[dict[str, Any]]) -> Arrivals:
    """Of a provider's log."""
    stamps = [datetime.fromisoformat(call["time"]).timestamp() for call in calls]
    return Arrivals([at - stamps[0] for at in stamps], [call["status"] for call in calls])


async def in_parts(client: Client, operation: str, tenant: str, parts: int) -> list[str]:
    """As many jobs side by side, each for its part of the tenant's items; their ids."""
    whole = list(items_of(tenant))
    jobs = []
    for part in range(parts):
        submitted = await client.submit(
            operation,
            tenant=tenant,
            selection={"ids": [str(item) for item in whole[part::parts]]},
            parameters={"part": part},
        )
        jobs.append(submitted.job_id)
    return jobs
