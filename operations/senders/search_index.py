"""A search index on OpenSearch: documents with the row's version, each item of the answer judged on its own."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import AsyncHttpConnection, AsyncOpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import TransportError

from bulklane.operations.channel import Endpoint
from bulklane.operations.sender import Answer, Document, Done, Held, Later, Refused, Unknown

MOST_BYTES = 4_000_000
MOST_DOCUMENTS = 1000


@dataclass(frozen=True)
class SearchIndex:
    """The alias that is written to. Deleted records stay as documents with `deleted: true`, for a filtered alias."""

    alias: str
    request_seconds: float = 30.0

    def connect_index(self, endpoint: Endpoint) -> "SearchIndexSender":
        """A sender; one per event loop."""
        client = AsyncOpenSearch(
            [endpoint.url],
            connection_class=AsyncHttpConnection,
            timeout=self.request_seconds,
            max_retries=0,
            http_auth=_credentials(endpoint),
        )
        return SearchIndexSender(self, client)


class SearchIndexSender:
    """Writes documents with `external_gte`: what is stale loses, what is the same is written again harmlessly."""

    def __init__(self, index: SearchIndex, client: AsyncOpenSearch) -> None:
        self._index = index
        self._client = client

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        """Write the documents in requests bounded by bytes and count; one answer each."""
        answers: list[Answer] = []
        for lines in _requests(documents):
            answers += await self._write(lines)
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _write(self, lines: Sequence[tuple[str, str]]) -> list[Answer]:
        if len(lines) == 1 and _size(lines[0]) > MOST_BYTES * 20:
            return [Refused("413", "the document alone is larger than a request may be")]
        body = "".join(f"{action}\n{source}\n" for action, source in lines)
        try:
            response = await self._client.bulk(body=body, index=self._index.alias, params={"require_alias": "true"})
        except TransportError as error:
            if error.status_code == 413:
                return await self._halved(lines)
            return [_failed(error)] * len(lines)
        return [_judge(next(iter(item.values()))) for item in response["items"]]

    async def _halved(self, lines: Sequence[tuple[str, str]]) -> list[Answer]:
        if len(lines) == 1:
            return [Refused("413", "the document alone is larger than a request may be")]
        middle = len(lines) // 2
        return [*await self._write(lines[:middle]), *await self._write(lines[middle:])]


def _requests(documents: Sequence[Document]) -> Iterator[list[tuple[str, str]]]:
    lines: list[tuple[str, str]] = []
    size = 0
    for document in documents:
        line = _line(document)
        if lines and (size + _size(line) > MOST_BYTES or len(lines) >= MOST_DOCUMENTS):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += _size(line)
    if lines:
        yield lines


def _line(document: Document) -> tuple[str, str]:
    action = {"index": {"_id": document.key, "version": document.version, "version_type": "external_gte"}}
    own = {
        "key": document.key,
        "tenant": document.tenant,
        "row_version": document.version,
        "deleted": document.source is None,
    }
    source = {**(document.source or {}), **own}
    return json.dumps(action), json.dumps(_finite(source), default=_text, allow_nan=False)


def _finite(value: Any) -> Any:
    """NaN and infinities are no JSON, and would have the whole request refused: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


def _text(value: Any) -> str:
    """Dates and times as the index reads them (ISO 8601 with a T); other values as their text."""
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _size(line: tuple[str, str]) -> int:
    return len(line[0].encode()) + len(line[1].encode()) + 2


def _judge(item: Mapping[str, Any]) -> Answer:
    status = int(item["status"])
    error = item.get("error") or {}
    kind = str(error.get("type", "")) if isinstance(error, Mapping) else str(error)
    if status < 300:
        return Done(str(status))
    if status == 409:
        return Done("409", "something as new or newer is there")
    if status in (429, 503):
        return Later(reason=kind or f"the index answered {status}")
    if status in (403, 404):
        return Held(f"the index is missing or blocked: {kind or status}")
    if status >= 500:
        return Unknown(f"the index answered {status}")
    return Refused(str(status), kind)


def _failed(error: TransportError) -> Answer:
    if isinstance(error, NoConnection):
        return Unknown("no answer from the search engine")
    if error.status_code in (429, 503):
        return Later(reason=f"the search engine answered {error.status_code}")
    if error.status_code in (401, 403, 404):
        return Held(f"the search engine answered {error.status_code}: check the alias and the credentials")
    if isinstance(error.status_code, int) and error.status_code < 500:
        return Refused(str(error.status_code), "the search engine refused the request")
    return Unknown(f"the search engine answered {error.status_code}")


def _credentials(endpoint: Endpoint) -> tuple[str, str] | None:
    parts = urlsplit(endpoint.url)
    return (parts.username, parts.password or "") if parts.username else None
