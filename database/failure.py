"""Database errors as what they mean for a chunk: a record's fault, trouble that passes, or a bug."""

from enum import StrEnum

from psycopg import errors
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from bulklane.database.record_change import DecidingTooSlow


class Trouble(StrEnum):
    """What a database error means for the chunk. Slow and large: a smaller one has a better chance.

    Locked: others hold its rows; it comes again, smaller too.
    """

    RECORD = "record"
    SLOW = "slow"
    LOCKED = "locked"
    LARGE = "large"
    PASSING = "passing"
    BUG = "bug"


# https://www.postgresql.org/docs/18/errcodes-appendix.html
_RECORD_CLASSES = ("22", "23")  # data exceptions, integrity constraint violations
_PASSING_CLASSES = ("08", "40", "53", "57", "58")  # connection, rollback, resources, operator, system
_PASSING_CODES = ("55006",)  # object in use
TRANSACTION_TIMEOUT = "25P04"
_LOCKED = (errors.LockNotAvailable, errors.DeadlockDetected)


def trouble_of(error: Exception) -> Trouble:
    """What an error of a chunk's transaction means."""
    if isinstance(error, PoolTimeout):
        return Trouble.PASSING
    if isinstance(error, DecidingTooSlow):
        return Trouble.LARGE
    if isinstance(error, UnicodeEncodeError):
        # the driver's own, not wrapped: half a surrogate pair in a new value
        return Trouble.RECORD
    if not isinstance(error, DBAPIError):
        return Trouble.BUG
    state = getattr(error.orig, "sqlstate", None)
    if state is None and isinstance(error, DataError):
        # the driver's own: a NUL in a new value, a time that Python can't hold
        return Trouble.RECORD
    if state is None:
        lost = error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError))
        return Trouble.PASSING if lost else Trouble.BUG
    if isinstance(error.orig, _LOCKED):
        return Trouble.LOCKED
    if isinstance(error.orig, errors.QueryCanceled) or state == TRANSACTION_TIMEOUT:
        return Trouble.SLOW
    if state[:2] in _RECORD_CLASSES:
        return Trouble.RECORD
    return Trouble.PASSING if state[:2] in _PASSING_CLASSES or state in _PASSING_CODES else Trouble.BUG


def rule_of(error: Exception) -> tuple[str, str]:
    """A code and a short reason without record content: which rule was broken, not by which value."""
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None) or type(original).__name__
    diagnostics = getattr(original, "diag", None)
    constraint = getattr(diagnostics, "constraint_name", None)
    column = getattr(diagnostics, "column_name", None)
    name = type(original).__name__
    if constraint:
        return state, f"{name}: constraint {constraint}"
    return state, f"{name}: column {column}" if column else name
