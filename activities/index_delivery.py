"""Deliveries to a search index: committed rows are read again and written with their version."""

import asyncio
from collections.abc import Sequence

from sqlalchemy import Engine

from bulklane.activities.plan import operation_of
from bulklane.contracts.key import read_key
from bulklane.database import effect
from bulklane.database.document import read_documents
from bulklane.database.effect import OwedSlice
from bulklane.database.job import Job
from bulklane.operations.operation import IndexEffect, Registry
from bulklane.operations.sender import Answer, Document, Done, Held, IndexSender, Later, Refused, Unknown

CHUNKS_AT_ONCE = 4
ASK_SECONDS = 0.02
SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 10.0


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
        slices = await asyncio.to_thread(self._owed)
        # side by side: rows are read and settled while the index works
        await asyncio.gather(*map(self._send, slices))
        return bool(slices)

    async def finish(self) -> None:
        """Nothing is kept between two calls."""

    def _owed(self) -> list[OwedSlice]:
        with self._engine.connect() as connection:
            return effect.owed_slices(connection, self._job.job_no, self._channel, CHUNKS_AT_ONCE)

    async def _send(self, piece: OwedSlice) -> None:
        documents = await asyncio.to_thread(self._documents, piece)
        answers = await self._sender.index(documents)
        answers = await self._again(documents, answers)
        if self.held is not None:
            return
        refused = [
            (place, answer.code, answer.reason) for place, answer in enumerate(answers) if isinstance(answer, Refused)
        ]
        await asyncio.to_thread(self._settle, piece, refused)
        self.settled += len(piece.keys)

    async def _again(self, documents: Sequence[Document], answers: list[Answer]) -> list[Answer]:
        """Send what is not decided again, those items only, until each is done or refused."""
        while undecided := [n for n, answer in enumerate(answers) if isinstance(answer, (Later, Unknown, Held))]:
            held = next((one for one in answers if isinstance(one, Held)), None)
            if held is not None:
                self.held = held.reason
                return answers
            await asyncio.sleep(self._backoff)
            self._backoff = min(LONGEST_BACKOFF, self._backoff * 2)
            for n, answer in zip(undecided, await self._sender.index([documents[n] for n in undecided]), strict=True):
                answers[n] = answer
        if any(isinstance(answer, Done) for answer in answers):
            self._backoff = SHORTEST_BACKOFF
        return answers

    def _documents(self, piece: OwedSlice) -> list[Document]:
        declared = next(one for one in self._operation.effects if one.name == piece.effect)
        if not isinstance(declared, IndexEffect):
            raise TypeError(f"effect {declared.name} is no IndexEffect")
        types = self._operation.records.key_types
        keys = [read_key(key, types) for key in piece.keys]
        with self._engine.connect() as connection:
            rows = read_documents(connection, self._operation.records, self._job.tenant, keys, declared.document)
        return [
            Document(key, self._job.tenant, *rows.get(key, (version, None)))
            for key, version in zip(piece.keys, piece.versions, strict=True)
        ]

    def _settle(self, piece: OwedSlice, refused: list[tuple[int, str, str]]) -> None:
        with self._engine.begin() as connection:
            effect.settle_slice(connection, self._job.job_no, self._job.turn, self._channel, piece, refused)
