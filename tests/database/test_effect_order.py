"""The order of effects of jobs that share resources, and effects that are settled by their chunk's row."""

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.effect import DeliveryState
from bulklane.contracts.message import Verb
from bulklane.database import effect, lease
from bulklane.database.effect import OwedSlice
from bulklane.database.job import Job
from tests.database.jobs import accepted, look, one_chunk, opened, rows, say, walk
from tests.database.test_effect_claims import claim, claim_all, settle, walked
from tests.support.ledgers import make_entries

D = DeliveryState


def blocked_by(engine: Engine, job: Job, channel: str = "bookings") -> int | None:
    """Which job is to be waited for."""
    with engine.connect() as connection:
        return effect.blocked_by(connection, job.job_no, channel)


def slices(engine: Engine, job: Job, most: int = 100) -> list[OwedSlice]:
    """What the job's chunks owe."""
    with engine.connect() as connection:
        return effect.owed_slices(connection, job.job_no, "bookings", most)


def settle_slice(engine: Engine, job: Job, piece: OwedSlice, *refused: tuple[int, str, str]) -> None:
    """The slice is done, but for these."""
    with engine.begin() as connection:
        effect.settle_slice(connection, job.job_no, job.turn, "bookings", piece, refused)


def two_jobs(engine: Engine) -> tuple[Job, Job]:
    """Two jobs on the same resource, one after the other, of which each owes ten bookings."""
    first = walked(engine, 10)
    look(engine, first)
    second = opened(engine, accepted(engine, parameters={"cents": 2}, parallelism=1))
    walk(engine, second)
    return first, second


def test_a_later_turn_waits_while_an_earlier_one_owes(engine: Engine) -> None:
    first, second = two_jobs(engine)
    assert first.turn < second.turn
    assert (blocked_by(engine, first), blocked_by(engine, second)) == (None, first.job_no)
    assert blocked_by(engine, second, "mail") is None
    claims = claim_all(engine, first)
    assert blocked_by(engine, second) == first.job_no  # all taken, and nothing answered
    settle(engine, first, *((one, D.DONE) for one in claims[1:]))
    assert blocked_by(engine, second) == first.job_no
    settle(engine, first, (claims[0], D.DONE))
    assert blocked_by(engine, second) is None


@pytest.mark.parametrize("state", D)
def test_what_is_final_blocks_nobody(engine: Engine, state: DeliveryState) -> None:
    first, second = two_jobs(engine)
    claims = claim_all(engine, first)
    settle(engine, first, *((one, state) for one in claims), due=3600.0)
    waits = state in (D.SENDING, D.LATER, D.UNKNOWN)
    assert blocked_by(engine, second) == (first.job_no if waits else None)


def test_jobs_that_share_no_resource_do_not_wait(engine: Engine) -> None:
    walked(engine, 3)
    other = walked(engine, 3, tenant="other")
    assert blocked_by(engine, other) is None


def test_one_shared_resource_of_several_is_enough(engine: Engine) -> None:
    first, other = walked(engine, 3), walked(engine, 3, tenant="other")
    with engine.begin() as connection:
        lease.record_turn(connection, ["x", "y"], job_no=first.job_no, round_no=1, turn=first.turn)
        lease.record_turn(connection, ["z", "y"], job_no=other.job_no, round_no=1, turn=other.turn)
    assert (blocked_by(engine, other), blocked_by(engine, first)) == (first.job_no, None)


def test_a_cancelled_job_that_still_owes_is_waited_for(engine: Engine) -> None:
    make_entries(engine, 10)
    first = opened(engine, accepted(engine, parallelism=1))
    with engine.begin() as connection:
        one_chunk(connection, first, size=3)
    say(engine, first, Verb.CANCEL)
    look(engine, first)
    second = opened(engine, accepted(engine))
    assert blocked_by(engine, second) == first.job_no


def test_slices_give_what_each_chunk_owes_and_are_settled_by_its_row(engine: Engine) -> None:
    job = walked(engine, 20, 8)
    found = slices(engine, job)
    owed = rows(engine, "SELECT seq, keys, versions FROM bulklane.owed ORDER BY seq")
    assert [(piece.seq, piece.keys, piece.versions) for piece in found] == owed
    assert [piece.place for piece in found] == [0, 0, 0]
    assert slices(engine, job, most=2) == found[:2]
    settle_slice(engine, job, found[1])
    settle_slice(engine, job, found[1])
    assert slices(engine, job) == [found[0], found[2]]
    assert rows(engine, "SELECT count(*) FROM bulklane.delivery") == [(0,)]
    for piece in (found[0], found[2]):
        settle_slice(engine, job, piece)
    with engine.connect() as connection:
        assert not effect.owes_on(connection, job.job_no, "bookings")


def test_a_slice_that_was_partly_taken_begins_there(engine: Engine) -> None:
    job = walked(engine, 8, 8)
    (whole,) = slices(engine, job)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = 3"))
    (rest,) = slices(engine, job)
    assert (rest.place, rest.keys, rest.versions) == (3, whole.keys[3:], whole.versions[3:])
    settle_slice(engine, job, rest)
    settle_slice(engine, job, OwedSlice(1, 0, 1, "booking", 0, whole.keys[:2], whole.versions[:2]))
    assert slices(engine, job) == []  # a late answer never gives back what was taken


def test_what_a_slice_was_refused_is_listed_with_its_place(engine: Engine) -> None:
    job = walked(engine, 8, 8)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.owed SET taken_to = 2"))
    (piece,) = slices(engine, job)
    refused = [(0, "400", "mapping"), (4, "400", "x" * 1000)]
    settle_slice(engine, job, piece, *refused)
    settle_slice(engine, job, piece, *refused)
    listed = rows(engine, "SELECT key, place, state, code, length(answer) FROM bulklane.delivery ORDER BY place")
    assert listed == [(piece.keys[0], 2, "refused", "400", 7), (piece.keys[4], 6, "refused", "400", 500)]
    with engine.connect() as connection:
        assert effect.any_unsuccessful(connection, job.job_no)
        assert not effect.owes(connection, job.job_no)


def test_a_slice_that_commits_late_is_still_found(engine: Engine) -> None:
    make_entries(engine, 20)
    job = opened(engine, accepted(engine, parallelism=2))
    with engine.connect() as late:
        one_chunk(late, job, size=4, range_no=0)
        with engine.begin() as connection:
            one_chunk(connection, job, size=10, range_no=1)
        for piece in slices(engine, job):
            settle_slice(engine, job, piece)
        assert slices(engine, job) == []
        late.commit()
    assert [len(piece.keys) for piece in slices(engine, job)] == [4]


def test_debts_are_counted_by_channel(engine: Engine) -> None:
    job = walked(engine, 9)
    claims = claim(engine, job, 4)
    settle(engine, job, (claims[0], D.DONE))
    with engine.connect() as connection:
        assert effect.count_owed(connection, job.job_no) == 8
        assert effect.owes_on(connection, job.job_no, "bookings")
        assert not effect.owes_on(connection, job.job_no, "mail")
        assert not effect.owes(connection, job.job_no + 1)
