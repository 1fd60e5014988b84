"""Writes what a comparison found wrong, until the index has it or says why not."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bulklane.operations.sender import Answer, Done, Refused
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_conflict import CONFLICT
from bulklane.starter.comparison import Found, Kind

# the engine remembers the version of a removed document for `index.gc_deletes`, by default 60 s
FORGET_SECONDS = 100.0
ASK_SECONDS = 1.0

Versions = Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Repairing:
    """How one index is repaired. `rows`: the versions of the rows now; `write`: write each as its row is now."""

    admin: IndexAdmin
    index: str
    rows: Callable[[Sequence[Found]], Versions]
    look: Callable[[Sequence[Found]], Awaitable[list[Found]]]
    write: Callable[[Sequence[Found]], Awaitable[list[Answer]]]

    async def run(self, wrong: Sequence[Found]) -> list[tuple[Found, Answer]]:
        """What became of each."""
        await self._uncover([one for one in wrong if one.kind is Kind.HIDDEN])
        told: list[tuple[Found, Answer]] = []
        clock = asyncio.get_running_loop().time
        until, left = clock() + FORGET_SECONDS, list(wrong)
        while left:
            answers = list(zip(left, await self.write(left), strict=True))
            told += [(one, answer) for one, answer in answers if not _lost(answer)]
            lost = [one for one, answer in answers if _lost(answer)]
            # that is done where something as new or newer is there
            still = {one.id for one in await self.look(lost) if one.kind is not None}
            told += [(one, Done()) for one in lost if one.id not in still]
            left = [one for one in lost if one.id in still]
            if left and clock() > until:
                reason = "the index has, or remembers, a later version: run it again after its `index.gc_deletes`"
                return [*told, *((one, Refused(CONFLICT, reason)) for one in left)]
            if left:
                await asyncio.sleep(ASK_SECONDS)
        return told

    async def _uncover(self, hidden: Sequence[Found]) -> None:
        """Remove the `deleted` documents before whose records' rows live, as they were read, and none that came since.

        What is removed first and read then would hide a deletion between the two.
        """
        if not hidden:
            return
        marks = await self.admin.deleted_marks(self.index, [one.id for one in hidden])
        rows = await asyncio.to_thread(self.rows, hidden)
        alive = [one for one in hidden if (one.tenant, one.key) in rows and one.id in marks]
        later = [marks[one.id] for one in alive if marks[one.id].version > rows[one.tenant, one.key]]
        await self.admin.remove(self.index, later)


def _lost(answer: Answer) -> bool:
    return isinstance(answer, Done) and answer.code == CONFLICT
