"""How documents differ from rows: both are read in one order, the bytes of tenant and key, and merged."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from bulklane.database.index_rows import RowVersion
from bulklane.operations.senders.index_admin import Entry

MOST_KEPT = 1000
T = TypeVar("T")


class Kind(StrEnum):
    """How a record's document differs from its row."""

    MISSING = "missing"
    STALE = "stale"
    AHEAD = "ahead"
    HIDDEN = "hidden"
    ORPHAN = "orphan"
    REFUSED = "refused"


@dataclass(frozen=True)
class Found:
    """A record whose document and row may differ. `row`, `version`: of the row and the document, None where none."""

    id: str
    tenant: str
    key: str
    row: int | None
    version: int | None
    deleted: bool = False
    orphan: bool = False
    """Whether it is a document under another id than the record's."""

    @property
    def kind(self) -> Kind | None:
        """How they differ; None where they agree."""
        if self.row is None or self.orphan:
            return None if self.version is None or self.deleted else Kind.ORPHAN
        if self.version is None:
            return Kind.MISSING
        if self.version > self.row:
            return Kind.HIDDEN if self.deleted else Kind.AHEAD
        return Kind.STALE if self.version < self.row or self.deleted else None


@dataclass
class Comparison:
    """What a comparison came to. `left`: what still differs, by kind; `kept`: some of it; `repaired`: what doesn't."""

    rows: int = 0
    documents: int = 0
    repaired: Counter[Kind] = field(default_factory=Counter)
    left: Counter[Kind] = field(default_factory=Counter)
    kept: list[tuple[Kind, Found, str]] = field(default_factory=list)

    def keep(self, one: Found, kind: Kind | None = None, why: str = "") -> None:
        """Note a difference that is left; nothing where there is none."""
        told = kind or one.kind
        if told is None:
            return
        self.left[told] += 1
        if len(self.kept) < MOST_KEPT:
            self.kept.append((told, one, why))

    @property
    def equal(self) -> bool:
        """Whether nothing differs any more."""
        return not sum(self.left.values())


async def merged(
    rows: AsyncIterator[RowVersion], entries: AsyncIterator[Entry]
) -> AsyncIterator[tuple[RowVersion | None, Sequence[Entry]]]:
    """Each tenant and key once, in order: its row, or None, and its documents. Reads `entries` first."""
    entry = await anext(entries, None)
    row = await anext(rows, None)
    while row is not None or entry is not None:
        place = min(_place(one) for one in (row, entry) if one is not None)
        here, documents = None, []
        if row is not None and _place(row) == place:
            here, row = row, await anext(rows, None)
        while entry is not None and _place(entry) == place:
            documents.append(entry)
            entry = await anext(entries, None)
        yield here, documents


async def flat(pages: AsyncIterator[Sequence[T]]) -> AsyncIterator[T]:
    """One by one."""
    async for page in pages:
        for one in page:
            yield one


def _place(one: Entry | RowVersion) -> tuple[bytes, bytes]:
    return one.tenant.encode(), one.key.encode()
