"""A search index on OpenSearch: documents with the row's version, each item of the answer judged on its own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import AsyncHttpConnection, AsyncOpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import OpenSearchException, TransportError

from bulklane.operations.channel import Endpoint
from bulklane.operations.sender import Answer, Document, Done, Held, Later, Refused, Unknown
from bulklane.operations.senders.index_conflict import ASKED_FIELDS, CONFLICT, judge_conflict
from bulklane.operations.senders.index_line import cut, document_line

MOST_BYTES = 1_040_000  # aiohttp warns of bodies beyond 2**20 bytes
LEAST_BYTES = 50_000
MOST_DOCUMENTS = 1000
FRESH_SECONDS = 60.0
SHORTEST_KEPT = 2 * 3600.0
KEPT = 7 * 24 * 3600.0


@dataclass(frozen=True)
class SearchIndex:
    """The alias that is written to. Deleted records stay as documents with `deleted: true`, for a filtered alias.

    `properties`: the mapping that the next `bulklane reindex` gives the index; by default that of the present one.
    `keep_deleted`: how long a `deleted` document stays, in seconds. It must be longer than anything between sender and
    index can hold back a request: one that comes later would bring the record back.
    """

    alias: str
    request_seconds: float = 30.0
    properties: Mapping[str, Any] | None = None
    keep_deleted: float = KEPT

    def __post_init__(self) -> None:
        if self.keep_deleted < SHORTEST_KEPT:
            raise ValueError(
                f"index {self.alias!r}: keep_deleted is {self.keep_deleted:g} s; at least {SHORTEST_KEPT:g} s are"
                " needed, since a delayed write must still find the `deleted` document"
            )

    def connect_index(self, endpoint: Endpoint) -> "SearchIndexSender":
        """A sender; one per event loop."""
        client = connect_search(endpoint, self.request_seconds)
        return SearchIndexSender(client, self.alias, is_alias=True, keep_deleted=self.keep_deleted)


def connect_search(endpoint: Endpoint, seconds: float) -> AsyncOpenSearch:
    """A client that never sends twice by itself; one per event loop."""
    return AsyncOpenSearch(
        [endpoint.url],
        connection_class=AsyncHttpConnection,
        timeout=seconds,
        max_retries=0,
        http_auth=credentials_of(endpoint),
    )


def credentials_of(endpoint: Endpoint) -> tuple[str, str] | None:
    """User and password of an engine's URL, if it has them."""
    parts = urlsplit(endpoint.url)
    return (parts.username, parts.password or "") if parts.username else None


class SearchIndexSender:
    """Writes documents in requests bounded by bytes and count. It learns which size a server or proxy still takes."""

    def __init__(self, client: AsyncOpenSearch, target: str, *, is_alias: bool, keep_deleted: float = KEPT) -> None:
        self._client = client
        self._keep_deleted = keep_deleted
        self._target = target
        self._params = {"require_alias": "true"} if is_alias else {}
        self._most_bytes = MOST_BYTES

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        """One answer each. What couldn't be sent within a minute is `Later`: it has to be read again."""
        clock = asyncio.get_running_loop().time
        until = clock() + FRESH_SECONDS
        answers: list[Answer] = []
        made = [_line(one) for one in documents]
        for lines in cut([one for one in made if isinstance(one, bytes)], self._most_bytes, MOST_DOCUMENTS):
            # a process that was frozen must not go on with what it read before
            fresh = clock() < until
            answers += await self._write(lines) if fresh else [Later(reason="read too long ago")] * len(lines)
        written = iter(answers)
        return [next(written) if isinstance(one, bytes) else one for one in made]

    def beside(self, index: str) -> "SearchIndexSender":
        """Writes to an index by its name, with the same client."""
        other = SearchIndexSender(self._client, index, is_alias=False, keep_deleted=self._keep_deleted)
        other._most_bytes = self._most_bytes
        return other

    async def look_at_conflicts(self, documents: Sequence[Document]) -> list[Answer]:
        """Why living documents lost, in one request: see `judge_conflict`."""
        ids = [one.id or one.key for one in documents]
        try:
            asked = {"_source_includes": ASKED_FIELDS}
            response = await self._client.mget(index=self._target, body={"ids": ids}, params=asked)
            found = response["docs"]
        except TransportError as error:
            answer = judge_failure(error)
            return [Unknown(answer.reason) if isinstance(answer, Refused) else answer] * len(ids)
        except (OpenSearchException, TypeError, KeyError):
            return [Unknown("the search engine's answer can't be read")] * len(ids)
        if len(found) != len(ids):
            return [Unknown("the search engine's answer is not whole")] * len(ids)
        return [judge_conflict(one, made, self._keep_deleted) for one, made in zip(found, documents, strict=True)]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _write(self, lines: Sequence[bytes]) -> list[Answer]:
        try:
            response = await self._client.bulk(body=b"".join(lines), index=self._target, params=self._params)
            items = response["items"]
        except TransportError as error:
            return await self._failed(lines, error)
        except (OpenSearchException, TypeError, KeyError):
            return [Unknown("the search engine's answer can't be read")] * len(lines)
        if len(items) != len(lines):
            return [Unknown("the search engine's answer is not whole")] * len(lines)
        return [judge_item(next(iter(item.values()))) for item in items]

    async def _failed(self, lines: Sequence[bytes], error: TransportError) -> list[Answer]:
        answer = judge_failure(error)
        if not isinstance(answer, Refused) or len(lines) == 1:
            return [answer] * len(lines)
        # too large, or one of them makes the whole unreadable: it must not take its neighbours with it
        half = max(1, sum(len(line) for line in lines) // 2)
        if answer.code == "413":
            self._most_bytes = max(LEAST_BYTES, min(self._most_bytes, half))
        answers: list[Answer] = []
        for run in cut(lines, half, max(1, len(lines) // 2)):
            answers += await self._write(run)
        return answers


def _line(document: Document) -> bytes | Refused:
    try:
        return document_line(document)
    except (RecursionError, TypeError, ValueError) as error:
        # it must not take its neighbours with it
        return Refused("unwritable", f"the document can't be written as JSON: {type(error).__name__}")


def judge_item(item: Mapping[str, Any]) -> Answer:
    """What one item of a bulk answer says of its document."""
    status = int(item["status"])
    error = item.get("error") or {}
    kind = str(error.get("type", "")) if isinstance(error, Mapping) else str(error)
    if status < 300:
        return Done(str(status))
    if status == 409:
        return Done(CONFLICT, "something as new or newer is there")
    if status in (403, 404) or kind == "cluster_block_exception":
        return Held(f"the index is missing or blocked: {kind or status}")
    if status in (429, 503):
        return Later(reason=kind or f"the index answered {status}")
    if status >= 500:
        return Unknown(f"the index answered {status}")
    return Refused(str(status), kind)


def judge_failure(error: TransportError) -> Answer:
    """What a failed request says of its documents; Refused: one of them, or their size, is to blame."""
    if isinstance(error, NoConnection):
        return Unknown("no answer from the search engine")
    if error.status_code in (429, 503):
        if "cluster_block_exception" in str(error.error):
            return Held("the index is blocked: cluster_block_exception")
        return Later(reason=f"the search engine answered {error.status_code}")
    if error.status_code in (401, 403, 404):
        return Held(f"the search engine answered {error.status_code}: check the alias and the credentials")
    if error.status_code == 413:
        return Refused("413", "the document alone is larger than a request may be")
    if isinstance(error.status_code, int) and error.status_code < 500:
        return Refused(str(error.status_code), "the search engine refused the request")
    return Unknown(f"the search engine answered {error.status_code}")
