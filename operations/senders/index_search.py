"""Finds the keys of a search index's documents: by a point in time and `search_after`, so that writes shift nothing.

The sort key is the document's `key`: it never changes and is unique within a tenant, so that no tie-breaker is needed.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import stamina
from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import OpenSearchException, TransportError

from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.search_index import credentials_of

# the most that one request may ask for is 10,000 (index.max_result_window)
PAGE = 5000
KEEP_ALIVE = "5m"
PAGE_SECONDS = 30.0
COUNT_SECONDS = 5.0
BUSY_SECONDS = 20.0
_SEED = {"seed": 1, "field": "_seq_no"}

_CONFIGURATION = (401, 403, 404)
_BUSY = 429


class QueryRefused(RuntimeError):
    """The search engine can't run this query, whenever it is asked. `kind` is its own name for the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"the search engine refuses the query: {kind}")
        self.kind = kind
        self.reason = reason


class SearchTrouble(RuntimeError):
    """The search engine can't answer now, or its point in time is lost: ask again from the start."""


class _Busy(SearchTrouble):
    """It takes no more requests at this moment: the same page can be asked for again."""


def count_documents(endpoint: Endpoint, alias: str, tenant: str, query: Mapping[str, Any], most: int) -> int:
    """How many of the tenant's documents match, counted up to `most` + 1. Raises QueryRefused and SearchTrouble."""
    body = {"size": 0, "query": _forced(tenant, query), "track_total_hits": most + 1}
    with _client(endpoint, COUNT_SECONDS) as client, _judged():
        answer = client.search(index=alias, body=body, params={"allow_partial_search_results": "false"})
        return int(_whole(answer)["hits"]["total"]["value"])


def sample_documents(
    endpoint: Endpoint, alias: str, tenant: str, query: Mapping[str, Any], count: int
) -> tuple[int, list[str]]:
    """How many of the tenant's documents match, and the keys (text form) of so many of them, picked by chance.

    The pick is the same while nothing changes. Raises QueryRefused and SearchTrouble.
    """
    # https://docs.opensearch.org/latest/query-dsl/compound/function-score/
    by_chance = {"function_score": {"query": _forced(tenant, query), "random_score": _SEED, "boost_mode": "replace"}}
    sort = [{"_score": "desc"}, {"key": "asc"}]
    body = {"size": count, "query": by_chance, "sort": sort, "_source": False, "track_total_hits": True}
    with _client(endpoint, COUNT_SECONDS) as client, _judged():
        with suppress(OpenSearchException):  # as before a freeze; who may only read sees what is a second old
            client.indices.refresh(index=alias)
        hits = _whole(client.search(index=alias, body=body, params={"allow_partial_search_results": "false"}))["hits"]
        return int(hits["total"]["value"]), [_key(hit) for hit in hits["hits"]]


def walk_documents(
    endpoint: Endpoint, alias: str, tenant: str, query: Mapping[str, Any], page: int = PAGE
) -> Generator[list[str]]:
    """The keys (text form) of the tenant's documents that match and aren't deleted, by pages.

    They are those of one moment, right after a refresh. Raises QueryRefused and SearchTrouble; what came until then
    counts for nothing.
    """
    with _client(endpoint, PAGE_SECONDS) as client, _judged():
        client.indices.refresh(index=alias)
        # kept by the walk, which gets a newer id with each page
        view = [client.create_pit(index=alias, params={"keep_alive": KEEP_ALIVE})["pit_id"]]
        try:
            yield from _pages(client, view, _forced(tenant, query), page)
        finally:
            with suppress(OpenSearchException):  # lost already, or it ends by itself
                client.delete_pit(body={"pit_id": view})


def _pages(client: OpenSearch, view: list[str], query: Mapping[str, Any], page: int) -> Generator[list[str]]:
    after: list[Any] | None = None
    expected, found = None, 0
    while True:
        body = {
            "size": page,
            "query": query,
            "pit": {"id": view[0], "keep_alive": KEEP_ALIVE},
            "sort": [{"key": "asc"}],
            "_source": False,
            # without it a total ends at 10,000
            "track_total_hits": after is None,
            **({} if after is None else {"search_after": after}),
        }
        answer = _page(client, body)
        view[0] = answer.get("pit_id", view[0])
        hits = answer["hits"]["hits"]
        if expected is None:
            expected = int(answer["hits"]["total"]["value"])
        found += len(hits)
        if hits:
            yield [_key(hit) for hit in hits]
            after = hits[-1]["sort"]
        if len(hits) < page:
            break
    if found != expected:
        raise SearchTrouble(f"the search engine counted {expected} documents and gave {found}")


def _page(client: OpenSearch, body: Mapping[str, Any]) -> Mapping[str, Any]:
    for attempt in stamina.retry_context(on=_Busy, attempts=None, timeout=BUSY_SECONDS):
        with attempt, _judged():
            return _whole(client.search(body=body, params={"allow_partial_search_results": "false"}))
    raise AssertionError("unreachable")


def _forced(tenant: str, query: Mapping[str, Any]) -> dict[str, Any]:
    """Within the tenant's records that aren't deleted: beside the query, so that nothing in it can widen them."""
    return {"bool": {"filter": [{"term": {"tenant": tenant}}, {"term": {"deleted": False}}, query]}}


def _key(hit: Mapping[str, Any]) -> str:
    key = hit["sort"][-1]
    if not isinstance(key, str):
        raise QueryRefused("no_key", "a document of the index has no key")
    return key


def _whole(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise SearchTrouble("the search engine gave a part of the answer only")
    return answer


@contextmanager
def _judged() -> Iterator[None]:
    """The client's errors as what they mean. Their own text may quote documents: it goes nowhere."""
    try:
        yield
    except TransportError as error:
        raise _meaning(error) from None
    except OpenSearchException as error:
        raise SearchTrouble(f"the search engine can't be asked: {type(error).__name__}") from None


def _meaning(error: TransportError) -> Exception:
    status = error.status_code
    if isinstance(error, NoConnection) or not isinstance(status, int):
        return SearchTrouble("no answer from the search engine")
    kind = str(error.error)[:100]
    if status == _BUSY:
        return _Busy(f"the search engine is busy: {kind}")
    if "search_context_missing" in kind or "search_context_missing" in str(error.info):
        return SearchTrouble("the search engine has lost the point in time")
    if status in _CONFIGURATION:
        return SearchTrouble(f"the search engine answered {status} ({kind}): check the alias and the credentials")
    if status < 500:
        return QueryRefused(_cause(error.info, "type") or kind, _cause(error.info, "reason"))
    return SearchTrouble(f"the search engine answered {status} ({kind})")


def _cause(info: Any, part: str) -> str:
    """What the engine says of the query at the bottom of its answer: a `type`, and a `reason` for who wrote it."""
    with suppress(KeyError, IndexError, TypeError):
        return str(info["error"]["root_cause"][0][part])[:300]
    return ""


def _client(endpoint: Endpoint, seconds: float) -> OpenSearch:
    return OpenSearch([endpoint.url], http_auth=credentials_of(endpoint), timeout=seconds, max_retries=0)
