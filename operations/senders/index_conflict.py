"""What stands in an index where a living document lost against it: something living and newer, or a `deleted` one."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from bulklane.operations.sender import Answer, Document, Done, Later, Refused, Unknown

CONFLICT = "409"
ASKED_FIELDS = "deleted,deleted_at"


def conflicts(answer: Answer, document: Document) -> bool:
    """Whether a living document lost against what is there: that is done, unless what is there is a `deleted` one."""
    return isinstance(answer, Done) and answer.code == CONFLICT and document.source is not None


def judge_conflict(found: Mapping[str, Any], document: Document, keep_deleted: float) -> Answer:
    """What one item of an `_mget` answer says of a living document that lost."""
    if "error" in found:
        return Unknown("the index can't say what stands there")
    if not found.get("found"):
        # the engine still knows the version of what was purged, for `index.gc_deletes`
        return Later(reason="what stood there has just been purged")
    source, version = found.get("_source", {}), int(found["_version"])
    if not source.get("deleted"):
        return Done(CONFLICT, "something as new or newer is there")
    if version <= document.version:
        return Later(reason="what stands there has changed")
    return Refused(
        CONFLICT,
        f"a `deleted` document of version {version} stands there, and the row has version {document.version}: its"
        f" versions began anew. `bulklane reconcile --repair` or a reindex brings it in, or a retry after the"
        f" document is purged{_purged(source.get('deleted_at'), keep_deleted)}",
    )


def _purged(deleted_at: Any, keep_deleted: float) -> str:
    try:
        at = datetime.fromisoformat(deleted_at) + timedelta(seconds=keep_deleted)
    except (TypeError, ValueError, OverflowError):
        return ""
    return f" (from {at.isoformat(sep=' ', timespec='minutes')} on)"
