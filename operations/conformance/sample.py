"""What a channel's outside system is known to say: by it the conformance check speaks the system's language."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bulklane.operations.conformance.scripted_http import Reply


@dataclass(frozen=True)
class HttpSample:
    """A provider's own answers.

    `ok`: it was done. `error`: a success by status whose body says that it was not. `known`: a look-up that says that
    it was done. `body`: of a call. `deliberate`: by the name of a case, the answer that the channel means on purpose
    where the check expects another ("409": Done, for a provider that says so of what it has done already).
    """

    ok: Reply
    error: Reply | None = None
    known: Reply | None = None
    body: str = '{"record":1}'
    deliberate: Mapping[str, type[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class MailSample:
    """A call's body for a mail channel, and how a sender is told where the server is (the token is a password)."""

    body: str = '{"to":"somebody@example.com","subject":"conformance","text":"a check"}'
    url: str = "smtp://conformance@127.0.0.1:{port}?tls=none"
    deliberate: Mapping[str, type[Any]] = field(default_factory=dict)


Sample = HttpSample | MailSample
