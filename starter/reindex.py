"""Builds an index anew beside the present one, from the table, and puts it behind the alias.

Every stage stands in a row of the database before it begins and can be done twice: a process that is killed leaves a
reindex that the next one goes on with. From `filling` on, senders write to both indexes (`database/search_index.py`).
"""

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine

from bulklane.database import search_index
from bulklane.database.index_rows import RowPages, SourceRow
from bulklane.database.search_index import Rebuild, Stage
from bulklane.operations.document import document_id, is_key_global
from bulklane.operations.sender import Document, IndexSender, RebuiltIndexSender, Refused
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.starter.comparison import Comparison, Kind
from bulklane.starter.index_source import IndexSource
from bulklane.starter.reconcile import Reconciler, write_all

PAGE = 1000
BEAT_SECONDS = 1.0
SILENT_SECONDS = 5.0
# so that a search which began before the swap ends before its index goes
GRACE_SECONDS = 2.0


T = TypeVar("T")


class ReindexRunning(RuntimeError):
    """Another process is at it; the message says whose and since when."""


Say = Callable[[str], None]
Progress = Callable[[str, int], None]


@dataclass
class Reindexer:
    """One channel's reindex. `say`: a line for people; `progress`: the stage and how many rows or documents it did."""

    engine: Engine
    source: IndexSource
    admin: IndexAdmin
    sender: RebuiltIndexSender
    say: Say
    progress: Progress
    who: str = ""
    keep_old: bool = False
    _worker: UUID = field(default_factory=uuid4)

    async def run(self) -> Comparison:
        """To the end, or to where a person is needed: then what differs is told and nothing was swapped.

        Raises ReindexRunning, RebuildLost, and what the database and the search engine raise: run it again then.
        """
        rebuild = await self._claim()
        work = asyncio.create_task(self._work(rebuild))
        beats = asyncio.create_task(self._beat())
        try:
            await asyncio.wait({work, beats}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await beats  # raises what made it end
            return await work
        finally:
            for task in (work, beats):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            await self._database(lambda c: search_index.leave_rebuild(c, self.source.channel, self._worker))

    async def abandon(self) -> None:
        """Give up what is being built, while the alias still stands for the present index; raises ReindexRunning."""
        channel = self.source.channel
        rebuild = await self._database(lambda c: search_index.find_rebuild(c, channel))
        if rebuild is None or rebuild.stage in (Stage.SWAPPING, Stage.ENDING):
            raise ReindexRunning(
                f"no reindex of {channel} can be abandoned: none is under way, or it is swapped in already"
            )
        await self._take_over(rebuild)
        await self._database(lambda c: search_index.end_rebuild(c, channel, self._worker))
        await asyncio.sleep(GRACE_SECONDS)
        await self.admin.delete(rebuild.next)
        self.say(f"{rebuild.next} is deleted; {rebuild.present} stays")

    async def _work(self, rebuild: Rebuild) -> Comparison:
        following = self.sender.beside(rebuild.next)
        stage, compared = rebuild.stage, Comparison()
        if stage is Stage.CREATING:
            # an index that a killed start has left is ours, and nobody writes to it yet
            await self.admin.delete(rebuild.next)
            await self.admin.create_like(rebuild.next, rebuild.present, self.source.index.properties)
            stage = await self._begin(Stage.FILLING)
        if stage is Stage.FILLING:
            await self._fill(following, rebuild)
            stage = await self._begin(Stage.CHECKING)
        if stage is Stage.CHECKING:
            compared = await self._check(following, rebuild)
            # what is ahead of its row is so in the present index too
            if set(+compared.left) - {Kind.AHEAD}:
                return compared
            stage = await self._begin(Stage.SWAPPING)
        if stage is Stage.SWAPPING:
            await self._swap(rebuild)
            stage = await self._begin(Stage.ENDING)
        await self._end(following, rebuild)
        return compared

    async def _claim(self) -> Rebuild:
        channel = self.source.channel
        rebuild = await self._database(lambda c: search_index.find_rebuild(c, channel))
        if rebuild is None:
            present = await self.admin.present()
            planned = await self._next_name(present)
            began = await self._database(
                lambda c: search_index.begin_rebuild(
                    c, channel, self._worker, present=present, to_index=planned, who=self.who
                )
            )
            if began:
                self.say(f"builds {planned} beside {present}")
        else:
            await self._take_over(rebuild)
        rebuild = await self._database(lambda c: search_index.find_rebuild(c, channel))
        if rebuild is None:
            raise ReindexRunning(f"a reindex of {channel} has just ended: run it again where it is needed once more")
        # two that began at once: the other one is at it
        await self._database(lambda c: search_index.beat(c, channel, self._worker))
        return rebuild

    async def _take_over(self, rebuild: Rebuild) -> None:
        """Its process may have been killed a moment ago: it is dead when it says nothing for a while."""
        channel, until = self.source.channel, asyncio.get_running_loop().time() + SILENT_SECONDS * 1.5
        while True:
            taken = await self._database(
                lambda c: search_index.take_rebuild(c, channel, self._worker, silent_for=SILENT_SECONDS)
            )
            if taken:
                self.say(
                    f"goes on with the reindex to {rebuild.next} that was begun"
                    f" {rebuild.begun_at.isoformat(sep=' ', timespec='seconds')} and stands at {rebuild.stage}"
                )
                return
            now = await self._database(lambda c: search_index.find_rebuild(c, channel))
            if now is None or asyncio.get_running_loop().time() > until:
                by = f" by {rebuild.who}" if rebuild.who else ""
                raise ReindexRunning(
                    f"a reindex of {channel} to {rebuild.next} is running since"
                    f" {rebuild.begun_at.isoformat(sep=' ', timespec='seconds')}{by} and stands at {rebuild.stage}"
                )
            await asyncio.sleep(BEAT_SECONDS / 2)

    async def _next_name(self, present: str) -> str:
        alias = self.source.index.alias
        version = re.fullmatch(rf"{re.escape(alias)}-v([0-9]+)", present)
        number = int(version[1]) if version else 1
        while True:
            number += 1
            if not await self.admin.exists(name := f"{alias}-v{number}"):
                return name

    async def _fill(self, following: IndexSender, rebuild: Rebuild) -> None:
        records = self.source.records
        pages = RowPages(records, records.tenant_type, self.source.document, key_is_global=is_key_global(records))
        cursor, written = rebuild.cursor, rebuild.written
        while True:
            rows, cursor = await self._database(partial(pages.page, cursor=cursor, size=PAGE))
            answers = await write_all(following, [self._document(row) for row in rows])
            written += len(rows)
            self.progress(f"fills {rebuild.next}", written)
            refused = sum(isinstance(answer, Refused) for answer in answers)
            if refused:
                self.say(f"{refused} documents of this page are refused; they are named when the index is checked")
            if cursor is None:
                return
            noted = partial(search_index.note_filled, channel=self.source.channel, worker=self._worker)
            await self._database(partial(noted, cursor=cursor, more=len(rows)))

    def _document(self, row: SourceRow) -> Document:
        name = document_id(self.source.records, row.tenant, row.key)
        return Document(row.key, row.tenant, row.version, row.source, name)

    async def _check(self, following: IndexSender, rebuild: Rebuild) -> Comparison:
        """Jobs go on meanwhile, and what they write goes to both."""
        reconciler = Reconciler(
            self.engine,
            self.source,
            self.admin,
            following,
            rebuild.next,
            repair=True,
            progress=lambda seen: self.progress(f"checks {rebuild.next}", seen.rows),
        )
        await self.admin.copy_deleted(rebuild.present, rebuild.next, reconciler.with_row)
        return await reconciler.run()

    async def _swap(self, rebuild: Rebuild) -> None:
        await self.admin.refresh(rebuild.next)
        if await self.admin.present() != rebuild.next:
            await self.admin.swap(rebuild.present, rebuild.next)
        self.say(f"{self.source.index.alias} stands for {rebuild.next}")

    async def _end(self, following: IndexSender, rebuild: Rebuild) -> None:
        if await self.admin.exists(rebuild.present):
            # what was deleted by a sender that didn't know of the new index yet
            rows = Reconciler(self.engine, self.source, self.admin, following, rebuild.next)
            await self.admin.copy_deleted(rebuild.present, rebuild.next, rows.with_row)
            if not self.keep_old:
                await asyncio.sleep(GRACE_SECONDS)
                await self.admin.delete(rebuild.present)
        await self._database(lambda c: search_index.end_rebuild(c, self.source.channel, self._worker))
        self.say(f"{rebuild.present} is {'kept, and no longer written to' if self.keep_old else 'deleted'}")

    async def _begin(self, stage: Stage) -> Stage:
        await self._database(lambda c: search_index.note_stage(c, self.source.channel, self._worker, stage))
        return stage

    async def _beat(self) -> None:
        while True:
            await self._database(lambda c: search_index.beat(c, self.source.channel, self._worker))
            await asyncio.sleep(BEAT_SECONDS)

    async def _database(self, ask: Callable[[Connection], T]) -> T:
        def transaction() -> T:
            with self.engine.begin() as connection:
                return ask(connection)

        return await asyncio.to_thread(transaction)
