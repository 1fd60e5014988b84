"""Cases of the failure reports about providers: the real provider over HTTP, the real database, deliveries in here."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from bulklane.contracts.job import JobState
from bulklane.database.job import Job
from bulklane.starter.decide import list_undecided
from tests.database.jobs import accepted, look, opened, rows, walk
from tests.database.test_call_delivery import in_doubt, owing
from tests.database.test_retry import retry
from tests.support.notices import (
    NOTICES,
    calls_by_key,
    channel_of,
    deliver_all,
    deliver_due,
    keys_of_job,
    make_due,
    states_of,
)
from tests.unit.test_flights_provider import Provider, running

# what the provider does at the first request of a record; the state then; the state and the requests at the end
SHAPES = {
    "200 ok": (None, "done", "done", 1),
    "200 error": ({"kind": "ok_with_error", "code": "no_seat"}, "refused", "refused", 1),
    "204": ({"kind": "no_content"}, "unknown", "done", 1),
    "200 empty": ({"kind": "empty"}, "unknown", "done", 1),
    "200 html": ({"kind": "html"}, "unknown", "done", 2),
    "200 truncated": ({"kind": "truncated"}, "unknown", "done", 1),
    "500 empty": ({"kind": "empty", "status": 500, "applied": False}, "unknown", "done", 2),
    "302": ({"kind": "html", "status": 302}, "unknown", "done", 2),
}
REFUSALS = (400, 404, 409, 422)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """The provider of this module."""
    with running(tmp_path_factory.mktemp("provider") / "data.sqlite") as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Iterator[Provider]:
    """It, on its best behaviour; each job has keys of its own."""
    yield shared
    shared.client.delete("/faults")


def url_of(provider: Provider) -> str:
    """Where it is."""
    return str(provider.client.base_url)


def assert_attempts_cover_calls(engine: Engine, job: Job, provider: Provider) -> None:
    """Our record never says less than what the provider has seen."""
    calls, states = calls_by_key(provider, job), states_of(engine, job)
    for record, key in keys_of_job(engine, job).items():
        assert states[record][2] >= calls.get(key, 0)


@pytest.mark.case("C09")
def test_eight_shapes_of_an_answer(engine: Engine, provider: Provider) -> None:
    job = owing(engine, len(SHAPES))
    keys = keys_of_job(engine, job)
    record_of = dict(zip(SHAPES, keys, strict=True))
    provider.faults(
        *(
            {**fault, "times": 1, "keys": [keys[record_of[name]]]}
            for name, (fault, *_) in SHAPES.items()
            if fault is not None
        )
    )
    deliver_due(engine, job, url_of(provider), channel_of())
    first = states_of(engine, job)
    assert {name: first[record][0] for name, record in record_of.items()} == {
        name: state for name, (_, state, _, _) in SHAPES.items()
    }
    assert first[record_of["200 error"]][1] == "no_seat"  # the provider's own code is in the report
    deliver_all(engine, job, url_of(provider), channel_of())
    states, calls = states_of(engine, job), calls_by_key(provider, job)
    assert {name: (states[record][0], calls[keys[record]]) for name, record in record_of.items()} == {
        name: (state, count) for name, (_, _, state, count) in SHAPES.items()
    }
    ledger = provider.ledger(f"{job.job_id}/")
    assert {name: ledger[keys[record]]["applied"] for name, record in record_of.items()} == {
        name: int(state == "done") for name, (_, _, state, _) in SHAPES.items()
    }
    assert_attempts_cover_calls(engine, job, provider)


@pytest.mark.case("C24")
def test_a_permanent_refusal_is_one_call(engine: Engine, provider: Provider) -> None:
    job = owing(engine, len(REFUSALS) * 3)
    keys = keys_of_job(engine, job)
    status_of = {record: REFUSALS[number % len(REFUSALS)] for number, record in enumerate(keys)}
    provider.faults(
        *(
            {
                "kind": "bad_request",
                "status": status,
                "code": f"code_{status}",
                "keys": [keys[record] for record, one in status_of.items() if one == status],
            }
            for status in REFUSALS
        )
    )
    for _ in range(3):
        make_due(engine)
        deliver_due(engine, job, url_of(provider), channel_of())
    assert states_of(engine, job) == {record: ("refused", f"code_{status}", 1) for record, status in status_of.items()}
    assert set(calls_by_key(provider, job).values()) == {1}
    assert look(engine, job).state is JobState.COMPLETED_WITH_FAILURES


@pytest.mark.case("C24")
@pytest.mark.parametrize("status", [401, 403])
def test_bad_credentials_hold_the_channel_and_lose_nothing(engine: Engine, provider: Provider, status: int) -> None:
    job = owing(engine, 200)
    provider.faults({"kind": "unauthorized", "status": status})
    delivery = deliver_due(engine, job, url_of(provider), channel_of(concurrency=4))
    assert delivery.held is not None
    assert str(status) in delivery.held
    assert len(provider.calls(f"{job.job_id}/")) <= 8
    assert {state for state, _, _ in states_of(engine, job).values()} == {"later"}
    provider.client.delete("/faults")
    deliver_all(engine, job, url_of(provider), channel_of())
    assert {state for state, _, _ in states_of(engine, job).values()} == {"done"}
    assert [line["applied"] for line in provider.ledger(f"{job.job_id}/").values()] == [1] * 200
    assert_attempts_cover_calls(engine, job, provider)


@pytest.mark.case("C24")
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "server_error"},
        {"kind": "reset"},
        {"kind": "apply_then_hang", "applied": False, "seconds": 5},
    ],
    ids=lambda fault: str(fault["kind"]),
)
def test_what_never_answers_is_bounded_and_then_undecided(
    engine: Engine, provider: Provider, fault: dict[str, object]
) -> None:
    job = owing(engine, 3)
    provider.faults(fault)
    quick = replace(NOTICES, call_seconds=0.3)
    deliver_all(engine, job, url_of(provider), channel_of(quick, most_attempts=3, call_seconds=1.0))
    assert {state for state, _, _ in states_of(engine, job).values()} == {"undecided"}
    assert set(calls_by_key(provider, job).values()) == {3}
    assert len(provider.ledger(f"{job.job_id}/")) == 3
    assert_attempts_cover_calls(engine, job, provider)
    assert look(engine, job).state is JobState.COMPLETED_WITH_FAILURES


@pytest.mark.case("C24")
def test_a_provider_that_puts_off_for_ever_has_refused_and_a_retry_sends_it_again(
    engine: Engine, provider: Provider
) -> None:
    job = owing(engine)
    provider.faults({"kind": "rate_limit", "status": 503, "retry_after": "0"})
    deliver_all(engine, job, url_of(provider), channel_of(most_attempts=3, most_seconds=0.0))
    ((state, code, attempts),) = states_of(engine, job).values()
    assert (state, code, attempts, sum(calls_by_key(provider, job).values())) == ("refused", "put_off", 4, 4)
    assert "not done, and put off 4 times" in str(rows(engine, "SELECT answer FROM bulklane.delivery"))
    provider.client.delete("/faults")
    look(engine, job)
    retry(engine, job)
    deliver_all(engine, job, url_of(provider), channel_of())
    assert {state for state, _, _ in states_of(engine, job).values()} == {"done"}
    assert sum(line["applied"] for line in provider.ledger(f"{job.job_id}/").values()) == 1


@pytest.mark.case("C29")
def test_one_key_a_record_over_attempts_and_restarts_and_another_for_another_job(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.mktemp("restarted") / "data.sqlite"
    job = owing(engine, 10)
    for attempt in range(3):
        # provider and sender are new processes, or as good as new, each time
        with running(data) as provider:
            provider.faults({"kind": "rate_limit", "status": 503, "retry_after": "0"})
            make_due(engine)
            deliver_due(engine, job, url_of(provider), channel_of())
            assert set(calls_by_key(provider, job).values()) == {attempt + 1}
    in_doubt(engine, due(engine, job))  # and a sender dies with all of them in its hands
    with running(data) as provider:
        deliver_all(engine, job, url_of(provider), channel_of())
        assert look(engine, job).state is JobState.COMPLETED
        ledger = provider.ledger(f"{job.job_id}/")
        assert sorted(ledger) == sorted(keys_of_job(engine, job).values())
        assert [line["applied"] for line in ledger.values()] == [1] * 10
        assert_attempts_cover_calls(engine, job, provider)

        again = opened(engine, accepted(engine, parallelism=1))
        walk(engine, again)
        deliver_all(engine, again, url_of(provider), channel_of())
        assert len(provider.ledger("")) == 20
        assert not set(keys_of_job(engine, job).values()) & set(keys_of_job(engine, again).values())


@pytest.mark.case("C06")
def test_a_new_generation_comes_only_after_a_definite_refusal_and_a_retry(engine: Engine, provider: Provider) -> None:
    job = owing(engine, 8)
    keys = list(keys_of_job(engine, job).values())
    provider.faults(
        {"kind": "server_error", "stored": True, "keys": keys[:2]},
        {"kind": "server_error", "stored": True, "applied": True, "keys": keys[2:4]},
        {"kind": "apply_then_hang", "seconds": 5, "times": 1, "keys": keys[4:6]},
        {"kind": "bad_request", "keys": keys[6:]},
    )
    channel = channel_of(replace(NOTICES, call_seconds=0.3), call_seconds=1.0)
    deliver_all(engine, job, url_of(provider), channel)
    states = [state for state, _, _ in dict(sorted(states_of(engine, job).items())).values()]
    assert states == ["refused"] * 2 + ["done"] * 4 + ["refused"] * 2
    provider.client.delete("/faults")
    look(engine, job)
    again = opened(engine, retry(engine, job).job, "run-2", 2)
    deliver_all(engine, again, url_of(provider), channel)
    assert look(engine, again).state is JobState.COMPLETED
    applied: dict[str, list[int]] = {}
    for key, line in provider.ledger(f"{job.job_id}/").items():
        applied.setdefault(key.rsplit("/", 1)[0], []).append(line["applied"])
    assert [sum(times) for times in applied.values()] == [1] * 8
    assert sorted(len(times) for times in applied.values()) == [1] * 4 + [2] * 4


@pytest.mark.case("C32")
def test_five_presses_send_the_hundred_refused_once_and_the_nine_hundred_never_again(
    engine: Engine, provider: Provider
) -> None:
    """resque/resque#548: each press doubled the work, and what had worked was sent again."""
    job = owing(engine, 1000)
    keys = list(keys_of_job(engine, job).values())
    failing = keys[::10]
    provider.faults({"kind": "bad_request", "keys": failing})
    deliver_all(engine, job, url_of(provider), channel_of())
    provider.client.delete("/faults")
    assert look(engine, job).state is JobState.COMPLETED_WITH_FAILURES
    before = rows(engine, "SELECT * FROM entry ORDER BY 1, 2, 3")
    with ThreadPoolExecutor(5) as people:
        pressed = list(people.map(lambda _: retry(engine, job, of_round=1), range(5)))
    assert sorted((one.records, one.deliveries) for one in pressed) == [(0, 0)] * 4 + [(0, 100)]
    again = opened(engine, next(one.job for one in pressed if one.deliveries), "run-2", 2)
    deliver_all(engine, again, url_of(provider), channel_of())
    assert look(engine, again).state is JobState.COMPLETED
    assert rows(engine, "SELECT * FROM entry ORDER BY 1, 2, 3") == before
    next_keys = {key.removesuffix("/1") + "/2" for key in failing}
    assert calls_by_key(provider, job) == dict.fromkeys([*keys, *next_keys], 1)
    applied = {key for key, line in provider.ledger(f"{job.job_id}/").items() if line["applied"]}
    assert applied == set(keys) - set(failing) | next_keys
    assert_attempts_cover_calls(engine, job, provider)


def due(engine: Engine, job: Job) -> Job:
    """The job, everything of it due."""
    make_due(engine)
    return job


MIXED = [
    {"kind": "apply_then_hang", "seconds": 8, "share": 0.1},
    {"kind": "reset", "share": 0.05},
    {"kind": "rate_limit", "share": 0.05, "retry_after": "0"},
    {"kind": "ok_with_error", "share": 0.02, "stored": False},
]


@pytest.mark.slow
@pytest.mark.case("C28")
@pytest.mark.parametrize("options", [["--key-lifetime", "0"], ["--key-lifetime", "0", "--no-look-up"]], ids=len)
def test_without_keys_nothing_is_applied_twice_and_every_doubt_is_listed(
    engine: Engine, tmp_path_factory: pytest.TempPathFactory, options: list[str]
) -> None:
    """The provider deduplicates nothing; with a look-up, and with neither."""
    job = owing(engine, 300)
    with running(tmp_path_factory.mktemp("provider") / "data.sqlite", *options) as provider:
        provider.faults(*MIXED)
        channel = channel_of(replace(NOTICES, call_seconds=1.0), call_seconds=3.0, keeps_keys=False, concurrency=20)
        deliver_all(engine, job, url_of(provider), channel)
        look(engine, job)
        ledger, calls = provider.ledger(f"{job.job_id}/"), calls_by_key(provider, job)
        statuses: dict[str, list[object]] = {}
        for call in provider.calls(f"{job.job_id}/"):
            statuses.setdefault(call["key"], []).append(call["status"])
    states = {keys: states_of(engine, job)[record][0] for record, keys in keys_of_job(engine, job).items()}
    assert max(line["applied"] for line in ledger.values()) == 1
    assert {key for key, line in ledger.items() if line["applied"]} >= {k for k, one in states.items() if one == "done"}
    assert not any(ledger[key]["applied"] for key, one in states.items() if one == "refused")
    undecided = {one.key for one in list_undecided(engine, job.job_id)}
    assert len(undecided) == sum(one == "undecided" for one in states.values()) > 0
    # no second call after a call without an answer
    assert all(None not in before[:-1] for before in statuses.values())
    unanswered = {key for key, before in statuses.items() if before[-1] is None}
    assert {key for key, one in states.items() if one == "undecided"} <= unanswered
    if "--no-look-up" in options:
        assert {key for key, one in states.items() if one == "undecided"} == unanswered
    assert sum(calls.values()) > 300  # those that were put off were called again
