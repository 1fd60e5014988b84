"""What a team writes: which rows, which change, which effects. It returns statements; it never gets a connection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Delete,
    Enum,
    Integer,
    Select,
    String,
    Table,
    Update,
    Uuid,
)
from sqlalchemy.types import TypeEngine

from bulklane.contracts.key import KeyType, KeyValue, parse_value

if TYPE_CHECKING:
    from bulklane.operations.failure_threshold import FailureThreshold

MAX_KEY_COLUMNS = 4


class OperationError(TypeError):
    """An operation that can't be run; the message names the operation, the part and what is needed."""


def key_type_of(column: Column[Any]) -> KeyType:
    """The key type of a column; raises OperationError for one that can't be walked."""
    found = _KEY_TYPES.get(_base_of(column.type))
    if found is None or (found is KeyType.TIMESTAMPTZ and not getattr(column.type, "timezone", False)):
        raise OperationError(
            f"{column.table.name}.{column.name} is {column.type}: a key column is an integer, text, a uuid or a"
            " timestamp with time zone"
        )
    return found


_KEY_TYPES: dict[type[TypeEngine[Any]], KeyType] = {
    Integer: KeyType.BIGINT,
    String: KeyType.TEXT,
    Uuid: KeyType.UUID,
    DateTime: KeyType.TIMESTAMPTZ,
}


def _base_of(column_type: TypeEngine[Any]) -> type[TypeEngine[Any]]:
    return next((base for base in _KEY_TYPES if isinstance(column_type, base)), type(column_type))


@dataclass(frozen=True)
class Records:
    """The rows that an operation works on.

    `key`: the columns that identify a record within its tenant, in the order in which they are walked.
    `row_version`: a bigint that grows with every write of the row, moved by Bulklane's trigger (`bulklane install`)
    or, where the team says that all its writes do so, by the `application`.
    """

    table: Table
    key: Sequence[Column[Any]]
    tenant: Column[Any]
    row_version: Column[Any]
    row_version_by: Literal["trigger", "application"] = "trigger"

    def __post_init__(self) -> None:
        if not 1 <= len(self.key) <= MAX_KEY_COLUMNS:
            raise OperationError(f"{self.table.name}: a key has 1 to {MAX_KEY_COLUMNS} columns, not {len(self.key)}")
        if any(column.nullable for column in self.key):
            raise OperationError(f"{self.table.name}: a key column may not be NULL")
        if any(isinstance(column.type, Enum) for column in self.key):
            raise OperationError(f"{self.table.name}: a key column may not be an enum, whose order is no text's")
        if not isinstance(self.row_version.type, BigInteger):
            raise OperationError(f"{self.table.name}.{self.row_version.name}: a row version is a bigint")

    def tenant_value(self, tenant: str) -> KeyValue:
        """The tenant as its column's type has it; raises InvalidKey."""
        return parse_value(tenant, key_type_of(self.tenant))

    @cached_property
    def tenant_type(self) -> KeyType:
        """The type of the tenant column; raises OperationError."""
        return key_type_of(self.tenant)

    @cached_property
    def key_types(self) -> tuple[KeyType, ...]:
        """The types of the key columns; raises OperationError for one that can't be walked."""
        return tuple(key_type_of(column) for column in self.key)


@dataclass(frozen=True)
class IndexEffect:
    """Each changed record's document is written to a search index, read anew when it is sent."""

    name: str
    channel: str
    document: Mapping[str, ColumnElement[Any]]


@dataclass(frozen=True)
class CallEffect:
    """A provider is called once for each changed record, with a body of these columns fixed at commit."""

    name: str
    channel: str
    body: Mapping[str, ColumnElement[Any]]


Effect = IndexEffect | CallEffect


class Verification(Protocol):
    """What `bulklane verify` reads to check a job against the outside, never against Bulklane's own counters."""

    def expected(self, tenant: str, kind: str, spec: Mapping[str, Any]) -> set[str] | None:
        """The keys (text form) that a selection must have come to, from the original input; None: it can't tell."""

    def audit(self, tenant: str) -> Select[Any]:
        """A select with one row for each change of a record of the tenant.

        Its columns: `key` (text form), `changed_at` and `transaction_id` (`pg_current_xact_id()` of the change).
        """

    def applications(self, channel: str, endpoint_url: str, key_prefix: str) -> Mapping[str, int]:
        """By idempotency key: how often the provider behind the channel has applied it."""


class Operation:
    """One kind of bulk change.

    Subclass it, set the class variables, write `change`, and name the module in `BULKLANE_OPERATIONS`, ending in
    `OPERATIONS = [MyOperation()]`. Where one statement can't say it, subclass `PerRecord`.
    """

    name: ClassVar[str]
    records: ClassVar[Records]
    parameters: ClassVar[type[Any]]
    """A frozen dataclass; what comes in is checked against its types."""
    fields: ClassVar[Mapping[str, Column[Any]]] = {}
    """The columns that a filter may name."""
    effects: ClassVar[Sequence[Effect]] = ()
    search: ClassVar[IndexEffect | None] = None
    """The effect whose index a `search` selection asks, this operation's or another's on the same records; by default
    this operation's only index effect."""
    family: ClassVar[str | None] = None
    """Operations of one family exclude each other on a tenant's data; by default each is its own."""
    parallelism: ClassVar[int] = 1
    hold_lease_until_effects_final: ClassVar[bool] = False
    verification: ClassVar[Verification | None] = None
    failure_threshold: ClassVar["FailureThreshold | None"] = None
    """How many failed records a job bears before it ends as failed; by default any number."""

    def change(self, parameters: Any) -> Update | Delete:
        """The statement that changes every record of `records.table`: Bulklane narrows it to a chunk and the tenant."""
        raise NotImplementedError

    def resources(self, tenant: str, parameters: Any) -> Sequence[str]:
        """What a job must own alone; by default the tenant's data of the operation's family."""
        del parameters
        return [f"{self.family or self.name}:{tenant}"]

    @property
    def channels(self) -> list[str]:
        """Where the effects go, each once, in their order."""
        return list(dict.fromkeys(effect.channel for effect in self.effects))

    @property
    def searched(self) -> IndexEffect | None:
        """Where a `search` selection asks; None: such a selection is refused."""
        own = [effect for effect in self.effects if isinstance(effect, IndexEffect)]
        return self.search or (own[0] if len(own) == 1 else None)


@dataclass(frozen=True)
class Registry:
    """The operations and channels that a process knows; an instance, built where the process is put together."""

    operations: Mapping[str, Operation] = field(default_factory=dict)
    channels: Mapping[str, Any] = field(default_factory=dict)

    def operation(self, name: str) -> Operation:
        """The operation of that name; raises UnknownOperation."""
        found = self.operations.get(name)
        if found is None:
            known = ", ".join(sorted(self.operations)) or "none"
            raise UnknownOperation(f"no operation is named {name!r}; known: {known}")
        return found


class UnknownOperation(LookupError):
    """The name stands for no operation of this process; the message lists those that are known."""
