"""The mail sender against a real SMTP server: what each answer says of the message."""

import asyncio
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bulklane import Done, Endpoint, Held, Later, Refused, SmtpMail, Unknown
from bulklane.operations.operation import OperationError
from bulklane.operations.sender import Answer, Call
from bulklane.stack import free_port
from tests.support.mails import DROP, HANG, Mailbox, impolite_mail_server, mail_server, only

MAIL = SmtpMail("no-reply@acme.example", call_seconds=5.0)


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    """A server without TLS and login."""
    with mail_server() as running:
        yield running


def call(to: Any = "ann@example.com", key: str = "job-1/mail/1/1", **body: Any) -> Call:
    return Call(key, json.dumps({"to": to, "subject": "Grüße", "text": "First\n.\nlast ä\n", **body}))


def send(url: str, *calls: Call, mail: SmtpMail = MAIL, token: str | None = None, pause: float = 0) -> list[Answer]:
    """One sender, one call after another."""

    async def run() -> list[Answer]:
        sender = mail.connect(Endpoint(url, token), 2)
        answers = []
        for one in calls:
            answers.append(await sender.send(one))
            await asyncio.sleep(pause)
        await sender.close()
        return answers

    return asyncio.run(run())


def test_a_mail_arrives_as_it_was_written(mailbox: Mailbox) -> None:
    (answer,) = send(mailbox.url, call(date="2026-03-29T12:00:00+02:00"))
    (message,) = mailbox.taken
    assert answer == Done("250", message["Message-ID"])
    assert (message["From"], message["To"], message["Subject"]) == ("no-reply@acme.example", "ann@example.com", "Grüße")
    assert message["Date"] == "Sun, 29 Mar 2026 12:00:00 +0200"
    assert message.get_content().replace("\r\n", "\n") == "First\n.\nlast ä\n"


def test_the_message_id_is_the_keys_own(mailbox: Mailbox) -> None:
    answers = send(mailbox.url, call(), call(), call(key="job-1/mail/1/2"), call(to="bob@example.com"))
    first, again, generation, other = (answer.text for answer in answers if isinstance(answer, Done))
    assert first == again == other != generation
    assert first.endswith("@acme.example>")
    assert len(mailbox.connections) == 1  # a connection is used again


@pytest.mark.parametrize(
    ("at_recipient", "after_message", "expected"),
    [
        ("450 greylisted", "250 OK", Later(reason="the mail server answered 450")),
        ("550 5.1.1 unknown", "250 OK", Refused("550", "the mail server refused the recipient")),
        ("250 OK", "451 busy", Later(reason="the mail server answered 451")),
        ("250 OK", "554 spam", Refused("554", "the mail server refused the message")),
    ],
)
def test_what_a_refusal_means(mailbox: Mailbox, at_recipient: str, after_message: str, expected: Answer) -> None:
    mailbox.at_recipient["ann@example.com"] = at_recipient
    mailbox.after_message["ann@example.com"] = after_message
    # and the next one isn't touched by it
    assert send(mailbox.url, call(), call(to="bob@example.com"))[0] == expected
    assert mailbox.recipients == ["bob@example.com"]


@pytest.mark.parametrize("answer", [HANG, DROP])
def test_a_message_without_an_answer_may_have_been_taken(mailbox: Mailbox, answer: str) -> None:
    mailbox.after_message["ann@example.com"] = answer
    first, second = send(mailbox.url, call(), call(to="bob@example.com"), mail=SmtpMail(MAIL.sender, call_seconds=1.5))
    assert isinstance(first, Unknown)
    assert str(mailbox.taken[0]["Message-ID"]) in first.reason
    assert isinstance(second, Done)
    assert mailbox.recipients == ["ann@example.com", "bob@example.com"]


def test_a_sender_that_the_server_refuses_holds_the_channel(mailbox: Mailbox) -> None:
    mailbox.sender = "550 not yours"
    assert isinstance(send(mailbox.url, call())[0], Held)


def test_nobody_listens() -> None:
    assert isinstance(send(f"smtp://127.0.0.1:{free_port()}?tls=none", call())[0], Later)


def test_a_connection_that_ended_while_it_was_idle_costs_nothing() -> None:
    with mail_server(timeout=0.2) as mailbox:
        answers = send(mailbox.url, call(), call(to="bob@example.com"), pause=0.6)
        assert [type(answer) for answer in answers] == [Done, Done]
        assert mailbox.recipients == ["ann@example.com", "bob@example.com"]
        assert len(mailbox.connections) == 2


# the server warns of a login without TLS, which a test on this machine may have
@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
@pytest.mark.parametrize(("password", "expected"), [("right", Done), ("wrong", Held)])
def test_the_login(password: str, expected: type) -> None:
    options = {"auth_required": True, "auth_require_tls": False, "authenticator": only("ann@acme.example", "right")}
    with mail_server(**options) as mailbox:
        url = mailbox.url.replace("smtp://", "smtp://ann%40acme.example@")
        assert isinstance(send(url, call(), token=password)[0], expected)
        # without a login, the server wants one
        assert isinstance(send(mailbox.url, call())[0], Held)
        assert len(mailbox.taken) == int(expected is Done)


def test_a_server_without_starttls_holds_a_channel_that_wants_it(mailbox: Mailbox) -> None:
    assert isinstance(send(mailbox.url.removesuffix("?tls=none"), call())[0], Held)
    assert mailbox.taken == []


def certified(folder: Path) -> tuple[ssl.SSLContext, str]:
    """A server's TLS, and the certificate to trust."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *request.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, str(certificate)


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_tls_with_a_certificate_that_is_trusted_or_not(tmp_path: Path, scheme: str) -> None:
    context, certificate = certified(tmp_path)
    options = {"tls_context": context, "require_starttls": True} if scheme == "smtp" else {"ssl_context": context}
    with mail_server(**options) as mailbox:
        url = mailbox.url.replace("smtp://", f"{scheme}://").removesuffix("?tls=none")
        trusting = SmtpMail(MAIL.sender, call_seconds=5.0, certificates=certificate)
        assert isinstance(send(url, call(), mail=trusting)[0], Done)
        assert isinstance(send(url, call(), mail=SmtpMail(MAIL.sender, call_seconds=5.0))[0], Held)
        assert len(mailbox.taken) == 1


def test_a_server_that_says_no_goodbye_keeps_no_socket_open(tmp_path: Path) -> None:
    context, certificate = certified(tmp_path)
    mail = SmtpMail(MAIL.sender, call_seconds=5.0, certificates=certificate)

    async def leave(url: str, left: threading.Event) -> Answer:
        sender = mail.connect(Endpoint(url, None), 1)
        answer = await sender.send(call())
        await sender.close()
        assert await asyncio.to_thread(left.wait, 5)
        return answer

    with impolite_mail_server(context) as (url, left):
        assert isinstance(asyncio.run(leave(url, left)), Done)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"to": None}, "`to` must be a text, not missing"),
        ({"to": ""}, "`to` must be a text"),
        ({"to": "Ann <ann@example.com>"}, "`to` is no address"),
        ({"to": "ann@example.com\nBcc: eve@example.com"}, "`to` is no address"),
        ({"to": "änn@example.com"}, "`to` is no address"),
        ({"subject": "x\nBcc: eve@example.com"}, "`subject` has a line break"),
        ({"subject": 3}, "`subject` must be a text, not int"),
        ({"text": None}, "`text` must be a text"),
        ({"date": "2026-03-29 12:00"}, "`date` must be a time with its offset"),
        ({"date": 3}, "`date` must be a time with its offset"),
    ],
)
def test_a_body_that_is_no_mail_is_the_records_own_fault(mailbox: Mailbox, body: dict[str, Any], told: str) -> None:
    (answer,) = send(mailbox.url, call(**body))
    assert isinstance(answer, Refused)
    assert (answer.code, told in answer.reason) == ("bad_mail", True)
    assert mailbox.connections == []


@pytest.mark.parametrize("body", ["", "[]", "null", "[" * 100_000])
def test_a_body_that_is_no_object(body: str) -> None:
    (answer,) = send(f"smtp://127.0.0.1:{free_port()}?tls=none", Call("k", body))
    assert isinstance(answer, Refused)


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://host", None),
        ("smtp://", None),
        ("smtps://host?tls=none", None),
        ("smtp://host", "password without a user"),
        ("smtp://user@host", None),
        ("smtp://user:password@host", "password"),
    ],
)
def test_an_endpoint_that_cannot_be_read(url: str, token: str | None) -> None:
    with pytest.raises(OperationError, match="a mail channel's URL"):
        MAIL.connect(Endpoint(url, token), 1)
