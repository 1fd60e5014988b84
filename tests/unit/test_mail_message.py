"""A mail's text from odd bodies: a mail with its own headers and no others, or BadMail; nothing else is ever raised."""

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bulklane.operations.sender import Call
from bulklane.operations.senders.mail_message import BadMail, Mail, read_mail

HEADERS = {b"From", b"To", b"Subject", b"Date", b"Message-ID", b"Content-Type", b"Content-Transfer-Encoding"}
ODD = st.text(st.sampled_from('ab@.<>"\\ ()[],:;\r\n\t\x00\x0b\x1c\x7f\x85\u2028é=?_\U0001f600'), max_size=60)


def mail(**body: str) -> Mail:
    return read_mail(
        Call("key", json.dumps({"to": "ann@example.com", "subject": "s", "text": "t", **body})), "a@b.example"
    )


@pytest.mark.parametrize(
    "subject",
    ["=?utf-8?q?x=0d=0aBcc:eve@example.com?=", "=?utf-8?b?eA0KQmNjOmV2ZUBleGFtcGxlLmNvbQ==?= y", "x\n", "x\x00", "a\r"],
)
def test_no_header_can_be_smuggled_in(subject: str) -> None:
    with pytest.raises(BadMail, match="line break"):
        mail(subject=subject)


@given(ODD, ODD)
@example("\tb\t@[=é?.>@ex.com", "s")
def test_it_is_a_mail_or_bad_mail(to: str, subject: str) -> None:
    for body in ({"to": to}, {"to": f"{to}@example.com"}, {"subject": subject, "text": subject}):
        with suppress(BadMail):
            made = mail(**body)
            head = made.message.split(b"\r\n\r\n")[0].split(b"\r\n")
            names = {line.split(b":")[0] for line in head if line[:1] not in b" \t"}
            assert names <= HEADERS | {b"MIME-Version"}
            assert b"\n" not in made.message.replace(b"\r\n", b"")
            assert not set(made.to) & set("\r\n\x00")
