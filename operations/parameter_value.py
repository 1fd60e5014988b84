"""What pydantic would let pass in parameters, and we don't: numbers that are none, times that are no instants.

A number in a text counts as a time for it (https://docs.pydantic.dev/latest/api/standard_library_types/#datetimes), and
a time needs no offset.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime

from bulklane.contracts.key import InvalidKey, KeyType, parse_value, shown

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def not_finite(value: object, path: str) -> Iterator[str]:
    """Where NaN or an infinity stands. Raises RecursionError where the value is too deep."""
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    for name, part in _parts(value):
        yield from not_finite(part, f"{path}.{name}")


def no_instants(value: object, raw: object, path: str) -> Iterator[tuple[str, str]]:
    """Path and complaint for each time that was read from something else than an instant, or a date than a date.

    `value`: what was read, as dicts and lists; `raw`: what came in, by the same names.
    """
    if isinstance(value, datetime):
        try:
            parse_value(raw if isinstance(raw, str) else value, KeyType.TIMESTAMPTZ)
        except InvalidKey as error:
            yield path, str(error)
    elif isinstance(value, date) and isinstance(raw, str) and not _DATE.fullmatch(raw):
        yield path, f"{shown(raw)} is no date like 2026-03-29"
    given = dict(_parts(raw))
    for name, part in _parts(value):
        yield from no_instants(part, given.get(name), f"{path}.{name}")


def _parts(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
