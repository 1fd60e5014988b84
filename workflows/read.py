"""What the arguments of a start and of a signal mean. Nobody checked them: anything may be in them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.exceptions import ApplicationError

from bulklane.contracts.failure import FailureType
from bulklane.contracts.message import Verb, VerbMessage, read_throttle

LONGEST_TEXT = 200
# Temporal's limit for what an activity is given is 2 MiB; the start may have been shorter in another encoding.
LARGEST_START = 1_900_000
_TEXTS = ("why", "who", "message_id")
_LIMITS = ("rows_per_second", "parallelism")


def check_start(arguments: Sequence[Any]) -> None:
    """Raise InvalidStart for what `open_job` can't be given: trying it would fail the workflow's task for ever."""
    try:
        size = len(json.dumps(arguments))
    except (TypeError, ValueError, RecursionError):
        raise _invalid("BulkJob takes one JSON object: tenant, operation, selection, ...") from None
    if size > LARGEST_START:
        raise _invalid(f"the start argument has {size} bytes as JSON, more than {LARGEST_START}: upload the selection")


def read_message(verb: Verb, arguments: Sequence[Any], default_id: str) -> VerbMessage:
    """A signal's message: why, who and message id in this order, or one object with these names; all optional.

    A throttle has rows_per_second and parallelism before them; an object may hold `lift` instead. Raises
    InvalidThrottle: a limit that can't be read is never taken for none.
    """
    is_throttle = verb is Verb.THROTTLE
    given: Mapping[Any, Any] = {}
    if arguments and isinstance(arguments[0], Mapping):
        given = arguments[0]
    else:
        given = dict(zip((*_LIMITS, *_TEXTS) if is_throttle else _TEXTS, arguments, strict=False))
    throttle = read_throttle(*map(given.get, _LIMITS), lift=given.get("lift")) if is_throttle else None
    why, who, message_id = (_text(given.get(name)) for name in _TEXTS)
    return VerbMessage(message_id or default_id, verb, who or "signal", why, throttle)


def _text(value: Any) -> str:
    """Text that a database can hold: without NUL and half surrogate pairs, which would be refused for ever."""
    if not isinstance(value, str):
        return ""
    return value.replace("\0", "").encode(errors="replace").decode()[:LONGEST_TEXT]


def _invalid(message: str) -> ApplicationError:
    return ApplicationError(message, type=FailureType.INVALID_START, non_retryable=True)
