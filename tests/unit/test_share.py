"""A sender's share of a channel: never over the rate or the slots, small jobs first, tenants by weight."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulklane.contracts.limit import Limits
from bulklane.database.share import HORIZON, Bucket, Demand, Standing, share


def standing(limits: Limits, *rivals: Demand, virtual_time: float = 0.0) -> Standing:
    """A channel that was idle."""
    return Standing(
        limits,
        Bucket(limits.rate, limits.burst),
        Bucket(limits.tenant_rate, limits.tenant_burst),
        virtual_time,
        rivals,
    )


class World:
    """Senders that ask in turns, and the channel's rows as the database keeps them; calls end at once."""

    def __init__(self, limits: Limits, *, small: frozenset[str] = frozenset()) -> None:
        self.limits = limits
        self.small = small
        self.channel, self.virtual_time = Bucket(limits.rate, limits.burst), 0.0
        self.times: dict[str, float] = {}
        self.buckets: dict[str, Bucket] = {}
        self.waiting: dict[str, int] = {}
        self.starts: list[tuple[float, str]] = []
        self.now = 0.0

    def ask(self, tenant: str, wanted: int) -> None:
        """One round of a tenant's sender."""
        rivals = [
            Demand(other, other in self.small, waiting, 0, self.times.get(other, 0.0))
            for other, waiting in self.waiting.items()
            if other != tenant
        ]
        bucket = self.buckets.setdefault(tenant, Bucket(self.limits.tenant_rate, self.limits.tenant_burst))
        mine = Demand(tenant, tenant in self.small, wanted, 0, self.times.get(tenant, 0.0))
        found = share(Standing(self.limits, self.channel, bucket, self.virtual_time, rivals), mine)
        if found.starts:
            self.virtual_time, self.times[tenant] = found.served, found.virtual_time
        self.waiting[tenant] = found.waiting
        self.starts += [(self.now + one, tenant) for one in found.starts]

    def pass_(self, seconds: float) -> None:
        """Time goes by."""
        self.now += seconds
        for bucket in (self.channel, *self.buckets.values()):
            bucket.next_at -= seconds

    def run(self, seconds: float, wanted: dict[str, int], every: float = 0.05) -> Counter[str]:
        """All ask in turns; how many starts each has got."""
        until = self.now + seconds
        while self.now < until:
            for tenant, count in wanted.items():
                self.ask(tenant, count)
            self.pass_(every)
        return Counter(tenant for at, tenant in self.starts if at < until)


@given(
    rate=st.floats(0.5, 500),
    burst=st.integers(1, 20),
    asks=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.floats(0, 0.5)), max_size=60),
)
def test_no_window_of_time_has_more_starts_than_rate_and_burst(
    rate: float, burst: int, asks: list[tuple[str, int, float]]
) -> None:
    world = World(Limits(rate=rate, burst=burst))
    for tenant, wanted, seconds in asks:
        world.ask(tenant, wanted)
        world.pass_(seconds)
    times = sorted(at for at, _ in world.starts)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + (times[last] - times[first]) * rate + 1e-6


@pytest.mark.parametrize("rate", [2, 10, 100, 1000])
def test_one_sender_gets_the_whole_rate(rate: int) -> None:
    world = World(Limits(rate=rate))
    assert world.run(20, {"a": 1000})["a"] >= rate * 20 * 0.98


@pytest.mark.parametrize("every", [0.02, 0.1, 0.25])
def test_many_tenants_share_the_whole_rate_evenly(every: float) -> None:
    tenants = {f"t{n}": 100 for n in range(8)}
    found = World(Limits(rate=100)).run(40, tenants, every)
    assert sum(found.values()) >= 100 * 40 * 0.95
    assert min(found.values()) >= 0.8 * 100 * 40 / 8


@pytest.mark.parametrize("rate", [10, 100])
def test_tenants_share_by_weight(rate: int) -> None:
    found = World(Limits(rate=rate, tenant_weights={"a": 3})).run(60, {"a": 50, "b": 50})
    assert found["a"] / found["b"] == pytest.approx(3, rel=0.15)
    assert found.total() >= rate * 60 * 0.95


def test_one_that_comes_late_is_not_paid_for_its_absence() -> None:
    world = World(Limits(rate=100))
    world.run(20, {"a": 50})
    world.starts.clear()
    found = world.run(20, {"a": 50, "b": 50})
    assert found["a"] / found["b"] == pytest.approx(1, rel=0.1)


def test_small_jobs_go_before_bulk() -> None:
    world = World(Limits(rate=10), small=frozenset({"s"}))
    world.run(2, {"b": 50})
    world.starts.clear()
    world.run(1, {"s": 5, "b": 50})
    got = [tenant for _, tenant in sorted(world.starts)]
    assert got[:5] == ["s"] * 5


def test_a_tenant_held_back_by_its_own_rate_leaves_the_rest_to_others() -> None:
    found = World(Limits(rate=100, tenant_rate=10)).run(20, {"a": 50, "b": 50})
    assert found["a"] == pytest.approx(200, abs=10)
    assert found["b"] == pytest.approx(200, abs=10)


@given(
    limit=st.integers(1, 30),
    mine=st.integers(0, 30),
    theirs=st.integers(0, 30),
    wanted=st.integers(0, 60),
    waiting=st.integers(0, 5),
)
def test_never_more_calls_out_than_slots(limit: int, mine: int, theirs: int, wanted: int, waiting: int) -> None:
    rival = Demand("b", False, waiting, theirs)
    found = share(standing(Limits(concurrency=limit), rival), Demand("a", False, wanted, mine))
    assert len(found.starts) == found.slots <= max(0, limit - mine - theirs)
    if waiting and limit > 1:
        assert mine >= limit // 2 or mine + len(found.starts) <= limit // 2


def test_a_start_takes_its_slot_when_it_is_given() -> None:
    limits = Limits(rate=20, concurrency=4)
    assert share(standing(limits), Demand("a", False, 50, 1)).slots == 3
    # all slots are taken by calls that hang: nothing is given out
    assert share(standing(limits), Demand("a", False, 50, 4)).starts == []
    # starts given before come first
    again = share(standing(limits), Demand("a", False, 50, 2, held=2))
    assert (again.starts, again.slots) == ([], 2)


def test_a_tenant_that_its_own_limits_hold_back_is_in_nobodys_way() -> None:
    hanging = Demand("h", False, 50, 10)
    found = share(standing(Limits(rate=60, concurrency=20, tenant_concurrency=10)), hanging)
    assert (found.starts, found.waiting) == ([], 0)
    slow = share(standing(Limits(rate=100, tenant_rate=1)), Demand("s", False, 50, 0))
    assert (len(slow.starts), slow.waiting) == (1, 0)
    shares = World(Limits(rate=100, tenant_rate=45)).run(20, {"a": 50, "b": 50, "c": 50})
    assert shares.total() >= 0.95 * 2000


def test_a_tenant_has_its_own_slots() -> None:
    limits = Limits(concurrency=10, tenant_concurrency=4)
    assert len(share(standing(limits), Demand("a", False, 9, 1)).starts) == 3


def test_starts_reach_no_further_than_the_horizon() -> None:
    starts = share(standing(Limits(rate=10)), Demand("a", False, 100, 0)).starts
    assert starts == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert starts[-1] <= HORIZON + 1e-9


def test_after_a_block_there_is_no_burst() -> None:
    bucket = Bucket(10, burst=5)
    bucket.block(2.0)
    assert bucket.start() == pytest.approx(2.0)
    bucket.take()
    assert bucket.start() == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("field", "value"), [("rate", 0), ("burst", 0), ("concurrency", -1), ("tenant_weights", {"a": 0})]
)
def test_a_limit_that_makes_no_sense_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: value})  # type: ignore[arg-type]
