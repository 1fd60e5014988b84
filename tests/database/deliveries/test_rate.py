"""A provider's rate, shared by four processes: used, not passed, heeded when the provider says no, fair."""

import itertools
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from bulklane.database.job import Job
from bulklane.stack.processes import ChildProcess
from tests.database.jobs import rows
from tests.support.arrivals import Arrivals, arrivals, note
from tests.support.calling import Ledger
from tests.support.counting import make_items
from tests.support.delivering import delivering, owing_jobs
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.alone]

DONE = "SELECT count(*) FROM bulklane.delivery WHERE state = 'done' AND job_no = ANY(:n)"


def in_groups(jobs: list[Job], count: int) -> list[list[Job]]:
    """The jobs dealt out to so many processes."""
    return [jobs[number::count] for number in range(count)]


def done_of(engine: Engine, jobs: list[Job]) -> int:
    """How many calls of these jobs have been made."""
    return int(rows(engine, DONE, n=[job.job_no for job in jobs])[0][0])


def seen_of(provider: Ledger, jobs: list[Job]) -> Arrivals:
    """What these jobs sent."""
    prefixes = tuple(f"{job.job_id}/" for job in jobs)
    return arrivals([call for call in provider.calls() if call["key"].startswith(prefixes)])


def ended(processes: list[ChildProcess], seconds: float) -> None:
    """Wait until all are done, in order."""
    until(lambda: not any(one.running for one in processes), seconds, what="all is delivered")
    assert [one.returncode for one in processes] == [0] * len(processes), processes[0].tail_of_log()


@pytest.mark.parametrize(
    ("rate", "count", "burst"), [pytest.param(10, 250, 5, marks=pytest.mark.chaos), (100, 2500, 20)]
)
def test_the_allowed_rate_is_used_and_not_passed(
    counted: Engine,
    database_url: str,
    url: str,
    provider: Ledger,
    tmp_path: Path,
    rate: int,
    count: int,
    burst: int,
) -> None:
    """Four processes, eight jobs; goodput at least 95 % of the rate, less than 1 % answered with 429."""
    jobs = owing_jobs(counted, "call_limited", make_items(counted, "steady", count), 8)
    provider.limit(rate=rate, burst=burst, retry_after=1)
    # a moment's delay is made up for, within what the provider bears
    settings = {"rate": rate, "burst": max(1, rate // 20)}
    with delivering(database_url, url, "limited", in_groups(jobs, 4), tmp_path, **settings) as processes:
        ended(processes, 90)
    seen = seen_of(provider, jobs)
    goodput = seen.rate(1, seen.times[-1] - 2) / rate
    note("goodput", f"{goodput:.3f}, 429 {seen.limited_share:.4f}, {seen.times[-1]:.1f} s")
    assert goodput >= 0.95
    assert seen.limited_share < 0.01
    assert seen.statuses.count(201) == count


@pytest.mark.case("C11")
def test_after_a_429_all_keep_silent_and_come_back_spread(
    counted: Engine, database_url: str, url: str, provider: Ledger, tmp_path: Path
) -> None:
    """Somebody else uses up the account's rate: one answer tells all four processes, for the tenant's eight jobs."""
    rate, burst, silence, count = 200, 40, 3, 5000
    jobs = owing_jobs(counted, "call_limited", make_items(counted, "account", count), 8)
    provider.limit(rate=rate, burst=burst, retry_after=silence)
    with delivering(database_url, url, "limited", in_groups(jobs, 4), tmp_path, rate=rate) as processes:
        for number in range(2):
            most = 1200 * (number + 1)
            until(lambda most=most: done_of(counted, jobs) > most, 60, what="calls")  # type: ignore[misc]
            _use_up(provider, f"foreign-{number}")
        ended(processes, 90)
    seen = seen_of(provider, jobs)
    end = seen.times[-1]
    refused = [at for at, status in zip(seen.times, seen.statuses, strict=True) if status == 429]
    first = [at for before, at in itertools.pairwise([-9.0, *refused]) if at > before + 1]
    goodput = count / (end - silence * len(first)) / rate
    note("429", f"{seen.limited_share:.4f} at {first}, {end:.1f} s, busiest second {seen.busiest_second()}")
    note("goodput", f"{goodput:.3f} beside the silence; arrivals {seen.histogram()}")
    assert first
    for at in first:
        # what was on its way is not called back, and each sender hears of it in its next round
        assert seen.between(at + 0.6, at + silence) == 0
    assert seen.limited_share < 0.1
    assert goodput >= 0.8
    # what the provider itself allows in a second
    assert seen.busiest_second() <= rate + burst


def _use_up(provider: Ledger, key: str) -> None:
    number = 0
    while provider.foreign_call(f"{key}-{number}") != 429:
        number += 1


@pytest.mark.parametrize("trouble", ["blocked", "hanging"])
def test_one_tenants_trouble_leaves_others_their_rate(
    counted: Engine,
    database_url: str,
    url: str,
    provider: Ledger,
    tmp_path: Path,
    trouble: str,
) -> None:
    """The healthy tenant alone, then beside eight jobs of one in trouble, in the same two processes."""
    settings = {"rate": 60, "concurrency": 20, "tenant_concurrency": 10}
    alone = owing_jobs(counted, "call_limited", make_items(counted, "alone", 400), 2)
    with delivering(database_url, url, "limited", in_groups(alone, 2), tmp_path, **settings) as processes:
        ended(processes, 60)
    troubled = owing_jobs(counted, "call_limited", make_items(counted, "troubled", 800), 8)
    beside = owing_jobs(counted, "call_limited", make_items(counted, "beside", 400), 2)
    kinds = {
        "blocked": {"kind": "rate_limit", "retry_after": 600},
        "hanging": {"kind": "apply_then_hang", "seconds": 30},
    }
    provider.misbehave(*({**kinds[trouble], "key_prefix": f"{job.job_id}/"} for job in troubled))
    groups = in_groups(troubled + beside, 2)
    with delivering(database_url, url, "limited", groups, tmp_path, **settings):
        until(lambda: done_of(counted, beside) == 400, 90, what="the healthy tenant's calls")
    rates = [len(seen.times) / seen.times[-1] for seen in (seen_of(provider, alone), seen_of(provider, beside))]
    note("rates", rates)
    assert rates[1] >= 0.8 * rates[0]


def test_two_tenants_share_by_weight_and_a_small_job_goes_first(
    counted: Engine, database_url: str, url: str, provider: Ledger, tmp_path: Path
) -> None:
    heavy = make_items(counted, "heavy", 3000)
    jobs = [*owing_jobs(counted, "call_limited", heavy, 2)]
    light = owing_jobs(counted, "call_limited", make_items(counted, "light", 3000), 2)
    small = owing_jobs(counted, "call_limited", make_items(counted, "small", 20), 1)
    with counted.begin() as connection:
        numbers = [job.job_no for job in jobs + light]
        connection.execute(text("UPDATE bulklane.job SET lane = 'bulk' WHERE job_no = ANY(:n)"), {"n": numbers})
        connection.execute(
            text("UPDATE bulklane.job SET lane = 'small' WHERE job_no = ANY(:n)"), {"n": [small[0].job_no]}
        )
    settings = {"rate": 100, "tenant_weights": {heavy: 3}}
    groups = [[jobs[0], light[0]], [jobs[1], light[1]]]
    with delivering(database_url, url, "limited", groups, tmp_path, **settings):
        until(lambda: done_of(counted, jobs + light) > 1000, 60, what="both have had many")
        began = time.time()
        with delivering(database_url, url, "limited", [small], tmp_path, **settings) as processes:
            ended(processes, 20)
    of_heavy, of_light = seen_of(provider, jobs), seen_of(provider, light)
    ratio = len(of_heavy.times) / len(of_light.times)
    seen = seen_of(provider, small)
    note("share", f"{ratio:.2f}; small {seen.times[-1]:.2f} s, with its process {time.time() - began:.1f} s")
    assert 2.5 < ratio < 3.5
    # its 20 calls at 100/s, beside four jobs that want all of it
    assert seen.times[-1] < 1.0
