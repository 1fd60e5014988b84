"""What a job would do, as `preview` tells it. Nothing of it was stored, no lease taken, no effect sent."""

from collections.abc import Sequence
from dataclasses import dataclass

from bulklane.database.explain import Scan
from bulklane.database.lease import Holder
from bulklane.database.trial import SampledRecord

MOST_SAMPLED = 100


class PreviewUnable(RuntimeError):
    """Nothing can be shown now; the message says why and what helps."""


@dataclass(frozen=True)
class Count:
    """How many records the selection takes.

    Not `exact`: more than `records`, since they could not be counted in time; then `about` is the planner's estimate,
    if there is one. `present`: of ids, how many are records of the tenant's now; None where that took too long.
    `duplicates`: ids that came more than once.
    """

    records: int
    exact: bool
    about: int | None = None
    present: int | None = None
    duplicates: int = 0

    @property
    def likely(self) -> int:
        """The number to reckon with."""
        return self.records if self.exact else max(self.records, self.about or 0)


@dataclass(frozen=True)
class EffectForecast:
    """One effect: how many the sample would owe, and how many the whole selection, by the sample's share.

    `seconds`: how long the channel's rate limit makes so many calls take; None where it has none.
    """

    effect: str
    channel: str
    in_sample: int
    in_all: int
    seconds: float | None


@dataclass(frozen=True)
class Estimate:
    """How long the walk would take, by the rate of the operation's latest `jobs` finished jobs; with none, None."""

    jobs: int
    rows_per_second: float | None
    seconds: float | None


@dataclass(frozen=True)
class NamedScan:
    """A statement (`selection` or `chunk`) that would read a large table from end to end.

    `expected`: the selection takes every record, so that no index could spare it. Else `advice` says which one would.
    """

    statement: str
    scan: Scan
    expected: bool
    advice: str


@dataclass(frozen=True)
class Preview:
    """What a request would do if it were submitted now.

    `already`: the job that the same request has been accepted as. `holders`: empty where the resources are free.
    `sample`: in key order. `scans`: empty where indexes lead to the rows.
    """

    operation: str
    tenant: str
    selection: str
    live: bool
    lane: str
    count: Count
    already: str | None
    holders: Sequence[Holder]
    sample: Sequence[SampledRecord]
    effects: Sequence[EffectForecast]
    estimate: Estimate
    scans: Sequence[NamedScan]

    @property
    def outcomes(self) -> dict[str, int]:
        """How many records of the sample come to each outcome."""
        names = [record.outcome for record in self.sample]
        return {name: names.count(name) for name in dict.fromkeys(names)}
