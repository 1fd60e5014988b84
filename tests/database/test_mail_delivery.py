"""Mails of a job: one message a record, and none twice without a decision."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import Engine, literal, text

from bulklane import CallEffect, Channel, SmtpMail
from bulklane.contracts.effect import idempotency_key
from bulklane.contracts.job import JobState
from bulklane.contracts.message import Decision, Verb, VerbMessage, Verdict
from bulklane.database import delivery as deliveries
from bulklane.database.job import Job
from bulklane.operations.senders.mail_message import message_id
from bulklane.starter.decide import list_undecided, write_decisions
from tests.database.jobs import accepted, look, opened, registry_of, rows, walk
from tests.support.ledgers import AddToEntries, entries, make_entries
from tests.support.mails import DROP, HANG, Mailbox, mail_server
from tests.support.notices import deliver_all, deliver_due, make_due

SENDER = "no-reply@acme.example"


class TellOwners(AddToEntries):
    """Tells the owner of each entry, whose address is its note."""

    name = "tell_owners"
    effects = (
        CallEffect(
            "mail", "mails", {"to": entries.c.note, "subject": literal("Your entry"), "text": entries.c.account}
        ),
    )


REGISTRY = registry_of(TellOwners())
MAILS = Channel("mails", SmtpMail(SENDER, call_seconds=1.5), keeps_keys=False, call_seconds=5.0, concurrency=2)
STATES = "SELECT note, state FROM bulklane.delivery JOIN entry ON key LIKE '%' || account || '%' ORDER BY note"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A mail server."""
    with mail_server() as running:
        yield running


@pytest.fixture
def job(engine: Engine) -> Job:
    """It owes a mail to each of ann, bob and cyd."""
    make_entries(engine, 3)
    with engine.begin() as connection:
        for account, owner in (("acc-0", "ann"), ("acc-1", "bob"), ("acc-2", "cyd")):
            connection.execute(
                text("UPDATE entry SET note = :to WHERE account = :a"), {"to": f"{owner}@example.com", "a": account}
            )
    made = opened(engine, accepted(engine, registry=REGISTRY, parallelism=1))
    walk(engine, made, registry=REGISTRY)
    return made


def states(engine: Engine) -> dict[str, str]:
    """By owner."""
    return {note.partition("@")[0]: state for note, state in rows(engine, STATES)}


def resend_all(engine: Engine, job: Job) -> None:
    """Somebody has looked into the server's log and decides."""
    decisions = tuple(
        Decision(one.effect, one.key, one.doubt, Verdict.RESEND) for one in list_undecided(engine, job.job_id)
    )
    assert decisions
    write_decisions(engine, job.job_id, [VerbMessage("m-1", Verb.DECIDE, "ann", "not in the log", decisions=decisions)])


@pytest.mark.parametrize("silence", [HANG, DROP])
def test_a_mail_that_may_have_been_taken_waits_for_a_decision(
    engine: Engine, mailbox: Mailbox, job: Job, silence: str
) -> None:
    mailbox.after_message["ann@example.com"] = silence
    mailbox.at_recipient["bob@example.com"] = "550 unknown"
    for _ in range(3):
        make_due(engine)
        deliver_due(engine, job, mailbox.url, MAILS)
    assert states(engine) == {"ann": "undecided", "bob": "refused", "cyd": "done"}
    assert sorted(mailbox.recipients) == ["ann@example.com", "cyd@example.com"]
    (doubt,) = list_undecided(engine, job.job_id)
    first = next(str(mail["Message-ID"]) for mail in mailbox.taken if mail["To"] == "ann@example.com")
    assert first in doubt.answer  # what to look for in the server's log

    mailbox.after_message.clear()
    resend_all(engine, job)
    deliver_all(engine, job, mailbox.url, MAILS)
    assert states(engine) == {"ann": "done", "bob": "refused", "cyd": "done"}
    assert mailbox.ids[first] == 2
    key = idempotency_key(job.job_id, "mail", doubt.key, 1)
    assert first == message_id(key, SENDER)
    assert look(engine, job).state is JobState.COMPLETED_WITH_FAILURES


def test_a_sender_that_dies_leaves_doubts_and_no_second_mail(engine: Engine, mailbox: Mailbox, job: Job) -> None:
    with engine.begin() as connection:
        # killed with one in its hands; nobody knows how far it came
        assert deliveries.claim(connection, job.job_no, "mails", turn=job.turn, most=1, token=uuid4(), claim_seconds=0)
    deliver_all(engine, job, mailbox.url, MAILS)
    assert sorted(states(engine).values()) == ["done", "done", "undecided"]
    assert len(mailbox.taken) == 2
    resend_all(engine, job)
    deliver_all(engine, job, mailbox.url, MAILS)
    assert set(states(engine).values()) == {"done"}
    assert sorted(mailbox.ids.values()) == [1, 1, 1]


def test_a_server_that_is_away_costs_no_doubt(engine: Engine, job: Job) -> None:
    with mail_server() as mailbox:
        url = mailbox.url
    deliver_due(engine, job, url, MAILS)
    assert set(states(engine).values()) == {"later"}


def test_bad_credentials_hold_the_channel(engine: Engine, mailbox: Mailbox, job: Job) -> None:
    mailbox.sender = "530 log in first"
    delivery = deliver_due(engine, job, mailbox.url, MAILS)
    assert delivery.held is not None
    assert "530" in delivery.held
    mailbox.sender = "250 OK"
    deliver_all(engine, job, mailbox.url, MAILS)
    assert set(states(engine).values()) == {"done"}
    assert sorted(mailbox.ids.values()) == [1, 1, 1]
