"""One provider call a record, to a provider that keeps keys, one that can only be asked, and one that does neither."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    Update,
    create_engine,
    func,
    literal,
    select,
    update,
)

from bulklane.operations.channel import Channel
from bulklane.operations.development import Development, DevelopmentService
from bulklane.operations.operation import CallEffect, Operation, Records
from bulklane.operations.senders.http_provider import HttpProvider
from examples.flights.operation import judge_look_up, judge_notice

MODULE = "tests.support.telling"
CALL_SECONDS = 0.6
CONCURRENCY = 20

metadata = MetaData()
told = Table(
    "told",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("no", BigInteger, primary_key=True, autoincrement=False),
    Column("n", Integer, nullable=False, server_default="0"),
    Column("row_version", BigInteger, nullable=False, server_default="1"),
)


def make_told(engine: Engine, tenant: str, count: int) -> None:
    """A tenant of its own with that many records."""
    numbers = func.generate_series(1, count).table_valued("no").render_derived()
    with engine.begin() as connection:
        rows = select(literal(tenant, Text), numbers.c.no)
        connection.execute(told.insert().from_select(["tenant", "no"], rows))


@dataclass(frozen=True)
class TellParameters:
    """None."""


class Tell(Operation):
    """Counts up, and tells the provider."""

    parameters = TellParameters
    records = Records(table=told, key=[told.c.no], tenant=told.c.tenant, row_version=told.c.row_version)
    channel: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Name it after its channel."""
        cls.name = f"tell_{cls.channel}"
        cls.effects = (CallEffect("notice", channel=cls.channel, body={"record": told.c.no, "n": told.c.n}),)

    def change(self, parameters: TellParameters) -> Update:
        """One statement."""
        del parameters
        return update(told).values(n=told.c.n + 1)


class TellKeeping(Tell):
    """Its provider keeps keys, and can be asked."""

    channel = "keeping"


class TellAsking(Tell):
    """Its provider keeps no keys, and can be asked."""

    channel = "asking"


class TellBlind(Tell):
    """Its provider keeps no keys, and can't be asked."""

    channel = "blind"


def prepare(database_url: str, _opensearch_url: str) -> None:
    """The table."""
    engine = create_engine(database_url)
    metadata.create_all(engine)
    engine.dispose()


def _service(channel: str, *options: str) -> DevelopmentService:
    def command(port: int, folder: Path) -> Sequence[str]:
        data = str(folder / "provider.sqlite")
        words = ["-m", "examples.flights.provider", "--port", str(port), "--data", data, *options]
        return [sys.executable, *words]

    return DevelopmentService(f"provider-{channel}", channel, command)


_LOOK_UP: dict[str, Any] = {"look_up_path": "/notices/by-key/{key}", "judge_look_up": judge_look_up}
_LIMITS: dict[str, Any] = {"concurrency": CONCURRENCY, "call_seconds": CALL_SECONDS}

DEVELOPMENT = Development(
    prepare=prepare,
    services=[
        _service("keeping"),
        _service("asking", "--key-lifetime", "0"),
        _service("blind", "--key-lifetime", "0", "--no-look-up"),
    ],
)
OPERATIONS: list[Operation] = [TellKeeping(), TellAsking(), TellBlind()]
CHANNELS = [
    Channel("keeping", HttpProvider(path="/notices", judge=judge_notice, **_LOOK_UP), stores_refusals=True, **_LIMITS),
    Channel("asking", HttpProvider(path="/notices", judge=judge_notice, **_LOOK_UP), keeps_keys=False, **_LIMITS),
    Channel("blind", HttpProvider(path="/notices", judge=judge_notice), keeps_keys=False, **_LIMITS),
]
