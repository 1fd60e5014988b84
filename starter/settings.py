"""What clients and the command line read from their environment."""

import getpass
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from bulklane.operations.channel import ChannelSettings, Endpoint

EXAMPLE = "examples.flights.operation"
OWN_PREFIX = "BULKLANE_"


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


class ChannelsSettings(BaseSettings):
    """The channels that the environment names: `BULKLANE_CHANNELS__<NAME>__URL` and `..._TOKEN`."""

    model_config = SettingsConfigDict(
        env_prefix="BULKLANE_",
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        populate_by_name=True,
    )

    channels: dict[str, ChannelSettings] = {}

    def endpoints(self) -> dict[str, Endpoint]:
        """By channel."""
        return {name: channel.endpoint() for name, channel in self.channels.items()}


def default_operations() -> str:
    """The example of a checkout; empty where there is none, as after an installation from a wheel."""
    try:
        return EXAMPLE if find_spec(EXAMPLE) else ""
    except ImportError:
        return ""


class StackSettings(ChannelsSettings):
    """Settings of the stack on one machine; `cache` holds what is fetched once for all.

    `DATABASE_URL`, `TEMPORAL_ADDRESS` and `OPENSEARCH_URL` replace a server that would be started. `slots`: of each
    worker process other than bulk; by default what the connection budget leaves to each, at most 8.
    """

    folder: Path = Path(".run")
    cache: Path = Path.home() / ".cache" / "bulklane" / "opensearch"
    operations: str = Field(default_factory=default_operations)
    bulk_workers: int = Field(default=2, ge=1, le=20)
    bulk_slots: int = Field(default=1, ge=1, le=200)
    slots: int | None = Field(default=None, ge=1, le=200)
    connection_budget: int = Field(default=90, ge=1)
    log_level: str = "INFO"
    postgres_url: str | None = Field(default=None, validation_alias="DATABASE_URL")
    temporal_address: str | None = Field(default=None, validation_alias="TEMPORAL_ADDRESS")
    opensearch_url: str | None = Field(default=None, validation_alias="OPENSEARCH_URL")

    def modules(self) -> list[str]:
        """The modules of `operations`."""
        return [name.strip() for name in self.operations.split(",") if name.strip()]


def is_set(name: str) -> bool:
    """Whether the environment has a value under this name."""
    return bool(os.environ.get(name))


def adopt(environment: Mapping[str, str]) -> None:
    """Make a running stack's addresses this process's own; what its caller set of ours stays, Temporal's does not."""
    for name, value in environment.items():
        if not (name.startswith(OWN_PREFIX) and is_set(name)):
            os.environ[name] = value


def python_path() -> str:
    """PYTHONPATH for a child: the current folder, from which a team's modules are imported, then what was set."""
    return os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def user_name() -> str:
    """The account's name; empty where it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
