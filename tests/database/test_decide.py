"""Decisions on undecided deliveries: for the doubt that was shown, once, and never a second call without one."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.effect import idempotency_key
from bulklane.contracts.job import JobState
from bulklane.contracts.message import Decision, Verb, VerbMessage, Verdict
from bulklane.database import control, effect
from bulklane.database import delivery as deliveries
from bulklane.database.advance import apply_message
from bulklane.database.decide import Decided
from bulklane.database.job import Job
from bulklane.database.undecided import Undecided
from bulklane.operations.sender import Answer, Done, Later, Refused, Unknown
from bulklane.starter.decide import list_undecided, write_decisions
from bulklane.starter.status import read_status
from tests.database.jobs import Background, accepted, look, opened, rows, say, stands, walk
from tests.database.test_call_delivery import STATES, ScriptedProvider, deliver, in_doubt, owing
from tests.database.test_retry import retry
from tests.support.ledgers import make_entries

RESEND, DONE, GIVE_UP = Verdict.RESEND, Verdict.DONE, Verdict.GIVE_UP
DECISIONS = "SELECT doubt, verdict, who, why FROM bulklane.decision ORDER BY effect, key, doubt"


def undecided_job(engine: Engine, count: int = 1) -> Job:
    """A job that is over, all of whose deliveries are undecided: the channel keeps no keys and has no look-up."""
    job = owing(engine, count)
    doubt_all(engine, job)
    job = look(engine, job)
    assert job.state is JobState.COMPLETED_WITH_FAILURES
    return job


def doubt_all(engine: Engine, job: Job) -> None:
    """Every delivery that is due ends in a doubt."""
    in_doubt(engine, job)
    deliver(engine, job, ScriptedProvider([Done()], known="no look-up here"), rounds=40, keeps_keys=False)


def decided(engine: Engine, job: Job, *decisions: Decision, message_id: str = "", who: str = "ann") -> list[Decided]:
    """Somebody decides."""
    message = VerbMessage(message_id or uuid4().hex, Verb.DECIDE, who, "because", decisions=decisions)
    return write_decisions(engine, job.job_id, [message])


def every(engine: Engine, job: Job, verdict: Verdict) -> list[Decision]:
    """A verdict for each doubt that is listed now."""
    return [Decision(one.effect, one.key, one.doubt, verdict) for one in list_undecided(engine, job.job_id)]


def refusals(answers: Sequence[Decided]) -> list[str]:
    """Why they could not be done."""
    return [answer.refused for answer in answers]


def send(engine: Engine, job: Job, *answers: Answer, rounds: int = 2) -> ScriptedProvider:
    """A delivery to a provider without keys and look-up that answers so."""
    provider = ScriptedProvider(answers, known="no look-up here")
    deliver(engine, job, provider, rounds=rounds, keeps_keys=False)
    return provider


@pytest.fixture
def job(engine: Engine) -> Iterator[Job]:
    """A job that is over, with one undecided delivery."""
    yield undecided_job(engine)


def test_the_undecided_are_listed_with_their_doubt(engine: Engine, job: Job) -> None:
    (one,) = list_undecided(engine, job.job_id)
    assert one == Undecided(
        "booking", one.key, "bookings", 1, one.since, "no look-up here, and the provider keeps no keys", 2
    )
    assert list_undecided(engine, job.job_id, effect="another") == []
    with engine.connect() as connection:
        assert read_status(connection, job.job_id).undecided == 1


@pytest.mark.parametrize(
    ("verdict", "state"),
    [(RESEND, "unknown"), (DONE, "done"), (GIVE_UP, "given_up")],
    ids=str,
)
def test_what_a_verdict_makes_of_a_delivery(engine: Engine, job: Job, verdict: Verdict, state: str) -> None:
    assert refusals(decided(engine, job, *every(engine, job, verdict))) == [""]
    assert rows(engine, STATES) == [(state, 1)]
    assert rows(engine, DECISIONS) == [(1, str(verdict), "ann", "because")]
    assert list_undecided(engine, job.job_id) == []
    # the state of a job that is over never changes, and what is to be sent is delivered without it
    assert stands(engine, look(engine, job)).state is JobState.COMPLETED_WITH_FAILURES
    with engine.connect() as connection:
        owing_jobs = [one.job_no for one in control.owing(connection, most=10)]
        assert owing_jobs == ([job.job_no] if verdict is RESEND else [])
        assert effect.blocked_by(connection, job.job_no, "bookings") is None


def test_a_resend_makes_one_call_under_the_same_key(engine: Engine, job: Job) -> None:
    (one,) = list_undecided(engine, job.job_id)
    decided(engine, job, *every(engine, job, RESEND))
    provider = send(engine, job, Done())
    assert [call.idempotency_key for call in provider.sent] == [idempotency_key(job.job_id, "booking", one.key, 1)]
    assert rows(engine, STATES) == [("done", 1)]


def test_a_resend_whose_outcome_is_unknown_is_a_new_doubt_and_no_second_call(engine: Engine, job: Job) -> None:
    shown = every(engine, job, RESEND)
    decided(engine, job, *shown)
    assert len(send(engine, job, Unknown("no answer")).sent) == 1
    rows_due(engine)
    assert send(engine, job, Done()).sent == []
    (one,) = list_undecided(engine, job.job_id)
    assert (one.doubt, "no answer" in one.answer) == (2, True)
    # the decision for the first doubt, replayed or late, doesn't hit the second
    assert refusals(decided(engine, job, *shown)) == ["ann has decided this doubt before: resend"]
    assert rows(engine, STATES) == [("undecided", 1)]


def test_a_sender_that_dies_after_a_decision_has_used_it_up(engine: Engine, job: Job) -> None:
    decided(engine, job, *every(engine, job, RESEND))
    in_doubt(engine, job)
    assert send(engine, job, Done()).sent == []
    assert [one.doubt for one in list_undecided(engine, job.job_id)] == [2]


def test_a_resend_that_is_put_off_is_still_permitted(engine: Engine, job: Job) -> None:
    decided(engine, job, *every(engine, job, RESEND))
    assert len(send(engine, job, Later(0.0, "too many")).sent) == 1
    assert len(send(engine, job, Done()).sent) == 1
    assert rows(engine, STATES) == [("done", 1)]


def test_a_resend_asks_the_look_up_first(engine: Engine, job: Job) -> None:
    decided(engine, job, *every(engine, job, RESEND))
    provider = ScriptedProvider([Done()], known=Done("look-up"))
    deliver(engine, job, provider, keeps_keys=False)
    assert (provider.sent, rows(engine, STATES)) == ([], [("done", 1)])


def test_a_refusal_after_a_decision_is_definite_only_where_it_is_stored(engine: Engine, job: Job) -> None:
    decided(engine, job, *every(engine, job, RESEND))
    send(engine, job, Refused("422"))
    rows_due(engine)
    send(engine, job, Done())
    assert rows(engine, STATES) == [("undecided", 1)]


def rows_due(engine: Engine) -> None:
    """No backoff is waited for."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.delivery SET due = now()"))


@pytest.mark.parametrize("bound", [{"key_lifetime": -1.0}, {"most_attempts": 1}, {"most_seconds": -1.0}])
def test_a_decision_overrides_the_bounds_once(engine: Engine, bound: dict[str, Any]) -> None:
    job = owing(engine)
    in_doubt(engine, job)
    deliver(engine, job, ScriptedProvider([Done()]), **bound)
    decided(engine, job, *every(engine, job, RESEND))
    provider = ScriptedProvider([Done()])
    deliver(engine, job, provider, **bound)
    assert (len(provider.sent), rows(engine, STATES)) == (1, [("done", 1)])


def test_a_decision_names_its_doubt(engine: Engine, job: Job) -> None:
    (one,) = every(engine, job, DONE)
    wrong = [
        Decision(one.effect, one.key, 2, DONE),
        Decision(one.effect, "no such record", 1, DONE),
        Decision("no such effect", one.key, 1, DONE),
    ]
    assert refusals(decided(engine, job, *wrong, one, Decision(one.effect, one.key, 1, RESEND))) == [
        "doubt 2 is not the present one: that is doubt 1",
        "the job has no such delivery",
        "the job has no such delivery",
        "",
        "the same message has decided it before: done",
    ]
    assert rows(engine, DECISIONS) == [(1, "done", "ann", "because")]


def test_what_was_found_out_meanwhile_is_not_decided(engine: Engine, job: Job) -> None:
    shown = every(engine, job, RESEND)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.delivery SET state = 'done'"))
    assert refusals(decided(engine, job, *shown)) == ["it is not undecided any more: done"]
    assert rows(engine, DECISIONS) == []


def test_five_presses_make_one(engine: Engine, job: Job) -> None:
    shown = every(engine, job, RESEND)
    presses = [Background(lambda: decided(engine, job, *shown)) for _ in range(5)]
    told = sorted(answer.refused for press in presses for answer in press.result())
    assert told == ["", *["ann has decided this doubt before: resend"] * 4]
    assert len(send(engine, job, Done(), rounds=4).sent) == 1


def test_a_replayed_message_hits_nothing(engine: Engine, job: Job) -> None:
    (one,) = every(engine, job, RESEND)
    later = Decision(one.effect, one.key, 2, GIVE_UP)
    assert refusals(decided(engine, job, later, message_id="m-1")) == [
        "doubt 2 is not the present one: that is doubt 1"
    ]
    decided(engine, job, one)
    send(engine, job, Unknown("no answer"))
    rows_due(engine)
    send(engine, job, Done())
    assert [listed.doubt for listed in list_undecided(engine, job.job_id)] == [2]
    assert rows(engine, "SELECT applied FROM bulklane.wish_message WHERE message_id = 'm-1'") == [(False,)]
    # now there is a second doubt, which that message never saw
    assert refusals(decided(engine, job, later, message_id="m-1")) == ["this message was received before"]


def test_a_resend_is_superseded_by_a_later_job_and_other_verdicts_are_not(engine: Engine) -> None:
    job = undecided_job(engine, 3)
    later = opened(engine, accepted(engine, parallelism=1))
    walk(engine, later)
    look(engine, later)
    resend = every(engine, job, RESEND)
    # nothing of the later job is sent yet: the resend comes first, and the later job waits for it
    assert refusals(decided(engine, job, resend[0])) == [""]
    with engine.connect() as connection:
        assert effect.blocked_by(connection, later.job_no, "bookings") == job.job_no
    send(engine, job, Done())
    deliver(engine, later, ScriptedProvider([Done()]))
    why = "superseded: a later job has sent for this record on the channel"
    assert refusals(decided(engine, job, resend[1])) == [why]
    assert refusals(decided(engine, job, *every(engine, job, GIVE_UP))) == ["", ""]
    assert retry(engine, job).deliveries == 0


def test_give_up_and_retry_send_the_same_key_again(engine: Engine, job: Job) -> None:
    (one,) = list_undecided(engine, job.job_id)
    decided(engine, job, *every(engine, job, GIVE_UP))
    presses = [Background(lambda: retry(engine, job, of_round=1)) for _ in range(5)]
    assert sorted(press.result().deliveries for press in presses) == [0, 0, 0, 0, 1]
    again = opened(engine, stands(engine, job), "run-2", 2)
    provider = send(engine, again, Done(), rounds=4)
    assert [call.idempotency_key for call in provider.sent] == [idempotency_key(job.job_id, "booking", one.key, 1)]
    assert look(engine, again).state is JobState.COMPLETED


def test_what_was_given_up_stays_in_doubt_when_it_is_retried(engine: Engine, job: Job) -> None:
    decided(engine, job, *every(engine, job, GIVE_UP))
    again = opened(engine, retry(engine, job).job, "run-2", 2)
    send(engine, again, Refused("409"))
    rows_due(engine)
    send(engine, again, Done())
    assert rows(engine, "SELECT state, generation, doubt FROM bulklane.delivery") == [("undecided", 1, 2)]


def test_a_new_generation_begins_with_bounds_of_its_own(engine: Engine) -> None:
    job = owing(engine)
    deliver(engine, job, ScriptedProvider([Refused("422")]))
    look(engine, job)
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.delivery SET attempts = 8, first_sent_at = now() - interval '2 days'"))
    again = opened(engine, retry(engine, job).job, "run-2", 2)
    deliver(engine, again, ScriptedProvider([Unknown("no answer")]))
    rows_due(engine)
    deliver(engine, again, ScriptedProvider([Done()]))
    # the attempts go on: never fewer than the calls
    assert rows(engine, "SELECT state, generation, attempts FROM bulklane.delivery") == [("done", 2, 10)]


def test_a_thousand_and_more_are_decided_as_listed(engine: Engine) -> None:
    job = owing(engine, 1100)
    with engine.begin() as connection:
        while deliveries.claim(connection, job.job_no, "bookings", turn=1, most=2000, token=uuid4(), claim_seconds=9):
            pass
        connection.execute(text("UPDATE bulklane.delivery SET state = 'undecided', doubt = 1, settled_at = now()"))
    listed = every(engine, job, DONE)
    assert len(listed) == 1100
    assert set(refusals(decided(engine, job, *listed))) == {""}
    assert rows(engine, STATES) == [("done", 1100)]
    assert rows(engine, "SELECT count(*) FROM bulklane.decision") == [(1100,)]


def test_a_signal_writes_the_same_rows(engine: Engine, job: Job) -> None:
    """`apply_verb` of the workflow's signal, for a job that is over too."""
    message = VerbMessage("m-1", Verb.DECIDE, "signal", "", decisions=tuple(every(engine, job, GIVE_UP)))
    with engine.begin() as connection:
        apply_message(connection, job.job_no, message)
    assert rows(engine, "SELECT verb, applied FROM bulklane.wish_message") == [("decide", True)]
    assert rows(engine, STATES) == [("given_up", 1)]


def test_a_job_that_still_delivers_takes_decisions_and_a_paused_one_sends_nothing(engine: Engine) -> None:
    make_entries(engine, 4)
    job = opened(engine, accepted(engine, parallelism=1))
    walk(engine, job)
    doubt_all(engine, job)
    say(engine, job, Verb.PAUSE)
    assert look(engine, job).state is JobState.PAUSED
    assert refusals(decided(engine, job, *every(engine, job, RESEND))) == [""] * 4
    say(engine, job, Verb.RESUME)
    assert look(engine, job).state is JobState.DELIVERING
    send(engine, job, Done(), rounds=8)
    assert look(engine, job).state is JobState.COMPLETED
