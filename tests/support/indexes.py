"""A search index of a test's own on the stack's OpenSearch, with documents as Bulklane writes them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from opensearchpy import OpenSearch

from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.index_reader import create_index
from bulklane.operations.senders.index_search import walk_documents


@dataclass(frozen=True)
class TestIndex:
    """An alias with one index behind it."""

    __test__ = False

    alias: str
    client: OpenSearch
    endpoint: Endpoint

    def put(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Write documents (`key`, `tenant` and fields), and refresh."""
        lines = []
        for document in documents:
            whole = {"row_version": 1, "deleted": False, **document}
            lines += [json.dumps({"index": {"_id": f"{whole['tenant']}/{whole['key']}"}}), json.dumps(whole)]
        if lines:
            answer = self.client.bulk(body="\n".join(lines) + "\n", index=self.alias, params={"refresh": "true"})
            assert not answer["errors"], answer
        else:
            self.client.indices.refresh(index=self.alias)

    def search(self, **body: Any) -> list[dict[str, Any]]:
        """The documents of one plain request."""
        return [{**hit["_source"], "sort": hit.get("sort")} for hit in self.hits(**body)]

    def hits(self, **body: Any) -> list[dict[str, Any]]:
        """The hits of one plain request."""
        hits: list[dict[str, Any]] = self.client.search(index=self.alias, body=body)["hits"]["hits"]
        return hits

    def walked(self, tenant: str, query: Mapping[str, Any], page: int = 100) -> Iterator[list[str]]:
        """Our walk."""
        return walk_documents(self.endpoint, self.alias, tenant, query, page)

    def lose_views(self) -> None:
        """Every point in time of the node is gone, as after its restart."""
        self.client.delete_all_pits()

    def open_views(self) -> int:
        """How many points in time are open."""
        return len(self.client.get_all_pits()["pits"]) if self._has_views() else 0

    def _has_views(self) -> bool:
        stats = self.client.indices.stats(index=self.alias, metric="search")
        return bool(stats["_all"]["total"]["search"]["point_in_time_current"])


@contextmanager
def index_of_ones_own(url: str, properties: Mapping[str, Any]) -> Iterator[TestIndex]:
    """An index that is gone afterwards."""
    alias = f"test-{uuid4().hex[:12]}"
    create_index(url, alias, properties)
    with OpenSearch([url], timeout=30) as client:
        try:
            yield TestIndex(alias, client, Endpoint(url))
        finally:
            client.indices.delete(index=f"{alias}-v1")
