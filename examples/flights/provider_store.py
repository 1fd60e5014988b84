"""What the passenger-notice provider knows: its ledger in one SQLite file, and the faults it was told to make."""

import asyncio
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

_SCHEMA = """
CREATE TABLE IF NOT EXISTS notice (
  key TEXT PRIMARY KEY, applied INTEGER, calls INTEGER, record TEXT, body_sha256 TEXT, first_at REAL, last_at REAL,
  answer_status INTEGER, answer_text TEXT, answered_at REAL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS call (
  id INTEGER PRIMARY KEY, at REAL, method TEXT, key TEXT, status INTEGER, peer TEXT
);
"""
_PAGE = 500
_HIGHEST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes over the wire."""

    status: int
    text: str = ""
    content_type: str = "application/json"
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a caller gets: an answer, perhaps after a long silence, or (None) a connection reset."""

    answer: Answer | None
    silence: float = 0

    @property
    def status(self) -> int | None:
        """The status for the log; None where nobody may be there any more to read the answer."""
        return None if self.silence or self.answer is None else self.answer.status


Kind = Literal[
    "apply_then_hang",
    "apply_then_reset",
    "reset",
    "rate_limit",
    "server_error",
    "ok_with_error",
    "bad_request",
    "unauthorized",
    "empty",
    "html",
    "truncated",
    "no_content",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kind of fault does unless the fault says otherwise; status None: no answer of its own."""

    status: int | None
    applied: bool = False
    stored: bool = False
    text: str | None = None
    content_type: str = "application/json"


SHAPES: dict[Kind, Shape] = {
    "apply_then_hang": Shape(None, applied=True),
    "apply_then_reset": Shape(None, applied=True),
    "reset": Shape(None),
    "rate_limit": Shape(429),
    "server_error": Shape(500),
    "ok_with_error": Shape(200, stored=True),
    "bad_request": Shape(400, stored=True),
    "unauthorized": Shape(401),
    "empty": Shape(200, applied=True, text=""),
    "html": Shape(200, text="<html><body>We will be back soon.</body></html>", content_type="text/html"),
    "truncated": Shape(200, applied=True, text='{"status":"se'),
    "no_content": Shape(204, applied=True, text=""),
}


class Fault(BaseModel):
    """One way to misbehave, and to whom: `share` draws per key and attempt, `times` counts requests of each key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    share: float = Field(default=1.0, ge=0, le=1)
    times: int | None = Field(default=None, ge=1)
    keys: frozenset[str] | None = None
    key_prefix: str = ""
    retry_after: str | int | None = "1"
    seconds: float = Field(default=60, ge=0)
    status: int | None = Field(default=None, ge=200, le=599)
    applied: bool | None = None
    stored: bool | None = None
    code: str | None = None
    message: str = "as ordered"

    @property
    def applies(self) -> bool:
        """Whether the notice is sent in spite of the fault."""
        return SHAPES[self.kind].applied if self.applied is None else self.applied

    @property
    def is_stored(self) -> bool:
        """Whether the fault's answer becomes the answer of its key."""
        return SHAPES[self.kind].stored if self.stored is None else self.stored

    @property
    def answer(self) -> Answer | None:
        """The fault's own answer."""
        shape = SHAPES[self.kind]
        if shape.status is None:
            return None
        text = error_text(self.code or self.kind, self.message) if shape.text is None else shape.text
        retry_after = str(self.retry_after) if self.kind == "rate_limit" and self.retry_after is not None else None
        return Answer(self.status or shape.status, text, shape.content_type, retry_after)

    def reply(self, truth: Answer | None) -> Reply:
        """Return what the caller gets to see, where `truth` stands under its key."""
        if self.answer:
            return Reply(self.answer)
        return Reply(truth, self.seconds) if self.kind == "apply_then_hang" else Reply(None)

    @model_validator(mode="after")
    def _stores_errors_only(self) -> Self:
        shape = SHAPES[self.kind]
        if self.stored and (shape.status is None or shape.text is not None):
            raise ValueError(f"{self.kind} is no answer to store under a key")
        return self


class Limit(BaseModel):
    """A token bucket: `rate` a second, `burst` at once; `retry_after` is sent as it stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: float = Field(gt=0)
    burst: int = Field(default=1, ge=1)
    retry_after: str | int | None = "1"


FAULTS = TypeAdapter(list[Fault])


@dataclass(slots=True)
class Bucket:
    """The tokens of a limit."""

    limit: Limit
    tokens: float
    filled_at: float

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self.tokens = min(self.limit.burst, self.tokens + (now - self.filled_at) * self.limit.rate)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(slots=True)
class Script:
    """The faults in force, and how many requests of each key reached each of them."""

    seed: int = 0
    faults: list[Fault] = field(default_factory=list)
    reached: Counter[tuple[int, str]] = field(default_factory=Counter)

    def next_fault(self, key: str, attempt: int, replay: bool) -> Fault | None:
        """Return the first fault that fires for this request; a replay meets only those on the way."""
        for number, fault in enumerate(self.faults):
            chosen = key.startswith(fault.key_prefix) and (fault.keys is None or key in fault.keys)
            if chosen and not (replay and fault.is_stored) and self._fires(number, fault, key, attempt):
                return fault
        return None

    def _fires(self, number: int, fault: Fault, key: str, attempt: int) -> bool:
        if fault.times is not None:
            self.reached[number, key] += 1
            if self.reached[number, key] > fault.times:
                return False
        # The fault's place is part of the draw: else a second fault of the same share would never fire.
        draw = hashlib.blake2b(f"{self.seed}/{number}/{attempt}/{key}".encode(), digest_size=8).digest()
        return int.from_bytes(draw) < fault.share * 2**64


@dataclass(slots=True)
class Entry:
    """All that is known of one key."""

    key: str
    applied: int = 0
    calls: int = 0
    record: str | None = None
    body_sha256: str = ""
    first_at: float = 0.0
    last_at: float = 0.0
    answer_status: int | None = None
    answer_text: str | None = None
    answered_at: float | None = None

    @property
    def answer(self) -> Answer | None:
        """The answer stored under the key."""
        if self.answer_status is None:
            return None
        return Answer(self.answer_status, self.answer_text or "")

    def keep(self, answer: Answer, at: float) -> None:
        """Store the answer that a repeat of this key gets."""
        self.answer_status, self.answer_text, self.answered_at = answer.status, answer.text, at


class Store:
    """The provider's memory; used from the event loop's thread only, so a read and its write are one step."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        # Without fsync a committed write is in the kernel's hands: it outlives this process, not the machine.
        self._database.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; {_SCHEMA}")
        self._committed: asyncio.Future[None] | None = None
        self.notices: int = self._database.execute("SELECT coalesce(sum(applied), 0) FROM notice").fetchone()[0]

    def find(self, key: str) -> Entry | None:
        """Return what is known of a key."""
        row = self._database.execute("SELECT * FROM notice WHERE key = ?", (key,)).fetchone()
        return Entry(*row) if row else None

    def save(self, entry: Entry) -> None:
        """Write what is known of a key."""
        values = (
            entry.key,
            entry.applied,
            entry.calls,
            entry.record,
            entry.body_sha256,
            entry.first_at,
            entry.last_at,
            entry.answer_status,
            entry.answer_text,
            entry.answered_at,
        )
        self._database.execute("REPLACE INTO notice VALUES (?,?,?,?,?,?,?,?,?,?)", values)

    def log(self, method: str, at: float, key: str | None, status: int | None, peer: str) -> None:
        """Note one request; status None means that no answer is given."""
        self._database.execute(
            "INSERT INTO call (at, method, key, status, peer) VALUES (?,?,?,?,?)", (at, method, key, status, peer)
        )

    async def committed(self) -> None:
        """Wait until everything written so far is committed; all requests of one turn of the loop share a commit."""
        if self._committed is None:
            loop = asyncio.get_running_loop()
            self._committed = loop.create_future()
            loop.call_soon(self._commit, self._committed)
        # Shielded, since a cancelled request must not take the commit of its neighbours with it.
        await asyncio.shield(self._committed)

    def close(self) -> None:
        """Commit and close."""
        self._database.commit()
        self._database.close()

    def ledger(self, prefix: str) -> Iterator[list[dict[str, Any]]]:
        """Yield pages of the ledger in key order."""
        # Pages read on their own: an open cursor would see, or miss, what is written between two of them.
        query = "SELECT * FROM notice WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?"
        last = ""
        while rows := self._database.execute(query, (prefix, last, prefix + _HIGHEST, _PAGE)).fetchall():
            entries = [Entry(*row) for row in rows]
            last = entries[-1].key
            yield [_ledger_line(entry) for entry in entries]

    def calls(self, prefix: str, method: str) -> Iterator[list[dict[str, Any]]]:
        """Yield pages of the requests seen, in the order of their arrival."""
        query = """SELECT id, at, key, status, peer FROM call
            WHERE id > ? AND method = ? AND substr(coalesce(key, ''), 1, length(?)) = ? ORDER BY id LIMIT ?"""
        last = 0
        while rows := self._database.execute(query, (last, method, prefix, prefix, _PAGE)).fetchall():
            last = rows[-1][0]
            yield [
                {"time": _instant(at), "key": key, "status": status, "peer": peer} for _, at, key, status, peer in rows
            ]

    def _commit(self, waiting: "asyncio.Future[None]") -> None:
        self._committed = None
        try:
            self._database.commit()
        except sqlite3.Error as error:
            waiting.set_exception(error)
        else:
            waiting.set_result(None)


def _ledger_line(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "applied": entry.applied,
        "calls": entry.calls,
        "record": None if entry.record is None else json.loads(entry.record),
        "body_sha256": entry.body_sha256,
        "first": _instant(entry.first_at),
        "last": _instant(entry.last_at),
    }


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")


def error_text(code: str, message: str) -> str:
    """Return the body of a refusal."""
    return json_text({"status": "error", "code": code, "message": message})


def json_text(value: object) -> str:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"))
