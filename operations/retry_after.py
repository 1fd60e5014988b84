"""The Retry-After header of an answer (RFC 9110 section 10.2.3), as seconds from now."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 3600.0


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds to wait, at most an hour; None where the header is missing, past or unreadable.

    Fractions are taken too, since some servers send them; a wait is never shortened to nothing by a bad header.
    """
    if value is None:
        return None
    seconds = _seconds(value.strip(), now)
    return None if seconds is None or seconds <= 0 else min(seconds, LONGEST)


def _seconds(value: str, now: datetime) -> float | None:
    if value.replace(".", "", 1).isascii() and value.replace(".", "", 1).isdigit():
        # infinite where there are very many digits; the cap takes care of that
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - now).total_seconds()
