"""What the check finds, and how a sender is asked: whatever it does becomes an answer or a finding."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from bulklane.operations.sender import Done, Held, Later, NoLookUp, Refused, Unknown

ANSWERS = (Done, Refused, Later, Unknown, Held)


@dataclass(frozen=True)
class Finding:
    """What a sender got wrong. `case`: what the outside system did."""

    case: str
    told: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.case}: {self.told}"


@dataclass(frozen=True)
class Rule:
    """Which answers a case allows, and why."""

    case: str
    allowed: tuple[type[Any], ...]
    why: str

    def judge(self, answer: Any, deliberate: Mapping[str, type[Any]]) -> list[Finding]:
        """The finding where the answer isn't allowed."""
        if isinstance(answer, Raised):
            return [Finding(self.case, f"it raised {answer.name} instead of answering: {self.why}")]
        if answer is not None and not isinstance(answer, (*ANSWERS, NoLookUp)):
            return [Finding(self.case, f"it answered {type(answer).__name__}, which is none of {_names(ANSWERS)}")]
        allowed = (deliberate[self.case],) if self.case in deliberate else self.allowed
        if isinstance(answer, allowed):
            return []
        return [Finding(self.case, f"was taken as {_name(answer)}: it must be {_names(allowed)}, since {self.why}")]


@dataclass(frozen=True)
class Raised:
    """An exception left the sender."""

    name: str


async def ask(call: Awaitable[Any], seconds: float) -> Any:
    """A sender's answer; Unknown where it is cut off after so many seconds, as a delivery cuts it off."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except NoLookUp as error:
        return error
    except Exception as error:
        return Unknown("cut off") if limit.expired() else Raised(type(error).__name__)


def _names(kinds: tuple[type[Any], ...]) -> str:
    return " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)


def _name(answer: Any) -> str:
    return "None" if answer is None else type(answer).__name__
