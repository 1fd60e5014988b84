"""Builds an index anew beside the present one, from the table, and puts it behind the alias.

Every stage stands in a row of the database before it begins and can be done twice: a process that is killed leaves a
reindex that the next one goes on with. From `filling` on, senders write to both indexes (`database/search_index.py`).
"""

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from sqlalchemy import Engine

from bulklane.database.index_rows import RowPages, SourceRow
from bulklane.database.search_index import Rebuild, Stage
from bulklane.operations.document import document_id, is_key_global
from bulklane.operations.sender import Document, IndexSender, RebuiltIndexSender, Refused
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.starter.comparison import Comparison, Kind
from bulklane.starter.index_source import IndexSource
from bulklane.starter.rebuild import Claim, ReindexRunning, Say
from bulklane.starter.reconcile import Reconciler, write_all

PAGE = 1000
# so that a search which began before the swap ends before its index goes
GRACE_SECONDS = 2.0

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

    @cached_property
    def claim(self) -> Claim:
        """This process's claim on it."""
        return Claim(self.engine, self.source.channel, self.say)

    async def run(self) -> Comparison:
        """To the end, or to where a person is needed: then what differs is told and nothing was swapped.

        Raises ReindexRunning, RebuildLost, and what the database and the search engine raise: run it again then.
        """
        rebuild = await self.claim.begin(self._plan, self.who)
        work = asyncio.create_task(self._work(rebuild))
        beats = asyncio.create_task(self.claim.beat())
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
            await self.claim.leave()

    async def abandon(self) -> None:
        """Give up what is being built, while the alias still stands for the present index; raises ReindexRunning."""
        rebuild = await self.claim.find()
        if rebuild is None or rebuild.stage in (Stage.SWAPPING, Stage.ENDING):
            why = "none is under way" if rebuild is None else f"{rebuild.next} is swapped in already"
            raise ReindexRunning(f"no reindex of {self.source.channel} can be abandoned: {why}")
        await self.claim.take_over(rebuild)
        await self.claim.end()
        await asyncio.sleep(GRACE_SECONDS)
        await self.admin.delete(rebuild.next)
        self.say(f"{rebuild.next} is deleted; {rebuild.present} stays")

    async def _work(self, rebuild: Rebuild) -> Comparison:
        following = self.sender.beside(rebuild.next)
        stage, compared = rebuild.stage, Comparison()
        if stage is Stage.CREATING:
            # a start that was killed here has left it empty
            if not await self.admin.exists(rebuild.next):
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

    async def _plan(self) -> tuple[str, str]:
        """The present index and the first free name after its own."""
        alias, present = self.source.index.alias, await self.admin.present()
        version = re.fullmatch(rf"{re.escape(alias)}-v([0-9]+)", present)
        number = int(version[1]) + 1 if version else 2
        while await self.admin.exists(f"{alias}-v{number}"):
            number += 1
        return present, f"{alias}-v{number}"

    async def _fill(self, following: IndexSender, rebuild: Rebuild) -> None:
        records = self.source.records
        pages = RowPages(records, records.tenant_type, self.source.document, key_is_global=is_key_global(records))
        cursor, written = rebuild.cursor, rebuild.written
        while True:
            rows, cursor = await self.claim.ask(partial(pages.page, cursor=cursor, size=PAGE))
            answers = await write_all(following, [self._document(row) for row in rows if row.source is not None])
            written += len(rows)
            self.progress(f"fills {rebuild.next}", written)
            refused = sum(isinstance(answer, Refused) for answer in answers) + len(rows) - len(answers)
            if refused:
                self.say(f"{refused} documents of this page are refused; they are named when the index is checked")
            if cursor is None:
                return
            await self.claim.note_filled(cursor, len(rows))

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
        await self.claim.end()
        self.say(f"{rebuild.present} is {'kept, and no longer written to' if self.keep_old else 'deleted'}")

    async def _begin(self, stage: Stage) -> Stage:
        await self.claim.note_stage(stage)
        return stage
