"""What one claimed delivery is worth: look up where there is a doubt, send where that does no harm, else undecided."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from bulklane.activities.failures import reason_of
from bulklane.database.delivery import Claim
from bulklane.operations.channel import Channel
from bulklane.operations.sender import Answer, Call, CallSender, Done, Held, Later, NoLookUp, Refused, Unknown

PUT_OFF = "put_off"

T = TypeVar("T")


class Undecided(Unknown):
    """Nobody can find out any more."""


class Unasked(Unknown):
    """The look-up failed and nothing was sent: the doubt is as it was, and this was no attempt."""


@dataclass(frozen=True)
class PutOffLookUp(Later):
    """The look-up was put off and nothing was sent: as `Unasked`."""


@dataclass(frozen=True)
class HeldLookUp(Held):
    """The look-up was turned away like everybody, and nothing was sent: as `Unasked`."""


async def answer_of(sender: CallSender, channel: Channel, claim: Claim, call: Call) -> Answer:
    """Make at most one call for a claim; what is known of the effect then. Never raises for what a sender does."""
    if claim.doubtful:
        known = await _look_up(sender, channel, call)
        if isinstance(known, Held):
            return HeldLookUp(known.reason)
        if isinstance(known, (Done, Refused)):
            return known
        stop = None if claim.permitted else _stop(channel, claim, known)
        if stop is not None:
            return stop
    answer = await _send(sender, channel, call)
    if not claim.doubtful:
        return _bounded(channel, claim, answer)
    if isinstance(answer, Refused) and not channel.stores_refusals:
        # it may refuse this call and still be at work on the one before
        return Unknown(f"refused ({answer.code}) after an unanswered call")
    return answer


def _stop(channel: Channel, claim: Claim, known: Answer | None) -> Answer | None:
    """Why a doubtful delivery isn't sent again now; None where it is. `known`: what the look-up told, if anything."""
    old = claim.first_sent_seconds > channel.most_seconds
    if known is not None and not isinstance(known, _Silent):
        # the look-up failed: that says nothing, and it may be asked again
        reason = f"the look-up: {known.reason}" if isinstance(known, (Later, Unknown)) else "the look-up failed"
        if old:
            return Undecided(f"the time is used up; {reason}")
        # its time is kept for all calls; the doubt stays
        return PutOffLookUp(known.seconds, reason) if isinstance(known, Later) else Unasked(reason)
    if not channel.keeps_keys:
        # a look-up that finds nothing is no refusal: the call may still be on its way
        reason = known.reason if isinstance(known, _Silent) else "the look-up finds nothing"
        return Undecided(f"{reason}, and the provider keeps no keys")
    if claim.first_sent_seconds > channel.key_lifetime:
        return Undecided("the provider's memory of the key is over: sending it again would be blind")
    return Undecided("the attempts are used up") if old or claim.attempts > channel.most_attempts else None


def _bounded(channel: Channel, claim: Claim, answer: Answer) -> Answer:
    """A provider that says *later* again and again is believed for a time; then it has refused: nothing was done."""
    over = claim.attempts > channel.most_attempts and claim.first_sent_seconds > channel.most_seconds
    if isinstance(answer, Later) and over:
        reason = f"not done, and put off {claim.attempts} times; a retry sends it again: {answer.reason}"
        return Refused(PUT_OFF, reason)
    return answer


class _Silent(Unknown):
    """The channel has no look-up."""


async def _look_up(sender: CallSender, channel: Channel, call: Call) -> Answer | None:
    try:
        return await _in_time(sender.look_up(call), channel.call_seconds)
    except NoLookUp as error:
        return _Silent(str(error))
    except TimeoutError:
        return Unknown(f"no answer within {channel.call_seconds:g} s")
    except Exception as error:
        return Unknown(f"the sender failed: {reason_of(error)[1]}")


async def _send(sender: CallSender, channel: Channel, call: Call) -> Answer:
    try:
        return await _in_time(sender.send(call), channel.call_seconds)
    except TimeoutError:
        return Unknown(f"no answer within {channel.call_seconds:g} s")
    except Exception as error:
        # a bug in a team's sender or judge: it may have called
        return Unknown(f"the sender failed: {reason_of(error)[1]}")


async def _in_time(call: Awaitable[T], seconds: float) -> T:
    # all of it: a client's own timeouts begin anew with each byte that comes
    async with asyncio.timeout(seconds):
        return await call
