"""Channels as values: one outside system with its sender, its limits and its rules."""

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, Field, SecretStr

from bulklane.contracts.limit import Limits
from bulklane.operations.conformance.sample import Sample
from bulklane.operations.sender import CallSender, IndexSender


@dataclass(frozen=True)
class Endpoint:
    """Where a channel's system is; from the deployment's settings. `token` goes into the Authorization header."""

    url: str
    token: str | None = None


class ChannelSettings(BaseModel):
    """A channel's endpoint as a process's settings have it, and limits that go over the channel's own.

    All processes of a deployment must have the same. `tenant_weights` is a JSON object.
    """

    url: str
    token: SecretStr | None = None
    rate: float | None = Field(default=None, gt=0)
    burst: int | None = Field(default=None, ge=1)
    concurrency: int | None = Field(default=None, ge=1)
    tenant_rate: float | None = Field(default=None, gt=0)
    tenant_burst: int | None = Field(default=None, ge=1)
    tenant_concurrency: int | None = Field(default=None, ge=1)
    tenant_weights: dict[str, float] | None = None
    shared_account: bool | None = None

    def limits_over(self, limits: Limits) -> Limits:
        """The limits with what these settings say otherwise. Raises ValueError naming the field."""
        said = self.model_dump(exclude={"url", "token"}, exclude_none=True)
        return replace(limits, **said)

    def endpoint(self) -> Endpoint:
        """As the channel's sender wants it."""
        return Endpoint(self.url, self.token.get_secret_value() if self.token else None)


@runtime_checkable
class CallSenderFactory(Protocol):
    """Makes a sender for an endpoint, in the process that sends."""

    def connect(self, endpoint: Endpoint, concurrency: int) -> CallSender:
        """A sender for that many calls at once."""


class IndexSenderFactory(Protocol):
    """Makes an index sender for an endpoint."""

    def connect_index(self, endpoint: Endpoint) -> IndexSender:
        """A sender of documents."""


@dataclass(frozen=True)
class Channel:
    """One outside system.

    `concurrency`: calls at once for one job. `limits`: what the system takes from all jobs and workers together; a
    deployment may set them by `BULKLANE_CHANNELS__<NAME>__RATE` and so on. `keeps_keys`: the provider remembers
    idempotency keys, for `key_lifetime` seconds, so that a repeat under the same key is safe that long.
    `stores_refusals`: it stores its refusals under the key too, so that one is definite even after an unanswered call.
    `most_attempts` and `most_seconds` bound the re-sends of a delivery with an unknown outcome; then it is undecided.
    Look-ups that fail are bounded by `most_seconds` alone. What is put off beyond both was not done: it is refused.
    `call_seconds`: how long one call may take, all of it. `sample`: the system's own answers, for
    `bulklane check-channel`.
    """

    name: str
    sender: CallSenderFactory | IndexSenderFactory
    concurrency: int = 10
    keeps_keys: bool = True
    key_lifetime: float = 24 * 3600.0
    stores_refusals: bool = False
    call_seconds: float = 10.0
    most_attempts: int = 8
    most_seconds: float = 3600.0
    limits: Limits = field(default_factory=Limits)
    sample: Sample | None = None

    @property
    def indexes(self) -> bool:
        """Whether it is a search index."""
        return hasattr(self.sender, "connect_index")
