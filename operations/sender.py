"""What a sender is asked and how it answers. An answer says what is known of the effect, not what went wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Self, runtime_checkable


@dataclass(frozen=True)
class Done:
    """It has happened."""

    code: str = ""
    text: str = ""


@dataclass(frozen=True)
class Refused:
    """It has not happened and will not under this key."""

    code: str
    reason: str = ""


@dataclass(frozen=True)
class Later:
    """It has not happened; it may be asked for again after `seconds`, or after a backoff of ours where None."""

    seconds: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Unknown:
    """Nobody here knows whether it has happened."""

    reason: str


@dataclass(frozen=True)
class Held:
    """The channel itself is out of order (credentials, configuration): nothing was done, no record is to blame."""

    reason: str


Answer = Done | Refused | Later | Unknown | Held


@dataclass(frozen=True)
class Call:
    """One effect for one record. `body` is the exact text fixed at commit."""

    idempotency_key: str
    body: str


@dataclass(frozen=True)
class Document:
    """The present state of one record for a search index; `source` None: the record is deleted, since `deleted_at`.

    `id`: the document's in the index, by default the key.
    """

    key: str
    tenant: str
    version: int
    source: Mapping[str, Any] | None
    id: str = ""
    deleted_at: datetime | None = None


@runtime_checkable
class CallSender(Protocol):
    """Calls a provider."""

    async def send(self, call: Call) -> Answer:
        """Ask for the effect once; never re-sends by itself and never raises for an answer of the provider."""

    async def look_up(self, call: Call) -> Answer | None:
        """What the provider knows of the key; None: it knows nothing of it. Raises NoLookUp where it can't be asked."""

    async def close(self) -> None:
        """Give up connections."""


@runtime_checkable
class IndexSender(Protocol):
    """Writes documents to a search index."""

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        """Write the documents; one answer each, in their order."""

    async def close(self) -> None:
        """Give up connections."""


@runtime_checkable
class RebuiltIndexSender(IndexSender, Protocol):
    """An index sender whose index `bulklane reindex` can build anew."""

    def beside(self, index: str) -> Self:
        """The same for another index of the same system, by its name: one that is being built."""


@runtime_checkable
class ConflictLooker(IndexSender, Protocol):
    """An index sender that can tell why a living document lost against what is there (`Done` with the code 409)."""

    async def look_at_conflicts(self, documents: Sequence[Document]) -> list[Answer]:
        """One answer each: Done: something living is there; Refused: a `deleted` one of a later version; else again."""


class NoLookUp(RuntimeError):
    """The provider can't be asked what it knows of a key."""
