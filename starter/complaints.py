"""What can be expected to go wrong, told in a line or two, with an exit code; anything else keeps its trace."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from bulklane.starter.shown import shown_lines

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from bulklane.database.accept import Conflict

REFUSED = 2
CONFLICT = 3
UNKNOWN = 4
UNAVAILABLE = 5
INTERRUPTED = 130


class Unavailable(RuntimeError):
    """A server that a command needs can't be used; the message names it without its password."""


@contextmanager
def complaints() -> Iterator[None]:
    """Turn expected exceptions into a message on standard error and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        told = _explain(error)
        if told is None:
            raise
        code, lines = told
        for line in lines:
            typer.echo(shown_lines(line), err=True)
        raise typer.Exit(code) from None


def _explain(error: Exception) -> tuple[int, list[str]] | None:
    # only now: `--help` and good commands don't pay for what they don't need
    from pydantic import ValidationError
    from sqlalchemy.exc import SQLAlchemyError

    from bulklane.contracts.message import InvalidThrottle
    from bulklane.database.accept import Conflict, JobIdReused, LeaseMissed
    from bulklane.database.engine import DatabaseUnfit
    from bulklane.database.job import JobUnknown
    from bulklane.database.search_index import RebuildLost
    from bulklane.operations.operation import OperationError, UnknownOperation
    from bulklane.operations.request import InvalidRequest
    from bulklane.stack import StackError
    from bulklane.starter.channels import ChannelUnknown
    from bulklane.starter.preview import PreviewUnable
    from bulklane.starter.rebuild import ReindexRunning
    from bulklane.starter.running import NoStack
    from bulklane.starter.verify import NotVerifiable

    match error:
        case InvalidRequest():
            return REFUSED, [f"{problem.path}: {problem.message}" for problem in error.problems]
        case ValidationError():
            return REFUSED, _settings(error)
        case OperationError() | UnknownOperation() | NotVerifiable() | InvalidThrottle():
            return REFUSED, [str(error)]
        case Conflict():
            return CONFLICT, [_conflict(error)]
        case JobIdReused() | LeaseMissed() | ReindexRunning() | RebuildLost():
            return CONFLICT, [str(error)]
        case JobUnknown():
            return UNKNOWN, [f"{str(error).strip()}: `bulklane submit` prints the id of a job"]
        case ChannelUnknown():
            return UNKNOWN, [str(error)]
        case SQLAlchemyError():
            return UNAVAILABLE, [explain_database(error, "the database")]
        case Unavailable() | NoStack() | DatabaseUnfit() | StackError() | PreviewUnable():
            return UNAVAILABLE, [str(error)]
    return None


def explain_database(error: Exception, where: str) -> str:
    """What a database error means for somebody who typed a command. `where` names the database without its password."""
    cause = getattr(error, "orig", None) or error
    if type(cause).__name__ in {"UndefinedTable", "InvalidSchemaName", "UndefinedColumn"}:
        return f"{where} lacks something ({first_line(cause)}): run `bulklane install`"
    return f"{where} can't be used: {first_line(cause)}"


def first_line(error: BaseException) -> str:
    """The first line of its message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _settings(error: "ValidationError") -> list[str]:
    return [_setting(problem) for problem in error.errors(include_url=False)]


def _setting(problem: "ErrorDetails") -> str:
    name = _variable(problem["loc"])
    if problem["type"] == "missing":
        return f"{name}: is needed, and not set"
    # an address or a token may hold a password
    shown = "" if {"URL", "TOKEN"} & set(name.split("_")) else f"{str(problem['input'])[:40]!r}: "
    return f"{name}: {shown}{problem['msg']}"


def _variable(location: tuple[int | str, ...]) -> str:
    name = "__".join(str(part).upper() for part in location)
    return name if name in {"DATABASE_URL", "TEMPORAL_ADDRESS", "OPENSEARCH_URL"} else f"BULKLANE_{name}"


def _conflict(error: "Conflict") -> str:
    holder = error.holder
    return (
        f"conflict: job {holder.job_id} ({holder.state}) owns {holder.resource} since"
        f" {holder.since.isoformat(timespec='seconds')}; try again when it is over"
        f" (`bulklane watch {holder.job_id}`), or end it (`bulklane cancel {holder.job_id}`)"
    )
