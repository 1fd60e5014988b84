"""What clients and the command line read from their environment."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class StarterSettings(BaseSettings):
    """Each field is `BULKLANE_<NAME>`; Temporal's connection comes from its own environment configuration."""

    model_config = SettingsConfigDict(env_prefix="BULKLANE_", frozen=True, extra="ignore", env_ignore_empty=True)

    database_url: str
    operations: str
    small_max_records: int = Field(default=500, ge=0)
    workflow_task_timeout: float = Field(default=5.0, gt=0)
    pool_size: int = Field(default=5, ge=1)
    who: str = ""

    def modules(self) -> list[str]:
        """The modules of `operations`."""
        return [name.strip() for name in self.operations.split(",") if name.strip()]


class StackSettings(BaseSettings):
    """Settings of the stack on one machine; `cache` holds what is fetched once for all."""

    model_config = SettingsConfigDict(env_prefix="BULKLANE_", frozen=True, extra="ignore", env_ignore_empty=True)

    folder: Path = Path(".run")
    cache: Path = Path.home() / ".cache" / "bulklane" / "opensearch"
    operations: str = "examples.flights.operation"
    bulk_workers: int = Field(default=2, ge=1)
    bulk_slots: int = Field(default=1, ge=1)
