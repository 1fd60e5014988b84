"""Documents as the bulk endpoint of OpenSearch reads them, cut into requests."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from typing import Any

from bulklane.operations.sender import Document


def document_line(document: Document) -> bytes:
    """Action and source, with `external_gte`: what is stale loses, what is the same is written again harmlessly."""
    action = {
        "_id": document.id or document.key,
        "version": document.version,
        "version_type": "external_gte",
    }
    own: dict[str, Any] = {
        "key": document.key,
        "tenant": document.tenant,
        "row_version": document.version,
        "deleted": document.source is None,
    }
    if document.deleted_at is not None:
        own["deleted_at"] = document.deleted_at
    return _json({"index": action}) + _json(_finite({**(document.source or {}), **own}))


def cut(lines: Sequence[bytes], most_bytes: int, most_lines: int) -> Iterator[list[bytes]]:
    """The lines in their order, in runs bounded by bytes and count; a longer line is a run of its own."""
    run: list[bytes] = []
    size = 0
    for line in lines:
        if run and (size + len(line) > most_bytes or len(run) >= most_lines):
            yield run
            run, size = [], 0
        run.append(line)
        size += len(line)
    if run:
        yield run


def _json(value: Any) -> bytes:
    text = json.dumps(value, default=_text, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # half a surrogate pair is no Unicode text, and would have the whole request refused: a question mark
    return text.encode(errors="replace") + b"\n"


def _finite(value: Any) -> Any:
    """NaN and infinities are no JSON, and would have the whole request refused: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def _text(value: Any) -> str:
    """Dates and times as the index reads them (ISO 8601 with a T); other values as their text."""
    return value.isoformat() if isinstance(value, (date, time)) else str(value)
