"""Record keys: their types, what is accepted as a key, and the one text form in which a key is stored and shown.

A key of one column is written as its text; a key of several as a JSON array of texts, spaced as PostgreSQL's jsonb is.
Integers are exact in 64 bits, UUIDs canonical (RFC 9562 section 4), timestamps instants in UTC with microseconds.
"""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

KeyValue = int | str | UUID | datetime
Key = tuple[KeyValue, ...]

SMALLEST_BIGINT = -(2**63)
LARGEST_BIGINT = 2**63 - 1
LONGEST_TEXT = 1000

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|z|[+-][0-9]{2}:?[0-9]{2})"
)


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
        raise InvalidKey(f"a key of {len(types)} column(s) ({', '.join(types)}) is needed, not {_shown(value)}")
    return tuple(parse_value(part, key_type) for part, key_type in zip(value, types, strict=True))


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
    """The typed key of a text form that `format_key` or the database has written."""
    return parse_key(json.loads(text) if len(types) > 1 else text, types)


def _parse_bigint(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise InvalidKey(f"{_shown(value)} is no whole number; floats and booleans are never rounded to one")
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            raise InvalidKey(f"{_shown(value)} is no whole number in decimal digits of at most 64 bits")
        value = int(value)
    if not SMALLEST_BIGINT <= value <= LARGEST_BIGINT:
        raise InvalidKey(f"{_shown(value)} is outside the 64-bit range")
    return value


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidKey(f"{_shown(value)} is no text")
    if "\x00" in value:
        raise InvalidKey(f"{_shown(value)} holds a NUL character, which PostgreSQL can't store")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"{_shown(value)} holds half a surrogate pair, which isn't Unicode text") from None
    if length > LONGEST_TEXT:
        raise InvalidKey(f"a key's text is at most {LONGEST_TEXT} bytes long; this one has {length}")
    return value


def _parse_uuid(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and len(value) <= len("urn:uuid:") + 38:
        try:
            return UUID(value)
        except ValueError:
            pass
    raise InvalidKey(f"{_shown(value)} is no UUID")


def _parse_timestamp(value: object) -> datetime:
    if isinstance(value, datetime):
        instant = value
    elif isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError as error:
            raise InvalidKey(f"{_shown(value)} is no possible time: {error}") from None
    else:
        raise InvalidKey(f"{_shown(value)} is no timestamp like 2026-03-29T12:30:00.000001+02:00")
    if instant.utcoffset() is None:
        raise InvalidKey(f"{_shown(value)} has no offset, so it isn't an instant; write one, like +02:00 or Z")
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidKey(f"{_shown(value)} is outside the years 1 to 9999") from None


def _format_value(value: KeyValue) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return str(value)


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, int) and abs(value) < 10**30 else repr(value)[:81]
    return text if len(text) <= 80 else text[:77] + "..."
