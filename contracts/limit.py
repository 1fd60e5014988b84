"""A channel's limits: how fast and how many calls at once, for all worker processes together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_WEIGHT = 1000.0
_RATES = ("rate", "tenant_rate")
_COUNTS = ("burst", "concurrency", "tenant_burst", "tenant_concurrency")


@dataclass(frozen=True)
class Limits:
    """What one outside system takes; None: no limit of ours.

    `rate`: calls a second, `burst`: how many of them at once after a lull (a token bucket). `concurrency`: calls out at
    once. `tenant_*`: the same for each tenant. While several tenants wait, they share by `tenant_weights` (1 where
    none is given). `shared_account`: all tenants use one account there, so that a 429 or 503 with its time blocks the
    channel; else it blocks the tenant's calls alone. Small jobs go first. Raises ValueError naming the field.
    """

    rate: float | None = None
    burst: int = 1
    concurrency: int | None = None
    tenant_rate: float | None = None
    tenant_burst: int = 1
    tenant_concurrency: int | None = None
    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    shared_account: bool = False

    def __post_init__(self) -> None:
        """Check each field."""
        for name in _RATES:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}: it must be more than 0 and finite; leave it out for no limit")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise ValueError(f"{name} is {value!r}: it must be more than 0, at least 1; leave it out for no limit")
        for tenant, weight in self.tenant_weights.items():
            if not 1 / MOST_WEIGHT <= weight <= MOST_WEIGHT:
                raise ValueError(
                    f"tenant_weights gives {tenant!r} {weight!r}: a weight must be more than 0,"
                    f" from {1 / MOST_WEIGHT:g} to {MOST_WEIGHT:g}"
                )

    @property
    def any(self) -> bool:
        """Whether something is limited: only then do deliveries ask for their share."""
        return not all(one is None for one in (self.rate, self.concurrency, self.tenant_rate, self.tenant_concurrency))

    def weight(self, tenant: str) -> float:
        """The tenant's weight."""
        return self.tenant_weights.get(tenant, 1.0)
