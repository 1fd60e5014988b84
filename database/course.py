"""Courses: how a segment gets through its range, over frozen keys or along the table's own key order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from sqlalchemy import Connection

from bulklane.contracts.key import Key, read_key
from bulklane.database.chunk import apply_chunk, apply_to_good, fail_chunk, keys_of
from bulklane.database.chunk_plan import ChunkPlan
from bulklane.database.live import (
    PLANNED_BY_INDEX,
    LivePiece,
    LiveResult,
    apply_live,
    apply_live_to_good,
    fail_live,
    read_next_key,
)
from bulklane.database.live_chain import LivePlan
from bulklane.database.range import RangeRef, Standing
from bulklane.database.selection import BLOCK_SIZE, Slice, slice_at

PieceT = TypeVar("PieceT")


class Course(Protocol[PieceT]):
    """One attempt's way through one range, a piece a chunk."""

    @property
    def settings(self) -> Mapping[str, str]:
        """What has to be set in each chunk's transaction."""

    def ahead(self, standing: Standing) -> int:
        """How many records one piece can take at the most, however many are asked for."""

    def next_piece(self, connection: Connection, standing: Standing, size: int) -> PieceT:
        """What comes next where the range stands so: at most `size` records."""

    def records(self, piece: PieceT) -> int:
        """How many records the piece has at the most; where it is one, an error is that record's."""

    def apply(self, connection: Connection, standing: Standing, piece: PieceT) -> Standing | None:
        """Change the piece's records; where the range stands then. None where the gate was not passed."""

    def apply_to_good(self, connection: Connection, standing: Standing, piece: PieceT) -> Standing | None:
        """Report the records that would break a rule as failed, and change the others; else as `apply`."""

    def fail(
        self, connection: Connection, standing: Standing, piece: PieceT, code: str, reason: str
    ) -> Standing | None:
        """Report the piece's one record as failed and step over it; None where the gate was not passed."""


@dataclass(frozen=True)
class FrozenCourse:
    """Over the keys of a frozen selection, by their ordinals."""

    plan: ChunkPlan
    ref: RangeRef
    epoch: int
    selection_no: int

    settings: ClassVar[Mapping[str, str]] = {}

    def ahead(self, standing: Standing) -> int:
        """What is left of its block."""
        return self.records(slice_at(self.selection_no, standing.cursor, standing.hi, BLOCK_SIZE))

    def next_piece(self, connection: Connection, standing: Standing, size: int) -> Slice:
        """A slice of one block."""
        del connection
        return slice_at(self.selection_no, standing.cursor, standing.hi, size)

    def records(self, piece: Slice) -> int:
        """Exactly so many."""
        return piece.hi - piece.lo

    def apply(self, connection: Connection, standing: Standing, piece: Slice) -> Standing | None:
        """The chunk's transaction."""
        result = apply_chunk(connection, self.plan, self.ref, self.epoch, piece)
        return None if result is None else standing.at(piece.hi)

    def apply_to_good(self, connection: Connection, standing: Standing, piece: Slice) -> Standing | None:
        """The chunk's transaction, after one query for the bad records."""
        result = apply_to_good(connection, self.plan, self.ref, self.epoch, piece)
        return None if result is None else standing.at(piece.hi)

    def fail(self, connection: Connection, standing: Standing, piece: Slice, code: str, reason: str) -> Standing | None:
        """The record is the slice's only one."""
        (key,) = keys_of(connection, piece, self.plan.records.key_types)
        result = fail_chunk(connection, self.ref, self.epoch, piece, key, code, reason)
        return None if result is None else standing.at(piece.hi)


@dataclass(frozen=True)
class LiveCourse:
    """Along the key order of the table, up to the range's bound."""

    plan: LivePlan
    ref: RangeRef
    epoch: int
    bound: Key

    settings: ClassVar[Mapping[str, str]] = PLANNED_BY_INDEX

    def ahead(self, standing: Standing) -> int:
        """Where the range ends isn't known before."""
        return standing.hi - standing.cursor

    def next_piece(self, connection: Connection, standing: Standing, size: int) -> LivePiece:
        """So many keys beyond the cursor. One alone is read beforehand: an error must be certainly its own."""
        key = standing.cursor_key
        begun = None if key is None else read_key(key, self.plan.records.key_types)
        piece = LivePiece(standing.cursor, begun, self.bound, size)
        return piece if size > 1 else replace(piece, only=read_next_key(connection, self.plan, piece))

    def records(self, piece: LivePiece) -> int:
        """Fewer where the range ends before."""
        return piece.records

    def apply(self, connection: Connection, standing: Standing, piece: LivePiece) -> Standing | None:
        """The chunk's transaction; raises ColumnMoved."""
        return _further(standing, apply_live(connection, self.plan, self.ref, self.epoch, piece))

    def apply_to_good(self, connection: Connection, standing: Standing, piece: LivePiece) -> Standing | None:
        """The chunk's transaction, after one query for the bad records; raises ColumnMoved."""
        return _further(standing, apply_live_to_good(connection, self.plan, self.ref, self.epoch, piece))

    def fail(
        self, connection: Connection, standing: Standing, piece: LivePiece, code: str, reason: str
    ) -> Standing | None:
        """The record is the one that was read beforehand; where there was none, the range only ends."""
        if piece.only is None:
            return self.apply(connection, standing, piece)
        return _further(standing, fail_live(connection, self.ref, self.epoch, piece, code, reason))


def _further(standing: Standing, result: LiveResult | None) -> Standing | None:
    if result is None:
        return None
    return replace(standing.at(result.cursor), hi=result.hi, cursor_key=result.cursor_key)
