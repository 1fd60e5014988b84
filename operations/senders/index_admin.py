"""What is done with a whole index: walked, asked by id, purged, built beside another, swapped behind its alias."""

from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opensearchpy import AsyncOpenSearch
from opensearchpy.exceptions import NotFoundError

from bulklane.operations.senders.index_reader import KEEP_ALIVE, OWN_FIELDS, PAGE

# what a new index takes over from the present one; the rest of its settings is its own identity
KEPT_SETTINGS = ("number_of_shards", "number_of_replicas", "refresh_interval", "analysis")


class IndexMissing(LookupError):
    """The alias isn't there, or stands for more than one index; the message says what is needed."""


@dataclass(frozen=True)
class Entry:
    """A document as the index has it, without its source."""

    id: str
    tenant: str
    key: str
    version: int
    deleted: bool


@dataclass(frozen=True)
class Mark:
    """A `deleted` document as it was read: it can be removed if nothing was written to it since."""

    id: str
    version: int
    seq_no: int
    primary_term: int


class IndexAdmin:
    """One alias of one search engine."""

    def __init__(self, client: AsyncOpenSearch, alias: str) -> None:
        self._client = client
        self._alias = alias

    async def present(self) -> str:
        """The index behind the alias; raises IndexMissing."""
        try:
            found = sorted(await self._client.indices.get_alias(name=self._alias))
        except NotFoundError:
            raise IndexMissing(f"the search engine has no alias {self._alias!r}: create the index first") from None
        if len(found) != 1:
            raise IndexMissing(f"the alias {self._alias!r} must stand for one index, not for {', '.join(found)}")
        return str(found[0])

    async def exists(self, index: str) -> bool:
        """Whether there is an index of that name."""
        return bool(await self._client.indices.exists(index=index))

    async def create_like(self, index: str, present: str, properties: Mapping[str, Any] | None) -> None:
        """An empty index with the settings of the present one, and its mapping where `properties` says no other."""
        settings = (await self._client.indices.get_settings(index=present))[present]["settings"]["index"]
        mappings = (await self._client.indices.get_mapping(index=present))[present]["mappings"]
        wanted = mappings.get("properties", {}) if properties is None else properties
        body = {
            "settings": {name: settings[name] for name in KEPT_SETTINGS if name in settings},
            "mappings": {**mappings, "properties": {**wanted, **OWN_FIELDS}},
        }
        await self._client.indices.create(index=index, body=body)

    async def delete(self, index: str) -> None:
        """Delete an index; none is fine."""
        await self._client.indices.delete(index=index, params={"ignore_unavailable": "true"})

    async def swap(self, present: str, following: str) -> None:
        """Every alias of the present index, with its filter, stands for the following one: in one step."""
        aliases = (await self._client.indices.get_alias(index=present))[present]["aliases"]
        actions = [
            action
            for name, settings in aliases.items()
            for action in (
                {"remove": {"index": present, "alias": name}},
                {"add": {"index": following, "alias": name, **settings}},
            )
        ]
        await self._client.indices.update_aliases(body={"actions": actions})

    async def refresh(self, index: str) -> None:
        """Make everything that is written visible."""
        await self._client.indices.refresh(index=index)

    async def entries(self, index: str, tenant: str | None = None) -> AsyncIterator[Sequence[Entry]]:
        """Every document that stands for a record, in pages, by the texts of tenant and key, as of now."""
        terms: list[Mapping[str, Any]] = [{"exists": {"field": "key"}}, {"exists": {"field": "tenant"}}]
        if tenant is not None:
            terms.append({"term": {"tenant": tenant}})
        query = {"bool": {"filter": terms}}
        body = {"sort": [{"tenant": "asc"}, {"key": "asc"}], "_source": False, "docvalue_fields": ["deleted"]}
        async for hits in self._walk(index, {"query": query, "version": True, **body}):
            yield [_entry(hit) for hit in hits]

    async def look(self, index: str, ids: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """By id: version and whether it is a `deleted` one, as of now, refreshed or not; an absent one is left out."""
        answer = await self._client.mget(index=index, body={"ids": list(ids)}, params={"_source_includes": "deleted"})
        return {
            one["_id"]: (int(one["_version"]), bool(one["_source"].get("deleted")))
            for one in answer["docs"]
            if one.get("found")
        }

    async def deleted_marks(self, index: str, ids: Sequence[str]) -> dict[str, Mark]:
        """By id: those of them that are `deleted` documents."""
        answer = await self._client.mget(index=index, body={"ids": list(ids)}, params={"_source_includes": "deleted"})
        return {
            one["_id"]: Mark(one["_id"], int(one["_version"]), int(one["_seq_no"]), int(one["_primary_term"]))
            for one in answer["docs"]
            if one.get("found") and one["_source"].get("deleted")
        }

    async def remove(self, index: str, marks: Sequence[Mark]) -> int:
        """Remove documents, unless something was written to them since they were read; how many."""
        lines = [{"_id": one.id, "if_seq_no": one.seq_no, "if_primary_term": one.primary_term} for one in marks]
        return await self._versioned(index, [{"delete": line} for line in lines])

    async def copy_deleted(
        self, index: str, following: str, there_again: Callable[[Sequence[Entry]], Awaitable[Container[str]]]
    ) -> None:
        """Write the `deleted` documents into the following index too, with their versions.

        But for those, by id, whose record `there_again` says is there again.
        """
        await self.refresh(index)
        query = {"query": {"term": {"deleted": True}}, "sort": [{"tenant": "asc"}, {"key": "asc"}], "version": True}
        async for hits in self._walk(index, {**query, "docvalue_fields": ["deleted"]}):
            rows = await there_again([_entry(hit) for hit in hits])
            gone = [hit for hit in hits if hit["_id"] not in rows]
            await self._versioned(
                following, [line for hit in gone for line in ({"index": _named(hit)}, hit["_source"])]
            )

    async def purge(self, index: str, before: datetime) -> int:
        """Remove the `deleted` documents of before that time, unless something newer was written since; how many."""
        await self.refresh(index)
        old = {"range": {"deleted_at": {"lt": before.isoformat()}}}
        query = {"query": {"bool": {"filter": [{"term": {"deleted": True}}, old]}}, "_source": False, "version": True}
        removed = 0
        async for hits in self._walk(index, {**query, "sort": [{"tenant": "asc"}, {"key": "asc"}]}):
            removed += await self._versioned(index, [{"delete": _named(hit)} for hit in hits])
        return removed

    async def _versioned(self, index: str, lines: Sequence[Mapping[str, Any]]) -> int:
        if not lines:
            return 0
        answer = await self._client.bulk(index=index, body=list(lines))
        statuses = [int(next(iter(item.values()))["status"]) for item in answer["items"]]
        # 409: something newer is there; 404: it has gone already
        bad = sorted({status for status in statuses if status >= 300 and status not in (404, 409)})
        if bad:
            raise IndexBusy(f"the index {index!r} answered {', '.join(map(str, bad))} to some documents: run it again")
        return sum(status < 300 for status in statuses)

    async def _walk(self, index: str, body: Mapping[str, Any]) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        view = (await self._client.create_pit(index=index, params={"keep_alive": KEEP_ALIVE}))["pit_id"]
        after: list[Any] | None = None
        try:
            while True:
                page = {
                    **body,
                    "size": PAGE,
                    "pit": {"id": view, "keep_alive": KEEP_ALIVE},
                    "track_total_hits": False,
                    **({"search_after": after} if after is not None else {}),
                }
                answer = await self._client.search(body=page, params={"allow_partial_search_results": "false"})
                view, hits = answer.get("pit_id", view), answer["hits"]["hits"]
                if hits:
                    yield hits
                if len(hits) < PAGE:
                    return
                after = hits[-1]["sort"]
        finally:
            await self._client.delete_pit(body={"pit_id": [view]})


class IndexBusy(RuntimeError):
    """The search engine didn't take all; nothing is lost, and it can be done again."""


def _entry(hit: Mapping[str, Any]) -> Entry:
    tenant, key = hit["sort"]
    deleted = bool(hit.get("fields", {}).get("deleted", [False])[0])
    return Entry(hit["_id"], tenant, key, int(hit["_version"]), deleted)


def _named(hit: Mapping[str, Any]) -> dict[str, Any]:
    return {"_id": hit["_id"], "version": hit["_version"], "version_type": "external_gte"}
