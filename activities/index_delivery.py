"""Deliveries to a search index: committed rows are read again and written with their version."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from bulklane.activities.plan import operation_of
from bulklane.contracts.key import read_key
from bulklane.database import effect, search_index
from bulklane.database.document import UnreadableRecord, read_documents
from bulklane.database.effect import OwedSlice
from bulklane.database.job import Job
from bulklane.database.reopened import Reopened, reopened, settle_reopened
from bulklane.operations.document import make_documents
from bulklane.operations.operation import IndexEffect, Registry
from bulklane.operations.sender import (
    Answer,
    ConflictLooker,
    Document,
    Done,
    Held,
    IndexSender,
    Later,
    RebuiltIndexSender,
    Refused,
    Unknown,
)
from bulklane.operations.senders.index_conflict import conflicts

CHUNKS_AT_ONCE = 4
ASK_SECONDS = 0.02
REOPENED_AT_ONCE = 500
SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 10.0
# then the rows are read again: what is sent is never old, and the caller gets to look at the job's wish
TRIES = 5
FRESH_SECONDS = 30.0


@dataclass(frozen=True)
class _Batch:
    documents: list[Document]
    following: str | None
    """The index that is being built, which is written to as well."""


class IndexDelivery:
    """What one job owes to one index, some chunks at a time. An answer in doubt is sent again: it does no harm."""

    def __init__(self, engine: Engine, registry: Registry, job: Job, channel: str, sender: IndexSender) -> None:
        self.settled = 0
        self.held: str | None = None
        self.stopped = False
        self._engine = engine
        self._operation = operation_of(registry, job)
        self._job = job
        self._channel = channel
        self._sender = sender
        self._backoff = SHORTEST_BACKOFF

    @property
    def concluded(self) -> int:
        """Each that is settled has a definite result."""
        return self.settled

    @property
    def blocked_seconds(self) -> float:
        """The index never says when it wants to be asked again."""
        return 0.0

    @property
    def ask_seconds(self) -> float:
        """How long to wait where a round found nothing to send."""
        return ASK_SECONDS

    def try_one(self) -> None:
        """A round is small enough."""

    async def send_some(self) -> bool:
        """Send what a few chunks owe; False where nothing is owed now, or nothing is to be sent."""
        if self.stopped:
            return False
        pieces = await asyncio.to_thread(self._owed)
        # side by side: rows are read and settled while the index works
        await asyncio.gather(*map(self._send, pieces))
        return bool(pieces)

    async def finish(self) -> None:
        """Nothing is kept between two calls."""

    def _owed(self) -> list[OwedSlice | Reopened]:
        with self._engine.connect() as connection:
            slices = effect.owed_slices(connection, self._job.job_no, self._channel, CHUNKS_AT_ONCE)
            again = [] if slices else reopened(connection, self._job.job_no, self._channel, REOPENED_AT_ONCE)
            return [*slices, *again]

    async def _send(self, piece: OwedSlice | Reopened) -> bool:
        """Send a piece and settle it; where some of it has to be read and sent again, it stays owed: False."""
        clock = asyncio.get_running_loop().time
        read_at = clock()
        try:
            batch = await asyncio.to_thread(self._read, piece)
        except UnreadableRecord as error:
            return await self._send_apart(piece, error)
        answers: list[Answer] = [Later()] * len(batch.documents)
        for attempt in range(TRIES):
            undecided = [n for n, answer in enumerate(answers) if not isinstance(answer, (Done, Refused))]
            if not undecided:
                break
            if attempt:
                # full jitter: senders that were turned away together don't come back together
                await asyncio.sleep(random.uniform(0, self._backoff))  # noqa: S311
                self._backoff = min(LONGEST_BACKOFF, self._backoff * 2)
            if clock() - read_at > FRESH_SECONDS:
                return False
            for n, answer in zip(undecided, await self._index(batch, undecided), strict=True):
                answers[n] = answer
            await self._look_at_conflicts(piece, batch, answers, undecided)
            held = next((one.reason for one in answers if isinstance(one, Held)), None)
            if held is not None:
                if not await asyncio.to_thread(self._moved, batch):
                    self.held = held
                return False
        if any(isinstance(answer, (Later, Unknown)) for answer in answers):
            return False
        self._backoff = SHORTEST_BACKOFF
        refused = [
            (place, answer.code, answer.reason) for place, answer in enumerate(answers) if isinstance(answer, Refused)
        ]
        await self._settled(piece, refused)
        return True

    async def _send_apart(self, piece: OwedSlice | Reopened, error: UnreadableRecord) -> bool:
        """One of them can't be read: it is refused alone, and its neighbours are sent."""
        count = len(piece.keys)
        if count == 1:
            await self._settled(piece, [(0, error.code, error.reason)])
            return True
        # in their order: a slice is settled up to a place
        return await self._send(_part(piece, 0, count // 2)) and await self._send(_part(piece, count // 2, count))

    async def _settled(self, piece: OwedSlice | Reopened, refused: list[tuple[int, str, str]]) -> None:
        await asyncio.to_thread(self._settle, piece, refused)
        self.settled += len(piece.keys)

    async def _index(self, batch: _Batch, places: Sequence[int]) -> list[Answer]:
        documents = [batch.documents[n] for n in places]
        # only a sender that can write to both is ever built anew
        if batch.following is None or not isinstance(self._sender, RebuiltIndexSender):
            return await self._sender.index(documents)
        beside = self._sender.beside(batch.following)
        here, there = await asyncio.gather(self._sender.index(documents), beside.index(documents))
        # what the index that is being built refuses is reported by its builder, and no fault of the job's
        return [
            other if isinstance(one, Done) and not isinstance(other, (Done, Refused)) else one
            for one, other in zip(here, there, strict=True)
        ]

    async def _look_at_conflicts(
        self, piece: OwedSlice | Reopened, batch: _Batch, answers: list[Answer], places: Sequence[int]
    ) -> None:
        """A living one that lost is done, unless a `deleted` document hides it: then the row is read once more."""
        lost = [n for n in places if conflicts(answers[n], batch.documents[n])]
        if not lost or not isinstance(self._sender, ConflictLooker):
            return
        for n, answer in zip(
            lost, await self._sender.look_at_conflicts([batch.documents[n] for n in lost]), strict=True
        ):
            answers[n] = answer
        hidden = [n for n in lost if isinstance(answers[n], Refused)]
        if not hidden:
            return
        keys, versions = [piece.keys[n] for n in hidden], [piece.versions[n] for n in hidden]
        try:
            now = await asyncio.to_thread(self._read, replace(piece, keys=keys, versions=versions))
        except UnreadableRecord:
            for n in hidden:
                answers[n] = Later(reason="the row has changed")
            return
        for n, document in zip(hidden, now.documents, strict=True):
            answers[n] = _of_hidden(batch.documents[n], document, answers[n])

    def _read(self, piece: OwedSlice | Reopened) -> _Batch:
        declared = next(one for one in self._operation.effects if one.name == piece.effect)
        if not isinstance(declared, IndexEffect):
            raise TypeError(f"effect {declared.name} is no IndexEffect")
        records, tenant = self._operation.records, self._job.tenant
        keys = [read_key(key, records.key_types) for key in piece.keys]
        # one snapshot for the rows and for where they go: see `next_index`
        with self._engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            rows = read_documents(connection, records, tenant, keys, declared.document)
            following = search_index.next_index(connection, self._channel)
            read_at = search_index.now(connection)
        wanted = list(zip(piece.keys, piece.versions, strict=True))
        return _Batch(make_documents(records, tenant, wanted, rows, read_at), following)

    def _moved(self, batch: _Batch) -> bool:
        """Whether what was being built isn't any more: given up and deleted, or swapped in. Then all is read again."""
        if batch.following is None:
            return False
        with self._engine.connect() as connection:
            return search_index.next_index(connection, self._channel) != batch.following

    def _settle(self, piece: OwedSlice | Reopened, refused: list[tuple[int, str, str]]) -> None:
        with self._engine.begin() as connection:
            if isinstance(piece, Reopened):
                settle_reopened(connection, self._job.job_no, piece, refused)
            else:
                effect.settle_slice(connection, self._job.job_no, self._job.turn, self._channel, piece, refused)


def _of_hidden(sent: Document, now: Document, answer: Answer) -> Answer:
    if now.source is None:
        # it has been deleted meanwhile, as the index says
        return Done("409", "the record is deleted, and so is its document")
    return answer if now.version == sent.version else Later(reason="the row has changed")


def _part(piece: OwedSlice | Reopened, low: int, high: int) -> OwedSlice | Reopened:
    keys, versions = piece.keys[low:high], piece.versions[low:high]
    if isinstance(piece, OwedSlice):
        return replace(piece, place=piece.place + low, keys=keys, versions=versions)
    return replace(piece, keys=keys, versions=versions)
