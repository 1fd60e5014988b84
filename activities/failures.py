"""What failed, for people and for the workflow."""

from temporalio.exceptions import ApplicationError

from bulklane.contracts.failure import FailureType
from bulklane.database.chunk_plan import Miscounted
from bulklane.database.failure import rule_of
from bulklane.database.fitting import UnfitValue
from bulklane.operations.operation import OperationError


def reason_of(error: Exception) -> tuple[str, str]:
    """A code and a short reason without record content."""
    if isinstance(error, (OperationError, UnfitValue, Miscounted)):
        return type(error).__name__, str(error)
    return rule_of(error)


def database_trouble(error: Exception) -> ApplicationError:
    """The failure that leaves an activity whose database was away too long; retried."""
    code, reason = reason_of(error)
    return ApplicationError(f"the database: {reason} ({code})", type=FailureType.DATABASE_TROUBLE)
