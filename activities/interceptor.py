"""What leaves an activity: failures with a type and a short reason, never record content.

A driver's message quotes the row that broke a rule, and Temporal would keep it in the history and show it to everybody.
"""

from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from bulklane.activities.failures import database_trouble, reason_of

log = structlog.get_logger("bulklane.activities")


class FailureInterceptor(Interceptor):
    """Wraps every activity of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """The activity, with its failures made fit for the history."""
        return _Guarded(next)


class _Guarded(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        try:
            return await super().execute_activity(input)
        except FailureError:
            raise
        except Exception as error:
            raise _fit(error) from None


def _fit(error: Exception) -> ApplicationError:
    code, reason = reason_of(error)
    place = _place_of(error)
    log.warning("activity failed", activity=activity.info().activity_type, code=code, reason=reason, place=place)
    if isinstance(error, SQLAlchemyError):
        return database_trouble(error)
    return ApplicationError(f"{reason} at {place}", type=type(error).__name__)


def _place_of(error: Exception) -> str:
    """Where in the code it was raised: file and line of the innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
