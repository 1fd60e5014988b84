"""Deliveries: claimed by one sender at a time, settled by its token, and never lost when that one is gone."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, text

from bulklane.contracts.effect import DeliveryState
from bulklane.database import delivery as deliveries
from bulklane.database import effect
from bulklane.database.delivery import Claim, Settlement
from bulklane.database.job import Job
from tests.database.jobs import Background, accepted, one_chunk, opened, rows, walk
from tests.support.ledgers import make_entries

D = DeliveryState
STATES = "SELECT state, count(*) FROM bulklane.delivery GROUP BY state ORDER BY state"


def walked(engine: Engine, count: int = 20, size: int = 7, **request: Any) -> Job:
    """A job that has walked so many entries, and owes a booking for each."""
    make_entries(engine, count, tenant=request.get("tenant", "acme"))
    job = opened(engine, accepted(engine, parallelism=1, **request))
    walk(engine, job, size=size)
    return job


def claim(
    where: Engine | Connection, job: Job, most: int = 100, seconds: float = 60.0, channel: str = "bookings"
) -> list[Claim]:
    """What a sender may send now."""
    if isinstance(where, Engine):
        with where.begin() as connection:
            return claim(connection, job, most, seconds, channel)
    return deliveries.claim(where, job.job_no, channel, turn=job.turn, most=most, token=uuid4(), claim_seconds=seconds)


def claim_all(engine: Engine, job: Job, seconds: float = 60.0) -> list[Claim]:
    """Everything that may be sent now, claim after claim."""
    return list(iter_claims(lambda: claim(engine, job, 6, seconds)))


def iter_claims(once: Callable[[], list[Claim]]) -> list[Claim]:
    """Until a claim comes back empty."""
    found: list[Claim] = []
    while claims := once():
        found += claims
    return found


def settle(
    engine: Engine, job: Job, *settled: tuple[Claim, DeliveryState], token: UUID | None = None, due: float = 0.0
) -> None:
    """What became of claims."""
    with engine.begin() as connection:
        settlements = [
            Settlement(one.effect, one.key, token or one.token, state, "code", "answer", due) for one, state in settled
        ]
        deliveries.settle_deliveries(connection, job.job_no, settlements)


def expire(engine: Engine) -> None:
    """As if the senders were gone for longer than they had claimed."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.delivery SET claimed_until = clock_timestamp() - interval '1 s'"))


@pytest.mark.parametrize("most", [1, 5, 7, 8, 100])
def test_a_claim_marks_at_most_as_many_as_asked(engine: Engine, most: int) -> None:
    job = walked(engine)
    claims = claim(engine, job, most)
    assert 1 <= len(claims) <= most
    assert rows(engine, STATES) == [("sending", len(claims))]
    with engine.connect() as connection:
        assert effect.count_owed(connection, job.job_no) == 20


def test_everything_owed_is_claimed_once_with_its_own_body(engine: Engine) -> None:
    job = walked(engine)
    claims = claim_all(engine, job)
    owed = rows(engine, "SELECT key, body FROM bulklane.owed, unnest(keys, bodies) u(key, body) ORDER BY key")
    assert sorted((one.key, one.body) for one in claims) == owed
    assert {(one.attempts, one.doubtful, one.generation, one.first_sent_seconds) for one in claims} == {
        (1, False, 1, 0.0)
    }
    assert claim(engine, job) == []


def test_two_claimers_get_disjoint_sets_without_waiting(engine: Engine) -> None:
    job = walked(engine)
    with engine.connect() as first, engine.connect() as second:
        second.execute(text("SET LOCAL lock_timeout = '200ms'"))
        ours, theirs = claim(first, job, 5), claim(second, job, 5)
        assert len(ours) == len(theirs) == 5
        assert not {one.key for one in ours} & {one.key for one in theirs}
        first.commit()
        second.commit()
    rest = claim_all(engine, job)
    assert len({one.key for one in [*ours, *theirs, *rest]}) == 20


def test_two_claimers_of_what_expired_get_disjoint_sets_without_waiting(engine: Engine) -> None:
    job = walked(engine)
    claim_all(engine, job)
    expire(engine)
    with engine.connect() as first, engine.connect() as second:
        second.execute(text("SET LOCAL lock_timeout = '200ms'"))
        ours, theirs = claim(first, job, 8), claim(second, job, 8)
        assert len(ours) == len(theirs) == 8
        assert not {one.key for one in ours} & {one.key for one in theirs}


def test_many_senders_send_each_once(engine: Engine) -> None:
    job = walked(engine, 300, 40)

    def send() -> list[str]:
        sent = []
        while claims := claim(engine, job, 9):
            settle(engine, job, *((one, D.DONE) for one in claims))
            sent += [one.key for one in claims]
        return sent

    sent = [key for one in [Background(send) for _ in range(6)] for key in one.result()]
    # a sender may find the row locked and leave; what is left is still there
    sent += [one.key for one in claim_all(engine, job)]
    assert len(sent) == len(set(sent)) == 300


def test_what_is_rolled_back_is_owed_as_before(engine: Engine) -> None:
    job = walked(engine)
    with engine.connect() as killed:
        assert len(claim(killed, job, 5)) == 5
    assert rows(engine, STATES) == []
    assert len(claim_all(engine, job)) == 20


def test_a_settlement_needs_the_token_of_the_present_claim(engine: Engine) -> None:
    job = walked(engine, 3)
    claims = claim_all(engine, job)
    settle(engine, job, *((one, D.REFUSED) for one in claims), token=uuid4())
    assert rows(engine, STATES) == [("sending", 3)]
    settle(engine, job, *((one, D.REFUSED) for one in claims))
    assert rows(engine, STATES) == [("refused", 3)]


@pytest.mark.parametrize("state", [D.REFUSED, D.LATER, D.UNKNOWN, D.UNDECIDED])
def test_a_sender_that_lost_its_claim_can_only_say_done(engine: Engine, state: DeliveryState) -> None:
    job = walked(engine, 1)
    (lost,) = claim(engine, job)
    expire(engine)
    (present,) = claim(engine, job)
    settle(engine, job, (lost, state))
    assert rows(engine, STATES) == [("sending", 1)]
    settle(engine, job, (lost, D.DONE))
    settle(engine, job, (present, state))
    assert rows(engine, STATES) == [("done", 1)]


@pytest.mark.parametrize("final", [D.REFUSED, D.UNDECIDED, D.GIVEN_UP, D.LATER, D.UNKNOWN])
def test_done_wins_over_whatever_stands_and_whatever_comes(engine: Engine, final: DeliveryState) -> None:
    job = walked(engine, 1)
    (lost,) = claim(engine, job)
    expire(engine)
    (present,) = claim(engine, job)
    settle(engine, job, (present, final))
    settle(engine, job, (lost, D.DONE))
    settle(engine, job, (present, final))
    assert rows(engine, STATES) == [("done", 1)]
    assert claim(engine, job) == []


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("other", [D.REFUSED, D.UNKNOWN, D.UNDECIDED])
def test_done_wins_within_one_batch(engine: Engine, order: int, other: DeliveryState) -> None:
    """One process may have both answers: it claimed again what it had given up waiting for."""
    job = walked(engine, 6)
    lost = claim_all(engine, job)
    expire(engine)
    present = claim_all(engine, job)
    both = [*((one, D.DONE) for one in lost), *((one, other) for one in present)]
    settle(engine, job, *(both if order else reversed(both)))
    assert rows(engine, STATES) == [("done", 6)]


def test_an_expired_claim_is_doubtful_and_has_the_same_body(engine: Engine) -> None:
    job = walked(engine, 5)
    first = claim_all(engine, job)
    with engine.begin() as connection:
        # what the record is now doesn't matter: the body was fixed at its commit
        connection.execute(text("UPDATE entry SET amount = 500"))
    assert claim(engine, job) == []
    expire(engine)
    again = claim_all(engine, job)
    assert sorted((one.key, one.body, one.generation) for one in again) == sorted(
        (one.key, one.body, one.generation) for one in first
    )
    assert {(one.attempts, one.doubtful) for one in again} == {(2, True)}
    assert all(one.first_sent_seconds > 0 for one in again)


@pytest.mark.parametrize(("state", "doubtful"), [(D.LATER, False), (D.UNKNOWN, True)])
def test_what_is_to_be_sent_later_is_not_claimed_before_it_is_due(
    engine: Engine, state: DeliveryState, doubtful: bool
) -> None:
    job = walked(engine, 2)
    waiting, due = claim_all(engine, job)
    settle(engine, job, (waiting, state), due=3600.0)
    settle(engine, job, (due, state), due=0.0)
    (again,) = claim(engine, job)
    assert (again.key, again.doubtful, again.attempts) == (due.key, doubtful, 2)
    with engine.connect() as connection:
        seconds = deliveries.next_due_seconds(connection, job.job_no, "bookings")
        assert deliveries.next_due_seconds(connection, job.job_no, "other") is None
    assert seconds is not None
    assert 50 < seconds <= 60  # the claim, before the one that waits for an hour


@pytest.mark.parametrize("state", [D.DONE, D.REFUSED, D.UNDECIDED, D.GIVEN_UP])
def test_what_is_final_is_not_claimed_again(engine: Engine, state: DeliveryState) -> None:
    job = walked(engine, 3)
    settle(engine, job, *((one, state) for one in claim_all(engine, job)))
    expire(engine)
    assert claim(engine, job) == []
    with engine.connect() as connection:
        assert not effect.owes(connection, job.job_no)
        assert effect.tally(connection, job.job_no) == [("bookings", str(state), 3)]
        assert effect.any_unsuccessful(connection, job.job_no) is (state is not D.DONE)
    doubt = 1 if state is D.UNDECIDED else 0
    assert rows(engine, "SELECT DISTINCT doubt FROM bulklane.delivery") == [(doubt,)]


def test_claims_never_cross_jobs_or_channels(engine: Engine) -> None:
    job, other = walked(engine, 4), walked(engine, 5, tenant="other")
    assert claim(engine, job, channel="mail") == []
    claims = claim_all(engine, job)
    assert len(claims) == 4
    expire(engine)
    with engine.connect() as connection:
        assert effect.count_owed(connection, other.job_no) == 5
    # the keys of both are the same: a settlement and a second claim stay within the job
    settle(engine, other, *((one, D.DONE) for one in claims))
    assert rows(engine, STATES) == [("sending", 4)]
    assert {one.key for one in claim_all(engine, other)} >= {one.key for one in claims}
    assert rows(engine, "SELECT job_no, count(*) FROM bulklane.delivery GROUP BY 1 ORDER BY 1") == [
        (job.job_no, 4),
        (other.job_no, 5),
    ]


def test_a_chunk_that_commits_late_is_still_delivered(engine: Engine) -> None:
    make_entries(engine, 20)
    job = opened(engine, accepted(engine, parallelism=2))
    with engine.connect() as late:
        assert one_chunk(late, job, size=4, range_no=0) is not None
        with engine.begin() as connection:
            one_chunk(connection, job, size=10, range_no=1)
        early = claim_all(engine, job)
        settle(engine, job, *((one, D.DONE) for one in early))
        assert len(early) == 10
        late.commit()
    assert len(claim_all(engine, job)) == 4


def test_a_long_answer_is_cut_and_nothing_to_settle_is_fine(engine: Engine) -> None:
    job = walked(engine, 1)
    (one,) = claim(engine, job)
    with engine.begin() as connection:
        deliveries.settle_deliveries(connection, job.job_no, [])
        settlement = Settlement(one.effect, one.key, one.token, D.DONE, "200", "x" * 10_000)
        deliveries.settle_deliveries(connection, job.job_no, [settlement])
    assert rows(engine, "SELECT code, length(answer), claimed_until FROM bulklane.delivery") == [("200", 500, None)]
