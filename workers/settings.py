"""What a worker process reads from its environment; all that is wrong is reported at once."""

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from bulklane.activities.pace import PaceLimits
from bulklane.contracts.timing import Timing
from bulklane.operations.channel import ChannelSettings

Modules = Annotated[str, Field(description="the modules that end in OPERATIONS = [...], comma-separated")]


class WorkerSettings(BaseSettings):
    """The settings of every worker role; each field is `BULKLANE_<NAME>`, a channel's `BULKLANE_CHANNELS__<NAME>__URL`.

    Temporal's own connection comes from its environment configuration (`TEMPORAL_ADDRESS`, `TEMPORAL_PROFILE`, ...).
    Times are in seconds; how they must fit stands in `contracts/timing.py`.
    """

    model_config = SettingsConfigDict(
        env_prefix="BULKLANE_", env_nested_delimiter="__", frozen=True, extra="ignore", env_ignore_empty=True
    )

    database_url: str
    operations: Modules
    channels: dict[str, ChannelSettings] = {}
    small_max_records: int = Field(default=500, ge=0)
    slots: int = Field(default=8, ge=1, le=200)
    connection_budget: int = Field(default=90, ge=1)
    processes: int = Field(default=8, ge=1)
    process_name: str | None = None
    drain_seconds: float = Field(default=20.0, gt=0)
    health_port: int | None = None
    log_level: str = "INFO"

    chunk_target: float = Timing.chunk_target
    statement_timeout: float = Timing.statement_timeout
    transaction_timeout: float = Timing.transaction_timeout
    deadlock_timeout: float = Timing.deadlock_timeout
    heartbeat_timeout: float = Timing.heartbeat_timeout
    heartbeat_throttle: float = Timing.heartbeat_throttle
    sticky_timeout: float = Timing.sticky_timeout
    workflow_task_timeout: float = Timing.workflow_task_timeout
    suspect_after: float = Timing.suspect_after
    segment: float = Timing.segment
    deliver: float = Timing.deliver
    control_interval: float = Timing.control_interval
    shift_statement_timeout: float = Timing.shift_statement_timeout
    freeze_statement_timeout: float = Timing.freeze_statement_timeout
    trouble_budget: float = Timing.trouble_budget

    replication_lag_slow: float = Field(default=PaceLimits.replication_lag_slow, gt=0)
    replication_lag_hold: float = Field(default=PaceLimits.replication_lag_hold, gt=0)
    lock_waits_slow: float = Field(default=PaceLimits.lock_waits_slow, ge=0)
    lock_waits_hold: float = Field(default=PaceLimits.lock_waits_hold, ge=0)
    connections_slow: float = Field(default=PaceLimits.connections_slow, gt=0)
    connections_hold: float = Field(default=PaceLimits.connections_hold, gt=0)
    slow_rows_per_second: float = Field(default=PaceLimits.slow_rows_per_second, ge=1)
    debt_limit: int = Field(default=PaceLimits.debt_limit, ge=1)

    def timing(self) -> Timing:
        """The times as one value."""
        known = Timing.__dataclass_fields__.keys() & type(self).model_fields.keys()
        return Timing(**{name: getattr(self, name) for name in known})

    def pace(self) -> PaceLimits:
        """When jobs go slower, as one value."""
        return PaceLimits(**{name: getattr(self, name) for name in PaceLimits.__dataclass_fields__})

    def modules(self) -> list[str]:
        """The modules of `operations`."""
        return [name.strip() for name in self.operations.split(",") if name.strip()]
