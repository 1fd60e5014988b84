"""The Retry-After header of an answer (RFC 9110 section 10.2.3), as seconds from now."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 3600.0
# a wait of next to nothing would be no wait
SHORTEST = 0.1


def retry_after_seconds(value: str | None, now: datetime, date: str | None = None) -> float | None:
    """Seconds to wait, from a tenth of one to an hour; None where the header is missing, past or unreadable.

    Fractions are taken too, since some servers send them; a wait is never shortened to nothing by a bad header. `date`:
    the answer's Date header. Where it can be read, a date is measured from it, so that our clock doesn't matter.
    """
    told = None if date is None else _moment(date)
    now = now if told is None else told
    if value is None:
        return None
    seconds = _seconds(value.strip(), now)
    return None if seconds is None or seconds <= 0 else min(max(seconds, SHORTEST), LONGEST)


def _seconds(value: str, now: datetime) -> float | None:
    if value.replace(".", "", 1).isascii() and value.replace(".", "", 1).isdigit():
        # infinite where there are very many digits; the cap takes care of that
        return float(value)
    when = _moment(value)
    return None if when is None else (when - now).total_seconds()


def _moment(value: str) -> datetime | None:
    try:
        when = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)
