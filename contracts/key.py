"""Record keys: their types, what is accepted as a key, and the one text form in which a key is stored and shown.

A key of one column is written as its text; a key of several as a JSON array of texts, spaced as PostgreSQL's jsonb is.
Integers are exact in 64 bits, UUIDs canonical (RFC 9562 section 4), timestamps instants in UTC with microseconds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

KeyValue = int | str | UUID | datetime
Key = tuple[KeyValue, ...]

SMALLEST_BIGINT = -(2**63)
LARGEST_BIGINT = 2**63 - 1
LONGEST_TEXT = 1000
# a key's text form is part of an index row, which holds 2,704 bytes
LONGEST_KEY = 2000
SHOWN = 80
LONGEST_SHOWN_NUMBER = 10**30

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
# narrower than datetime.fromisoformat, which takes a minute 60 in an offset, and from Python 3.13 on an hour 24
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,6})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])",
    re.ASCII | re.IGNORECASE,
)
_HEX_DIGITS = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
# narrower than uuid.UUID, which takes dashes anywhere, and what int(_, 16) takes: underscores, blanks, a sign, 0x
_UUID = re.compile(rf"(urn:uuid:)?({_HEX_DIGITS})|\{{({_HEX_DIGITS})\}}", re.ASCII | re.IGNORECASE)


class KeyType(StrEnum):
    """The column types that a key may have."""

    BIGINT = "bigint"
    TEXT = "text"
    UUID = "uuid"
    TIMESTAMPTZ = "timestamptz"


class InvalidKey(ValueError):
    """A value that can't be a key of the operation's records; the message names the value and the rule."""


def parse_key(value: object, types: Sequence[KeyType]) -> Key:
    """The typed key of a value as it came in: a scalar for one key column, a list or tuple for several.

    Raises InvalidKey. Nothing is rounded, trimmed or folded: text counts byte for byte.
    """
    if len(types) == 1 and not isinstance(value, (list, tuple)):
        return (parse_value(value, types[0]),)
    if not isinstance(value, (list, tuple)) or len(value) != len(types):
        raise InvalidKey(f"a key of {len(types)} column(s) ({', '.join(types)}) is needed, not {shown(value)}")
    key = tuple(parse_value(part, key_type) for part, key_type in zip(value, types, strict=True))
    if len(types) > 1 and KeyType.TEXT in types and (length := len(format_key(key).encode())) > LONGEST_KEY:
        raise InvalidKey(f"a key is at most {LONGEST_KEY} bytes long as a JSON array; this one has {length}")
    return key


def parse_value(value: object, key_type: KeyType) -> KeyValue:
    """One typed column value; raises InvalidKey."""
    match key_type:
        case KeyType.BIGINT:
            return _parse_bigint(value)
        case KeyType.TEXT:
            return _parse_text(value)
        case KeyType.UUID:
            return _parse_uuid(value)
        case KeyType.TIMESTAMPTZ:
            return _parse_timestamp(value)


def format_key(key: Key) -> str:
    """The key's text form."""
    texts = [_format_value(value) for value in key]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def read_key(text: str, types: Sequence[KeyType]) -> Key:
    """The typed key of a text form that `format_key` or the database has written, however long; raises InvalidKey."""
    parts = json.loads(text) if len(types) > 1 else [text]
    return tuple(
        part if key_type is KeyType.TEXT else parse_value(part, key_type)
        for part, key_type in zip(parts, types, strict=True)
    )


def _parse_bigint(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidKey(f"{shown(value)} is no whole number; floats and booleans are never rounded to one")
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise InvalidKey(f"{shown(value)} is no whole number in decimal digits of at most 64 bits")
        value = int(value)
    if not SMALLEST_BIGINT <= value <= LARGEST_BIGINT:
        raise InvalidKey(f"{shown(value)} is outside the 64-bit range")
    return value


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidKey(f"{shown(value)} is no text")
    if "\x00" in value:
        raise InvalidKey(f"{shown(value)} holds a NUL character, which PostgreSQL can't store")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"{shown(value)} holds half a surrogate pair, which isn't Unicode text") from None
    if length > LONGEST_TEXT:
        raise InvalidKey(f"a key's text is at most {LONGEST_TEXT} bytes long; this one has {length}")
    return value


def _parse_uuid(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and _UUID.fullmatch(value):
        return UUID(value.lower())
    raise InvalidKey(f"{shown(value)} is no UUID")


def _parse_timestamp(value: object) -> datetime:
    if isinstance(value, datetime):
        instant = value
    elif isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        try:
            instant = datetime.fromisoformat(value.upper())
        except ValueError as error:
            raise InvalidKey(f"{shown(value)} is no possible time: {error}") from None
    else:
        raise InvalidKey(f"{shown(value)} is no timestamp like 2026-03-29T12:30:00.000001+02:00")
    if instant.utcoffset() is None:
        raise InvalidKey(f"{shown(value)} has no offset, so it isn't an instant; write one, like +02:00 or Z")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidKey(f"{shown(value)} is outside the years 1 to 9999") from None


def _format_value(value: KeyValue) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return str(value)


def shown(value: object) -> str:
    """A value for a message: short, and never a second failure, however long or deep the value is."""
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, int) and abs(value) >= LONGEST_SHOWN_NUMBER:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[:SHOWN] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
