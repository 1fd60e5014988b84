"""A mail from the body of a call: checked, and the same bytes for the same body and date."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any

from bulklane.operations.sender import Call


class BadMail(ValueError):
    """The body is no mail; the message names the field and the rule, never its content."""


@dataclass(frozen=True)
class Mail:
    """A message as it goes over the wire, and to whom."""

    to: str
    message: bytes
    message_id: str


def message_id(idempotency_key: str, sender: str) -> str:
    """The Message-ID of a delivery (RFC 5322 section 3.6.4): the same for every attempt of its generation."""
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()[:40]
    return f"<{digest}@{sender.rpartition('@')[2]}>"


def read_mail(call: Call, sender: str) -> Mail:
    """The mail of a call's body. Raises BadMail."""
    body = _object(call.body)
    to, subject, text = (_text(body, name) for name in ("to", "subject", "text"))
    made = EmailMessage(policy=SMTP)
    made["From"] = sender
    made["To"] = _address(to)
    _set_subject(made, subject)
    made["Date"] = format_datetime(_date(body))
    made["Message-ID"] = identity = message_id(call.idempotency_key, sender)
    # as 7-bit text, which every server takes
    made.set_content(text, cte="quoted-printable")
    return Mail(to, made.as_bytes(), identity)


def _set_subject(made: EmailMessage, subject: str) -> None:
    try:
        made["Subject"] = subject
    except ValueError:
        raise BadMail("`subject` has a line break") from None
    # as it is read too: encoded words in it (RFC 2047) are decoded, and could hold a line break and another header
    if any(unicodedata.category(one) == "Cc" for one in subject + str(made["Subject"])):
        raise BadMail("`subject` has a line break or another control character, perhaps in an encoded word (=?...?=)")


def _object(body: str) -> Mapping[str, Any]:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadMail("the body must be a JSON object with `to`, `subject` and `text`")
    return read


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or (not value and name == "to"):
        raise BadMail(f"`{name}` must be a text, not {'missing' if value is None else type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadMail(f"`{name}` holds half of a surrogate pair") from None
    return value


def _address(value: str) -> Address:
    try:
        address = Address(addr_spec=value)
    except (ValueError, HeaderParseError, IndexError, AttributeError):
        # the last two are the library's own slips over odd texts
        raise BadMail("`to` is no address, such as name@example.com") from None
    if not address.username or not address.domain or address.addr_spec != value or not value.isascii():
        raise BadMail("`to` is no address of ASCII characters, such as name@example.com (a domain as xn--...)")
    return address


def _date(body: Mapping[str, Any]) -> datetime:
    value = body.get("date")
    if value is None:
        return datetime.now(UTC)
    try:
        date = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        date = None
    if date is None or date.tzinfo is None:
        raise BadMail("`date` must be a time with its offset, in ISO 8601")
    return date
