"""Who works at a reindex: one process at a time, by a row of the database that it keeps fresh."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid4

from sqlalchemy import Connection, Engine

from bulklane.database import search_index
from bulklane.database.search_index import Rebuild, Stage

BEAT_SECONDS = 1.0
SILENT_SECONDS = 5.0

T = TypeVar("T")
Say = Callable[[str], None]


class ReindexRunning(RuntimeError):
    """Another process is at it; the message says whose and since when."""


@dataclass(frozen=True)
class Claim:
    """This process's claim on the reindex of a channel. Its methods raise RebuildLost where another has taken over."""

    engine: Engine
    channel: str
    say: Say
    worker: UUID = field(default_factory=uuid4)

    async def find(self) -> Rebuild | None:
        """The reindex that is under way."""
        return await self.ask(partial(search_index.find_rebuild, channel=self.channel))

    async def begin(self, plan: Callable[[], Awaitable[tuple[str, str]]], who: str) -> Rebuild:
        """Go on with what is under way, or begin what `plan` names: present and next index. Raises ReindexRunning."""
        rebuild = await self.find()
        if rebuild is not None:
            await self.take_over(rebuild)
        else:
            present, planned = await plan()
            begin = partial(search_index.begin_rebuild, channel=self.channel, worker=self.worker)
            if await self.ask(partial(begin, present=present, to_index=planned, who=who)):
                self.say(f"builds {planned} beside {present}")
        # of two that began at once one is told here that the other is at it
        await self.ask(partial(search_index.beat, channel=self.channel, worker=self.worker))
        rebuild = await self.find()
        if rebuild is None:
            raise ReindexRunning(f"the reindex of {self.channel} has just ended: run it again where it is needed anew")
        return rebuild

    async def take_over(self, rebuild: Rebuild) -> None:
        """Its process may have been killed a moment ago: it is dead when it says nothing for a while."""
        clock = asyncio.get_running_loop().time
        until, begun = clock() + SILENT_SECONDS * 1.5, rebuild.begun_at.isoformat(sep=" ", timespec="seconds")
        take = partial(search_index.take_rebuild, channel=self.channel, worker=self.worker, silent_for=SILENT_SECONDS)
        while not await self.ask(take):
            if clock() > until:
                by = f" by {rebuild.who}" if rebuild.who else ""
                raise ReindexRunning(
                    f"a reindex of {self.channel} to {rebuild.next} is running since {begun}{by} and stands at"
                    f" {rebuild.stage}"
                )
            await asyncio.sleep(BEAT_SECONDS / 2)
        self.say(f"goes on with the reindex to {rebuild.next} that was begun {begun} and stands at {rebuild.stage}")

    async def beat(self) -> None:
        """Say that it is alive, until cancelled."""
        while True:
            await self.ask(partial(search_index.beat, channel=self.channel, worker=self.worker))
            await asyncio.sleep(BEAT_SECONDS)

    async def note_stage(self, stage: Stage) -> None:
        """The next stage has begun."""
        await self.ask(partial(search_index.note_stage, channel=self.channel, worker=self.worker, stage=stage))

    async def note_filled(self, cursor: str, more: int) -> None:
        """So many rows more are written, up to the cursor."""
        noted = partial(search_index.note_filled, channel=self.channel, worker=self.worker)
        await self.ask(partial(noted, cursor=cursor, more=more))

    async def leave(self) -> None:
        """Leave it to whoever goes on with it."""
        await self.ask(partial(search_index.leave_rebuild, channel=self.channel, worker=self.worker))

    async def end(self) -> None:
        """It is over: senders write to the alias alone."""
        await self.ask(partial(search_index.end_rebuild, channel=self.channel, worker=self.worker))

    async def ask(self, question: Callable[[Connection], T]) -> T:
        """One transaction."""

        def transaction() -> T:
            with self.engine.begin() as connection:
                return question(connection)

        return await asyncio.to_thread(transaction)
