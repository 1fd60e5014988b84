"""Reads a search index whole, and makes one: what verification and development need of OpenSearch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import NotFoundError, OpenSearch

from bulklane.operations.channel import Endpoint

PAGE = 2000
KEEP_ALIVE = "1m"

# what Bulklane writes into every document, beside the operation's own fields
OWN_FIELDS: Mapping[str, Mapping[str, str]] = {
    "key": {"type": "keyword"},
    "tenant": {"type": "keyword"},
    "row_version": {"type": "long"},
    "deleted": {"type": "boolean"},
    "deleted_at": {"type": "date"},
}


@dataclass(frozen=True)
class Indexed:
    """A document as the index has it."""

    version: int
    deleted: bool


def create_index(url: str, alias: str, properties: Mapping[str, Any]) -> None:
    """Make the index `<alias>-v1` and its alias, which hides deleted records; does nothing where the alias is there.

    The refresh interval is set, since an index without one stops refreshing when it is idle.
    """
    with _client(Endpoint(url)) as client:
        if client.indices.exists_alias(name=alias):
            return
        client.indices.create(
            index=f"{alias}-v1",
            body={
                "settings": {"number_of_replicas": 0, "refresh_interval": "1s"},
                "mappings": {"dynamic": "strict", "properties": {**OWN_FIELDS, **properties}},
                "aliases": {alias: {"filter": {"term": {"deleted": False}}}},
            },
        )


def read_index(endpoint: Endpoint, alias: str, tenant: str) -> dict[str, Indexed]:
    """By key: every document of the tenant, deleted ones too, as of now: refreshed first, then one point in time."""
    with _client(endpoint) as client:
        index = _behind(client, alias)
        client.indices.refresh(index=index)
        return {
            hit["_source"]["key"]: Indexed(int(hit["_version"]), bool(hit["_source"]["deleted"]))
            for hit in _hits(client, index, tenant)
        }


def _hits(client: OpenSearch, index: str, tenant: str) -> Iterator[Mapping[str, Any]]:
    view = client.create_pit(index=index, params={"keep_alive": KEEP_ALIVE})["pit_id"]
    after: list[Any] | None = None
    try:
        while True:
            body = {
                "size": PAGE,
                "query": {"term": {"tenant": tenant}},
                "pit": {"id": view, "keep_alive": KEEP_ALIVE},
                # the key is unique, so no tie-breaker is needed
                "sort": [{"key": "asc"}],
                "version": True,
                "_source": ["key", "deleted"],
                "track_total_hits": False,
                **({"search_after": after} if after is not None else {}),
            }
            answer = client.search(body=body, params={"allow_partial_search_results": "false"})
            view, hits = answer.get("pit_id", view), answer["hits"]["hits"]
            yield from hits
            if len(hits) < PAGE:
                return
            after = hits[-1]["sort"]
    finally:
        client.delete_pit(body={"pit_id": [view]})


def _behind(client: OpenSearch, alias: str) -> str:
    try:
        return str(next(iter(client.indices.get_alias(name=alias))))
    except NotFoundError:
        raise LookupError(f"the search engine has no alias {alias!r}") from None


def _client(endpoint: Endpoint) -> OpenSearch:
    parts = urlsplit(endpoint.url)
    credentials = (parts.username, parts.password or "") if parts.username else None
    return OpenSearch([endpoint.url], http_auth=credentials, timeout=30, max_retries=0)
