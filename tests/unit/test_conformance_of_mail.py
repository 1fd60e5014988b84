"""The conformance check of a mail channel: what each wrong sender gets wrong, and nothing in the shipped one."""

import asyncio
import json
import smtplib
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from bulklane import Channel, Done, Endpoint, Later, MailSample, Refused, SmtpMail, Unknown, check_channel
from bulklane.operations.sender import Answer, Call, NoLookUp


class OwnMail:
    """A team's own sender by the standard library, in a thread."""

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self.endpoint = endpoint

    def connect(self, endpoint: Endpoint, concurrency: int) -> "OwnMail":
        return type(self)(endpoint)

    def identity(self, call: Call) -> str:
        return f"<{call.idempotency_key.replace('/', '.')}@acme.example>"

    def lost(self) -> Answer:
        return Unknown("lost")

    async def send(self, call: Call) -> Answer:
        try:
            body = json.loads(call.body)
            message = f"Message-ID: {self.identity(call)}\r\nSubject: {body['subject']}\r\n\r\n{body['text']}\r\n"
        except (ValueError, TypeError):
            return Refused("bad")
        return await asyncio.to_thread(self.deliver, body["to"], message)

    def deliver(self, to: str, message: str) -> Answer:
        assert self.endpoint is not None
        url = urlsplit(self.endpoint.url)
        try:
            with smtplib.SMTP(str(url.hostname), url.port or 25, timeout=1.0) as server:
                server.sendmail("no-reply@acme.example", [to], message)
        except smtplib.SMTPRecipientsRefused as error:
            ((code, _),) = error.recipients.values()
            return Refused(str(code)) if code >= 500 else Later()
        except smtplib.SMTPResponseException as error:
            return Refused(str(error.smtp_code)) if error.smtp_code >= 500 else Later()
        except (smtplib.SMTPException, TimeoutError):
            return self.lost()
        except OSError:
            return Later()
        return Done()

    async def look_up(self, call: Call) -> Answer | None:
        raise NoLookUp("no")

    async def close(self) -> None:
        """Nothing is open."""


class LostIsLater(OwnMail):
    def lost(self) -> Answer:
        return Later()


class SendsAgain(OwnMail):
    def deliver(self, to: str, message: str) -> Answer:
        answer = super().deliver(to, message)
        return super().deliver(to, message) if isinstance(answer, Unknown) else answer


class FreshIdentity(OwnMail):
    def identity(self, call: Call) -> str:
        return f"<{uuid4()}@acme.example>"


class OneIdentity(OwnMail):
    def identity(self, call: Call) -> str:
        return "<mail@acme.example>"


class InventsALookUp(OwnMail):
    async def look_up(self, call: Call) -> Answer | None:
        return None


class ReadsNothing(OwnMail):
    async def send(self, call: Call) -> Answer:
        body = json.loads(call.body)
        message = f"Message-ID: {self.identity(call)}\r\n\r\n{body['text']}\r\n"
        return await asyncio.to_thread(self.deliver, body["to"], message)


WRONG: dict[type[OwnMail], str] = {
    LostIsLater: "closed after the message: was taken as Later: it must be Unknown, since the server has the message"
    " and may deliver it",
    SendsAgain: "closed after the message: it sent 2 messages for one call: it must send one",
    FreshIdentity: "the same call twice and another once: the Message-ID differs on the second send",
    OneIdentity: "the same call twice and another once: two calls have one Message-ID, or none",
    InventsALookUp: "look-up: was taken as None: it must be NoLookUp, since a mail server can't be asked",
    ReadsNothing: "no mail at all: it raised TypeError instead of answering: the body is the record's own fault",
    # it never logs in: what the server says of that is taken for the record's fault
    OwnMail: "530 at MAIL: was taken as Refused: it must be Held, since no record is to blame, and all others would"
    " fail too",
}


def told(sender: Any, **options: Any) -> list[str]:
    """What is found, in lines."""
    made = {"keeps_keys": False, "call_seconds": 4.0, "sample": MailSample(), **options}
    return [str(finding) for finding in check_channel(Channel("mails", sender, **made))]


def test_the_shipped_sender_is_right() -> None:
    assert told(SmtpMail("no-reply@acme.example", call_seconds=1.5)) == []


def test_a_channel_that_says_that_mail_has_keys() -> None:
    assert told(SmtpMail("no-reply@acme.example", call_seconds=1.5), keeps_keys=True) == [
        "the channel: a mail server keeps no keys: it must have keeps_keys=False"
    ]


@pytest.mark.parametrize("sender", WRONG, ids=lambda sender: sender.__name__)
def test_what_is_wrong_is_found(sender: type[OwnMail]) -> None:
    assert WRONG[sender] in told(sender())
