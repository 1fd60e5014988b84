"""Compares an index with its table, version by version, in bounded memory; and repairs what differs.

What differs is looked at again in both places: they were not read at the same moment, and jobs may be under way.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from bulklane.contracts.key import read_key
from bulklane.database import search_index
from bulklane.database.document import UnreadableRecord, read_documents
from bulklane.database.index_rows import RowVersion, row_versions
from bulklane.operations.document import document_id, make_documents, tenant_text
from bulklane.operations.sender import Answer, Document, Done, Held, IndexSender, Later, Refused, Unknown
from bulklane.operations.senders.index_admin import Entry, IndexAdmin, IndexBusy
from bulklane.starter.comparison import Comparison, Found, Kind, flat, merged
from bulklane.starter.index_source import IndexSource
from bulklane.starter.repairing import Repairing

BATCH = 500
SETTLE_SECONDS = 1.0
TRIES = 12

Progress = Callable[[Comparison], None]


@dataclass(frozen=True)
class Reconciler:
    """One index (by its name, not its alias) against its table."""

    engine: Engine
    source: IndexSource
    admin: IndexAdmin
    sender: IndexSender
    """Writes to that index."""
    index: str
    tenant: str | None = None
    repair: bool = False
    progress: Progress = lambda _: None

    async def run(self) -> Comparison:
        """Compare everything; raises what the database and the search engine raise."""
        seen = Comparison()
        batch: list[Found] = []
        await self.admin.refresh(self.index)
        async for found in self._differing(seen):
            batch.append(found)
            if len(batch) >= BATCH:
                await self._settle(seen, batch)
                batch = []
        await self._settle(seen, batch)
        await self._look_once_more(seen)
        self.progress(seen)
        return seen

    async def with_row(self, entries: Sequence[Entry]) -> set[str]:
        """The ids of those whose record has a row."""
        asked = [Found(one.id, one.tenant, one.key, None, one.version) for one in entries]
        rows = await asyncio.to_thread(self._versions, asked)
        return {one.id for one in entries if (one.tenant, one.key) in rows}

    async def _differing(self, seen: Comparison) -> AsyncIterator[Found]:
        records = self.source.records
        owner = None if self.tenant is None else tenant_text(records, self.tenant)
        entries = flat(self.admin.entries(self.index, owner))
        with row_versions(self.engine, records, records.tenant_type, self.tenant) as pages:
            async for row, documents in merged(flat(self._pages(seen, pages)), entries):
                seen.documents += len(documents)
                for found in self._compared(row, documents):
                    if found.kind is not None:
                        yield found

    async def _pages(
        self, seen: Comparison, pages: Iterator[Sequence[RowVersion]]
    ) -> AsyncIterator[Sequence[RowVersion]]:
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            seen.rows += len(page)
            self.progress(seen)
            yield page

    def _compared(self, row: RowVersion | None, documents: Sequence[Entry]) -> Iterator[Found]:
        one = row or documents[0]
        name = document_id(self.source.records, one.tenant, one.key)
        version = None if row is None else row.version
        right = next((document for document in documents if document.id == name), None)
        yield Found(name, one.tenant, one.key, version, *((right.version, right.deleted) if right else (None, False)))
        for other in documents:
            if other.id != name:
                yield Found(other.id, one.tenant, one.key, None, other.version, other.deleted, orphan=True)

    async def _settle(self, seen: Comparison, batch: Sequence[Found]) -> None:
        differing = [one for one in await self._look(batch) if one.kind is not None]
        if not self.repair:
            for one in differing:
                seen.keep(one)
            return
        for one, answer in await self._repaired(differing):
            if isinstance(answer, Refused):
                seen.keep(one, Kind.REFUSED, f"{answer.code} {answer.reason}".strip())
            elif one.kind is Kind.AHEAD:
                seen.keep(one)
            elif one.kind is not None:
                seen.repaired[one.kind] += 1

    async def _look(self, batch: Sequence[Found]) -> list[Found]:
        """The same records as they are now: the index first, so that a row that moves on meanwhile isn't `ahead`."""
        if not batch:
            return []
        documents = await self.admin.look(self.index, [one.id for one in batch])
        rows = await asyncio.to_thread(self._versions, batch)
        now = []
        for one in batch:
            version, deleted = documents.get(one.id, (None, False))
            now.append(replace(one, row=rows.get((one.tenant, one.key)), version=version, deleted=deleted))
        return now

    def _versions(self, batch: Sequence[Found]) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        with self.engine.connect() as connection:
            for tenant, keys in _by_tenant(batch):
                records = self.source.records
                typed = [read_key(key, records.key_types) for key in keys]
                rows = read_documents(connection, records, tenant, typed, {})
                found |= {(tenant, key): row[0] for key, row in rows.items()}
        return found

    async def _repaired(self, differing: Sequence[Found]) -> list[tuple[Found, Answer]]:
        wrong = [one for one in differing if one.kind is not Kind.AHEAD]
        ahead: list[tuple[Found, Answer]] = [(one, Done()) for one in differing if one.kind is Kind.AHEAD]
        repairing = Repairing(self.admin, self.index, self._versions, self._look, self._write)
        return [*ahead, *await repairing.run(wrong)]

    async def _write(self, wrong: Sequence[Found]) -> list[Answer]:
        read = await asyncio.to_thread(self._read_documents, wrong)
        written = iter(await write_all(self.sender, [one for one in read if isinstance(one, Document)]))
        return [next(written) if isinstance(one, Document) else one for one in read]

    def _read_documents(self, wrong: Sequence[Found]) -> Sequence[Document | Refused]:
        """What each must be, or why that can't be read."""
        try:
            return self._documents(wrong)
        except UnreadableRecord as error:
            if len(wrong) == 1:
                return [Refused(error.code, error.reason)]
            half = len(wrong) // 2
            return [*self._read_documents(wrong[:half]), *self._read_documents(wrong[half:])]

    def _documents(self, wrong: Sequence[Found]) -> list[Document]:
        """What each must be: its row as it is now, or `deleted` beyond the version that the document has."""
        records = self.source.records
        made: dict[str, Document] = {}
        with self.engine.connect() as connection:
            at = search_index.now(connection)
            for one in wrong:
                if one.orphan:
                    made[one.id] = Document(one.key, one.tenant, (one.version or 0) + 1, None, one.id, at)
            for tenant, keys in _by_tenant([one for one in wrong if not one.orphan]):
                typed = [read_key(key, records.key_types) for key in keys]
                rows = read_documents(connection, records, tenant, typed, self.source.document)
                versions = {one.key: one.version or 0 for one in wrong if one.tenant == tenant and not one.orphan}
                documents = make_documents(records, tenant, [(key, versions[key]) for key in keys], rows, at)
                made |= {one.id: one for one in documents}
        return [made[one.id] for one in wrong]

    async def _look_once_more(self, seen: Comparison) -> None:
        """What is under way between a row and its document takes its time: look again at what was kept."""
        again = [(kind, one) for kind, one, _ in seen.kept if kind is not Kind.REFUSED]
        if not again:
            return
        await asyncio.sleep(SETTLE_SECONDS)
        now = {one.id: one for one in await self._look([one for _, one in again])}
        for kind, one in again:
            if now[one.id].kind is None:
                seen.left[kind] -= 1
        seen.kept = [(kind, one, why) for kind, one, why in seen.kept if one.id not in now or now[one.id].kind]


async def write_all(sender: IndexSender, documents: Sequence[Document]) -> list[Answer]:
    """Write until each is done or refused; raises IndexBusy where the index doesn't take them."""
    answers: list[Answer] = [Later()] * len(documents)
    for attempt in range(TRIES):
        undecided = [n for n, answer in enumerate(answers) if isinstance(answer, (Later, Unknown))]
        if not undecided:
            return answers
        if attempt:
            await asyncio.sleep(min(5.0, 0.1 * 2**attempt))
        for n, answer in zip(undecided, await sender.index([documents[n] for n in undecided]), strict=True):
            answers[n] = answer
        held = next((one.reason for one in answers if isinstance(one, Held)), None)
        if held is not None:
            raise IndexBusy(held)
    last = next((one for one in answers if isinstance(one, (Later, Unknown))), None)
    if last is not None:
        raise IndexBusy(f"the search engine doesn't take the documents: {last.reason}")
    return answers


def _by_tenant(batch: Sequence[Found]) -> Iterator[tuple[str, list[str]]]:
    grouped: dict[str, dict[str, None]] = {}
    for one in batch:
        grouped.setdefault(one.tenant, {})[one.key] = None
    return ((tenant, list(keys)) for tenant, keys in grouped.items())
