"""The check of a channel, for a team's own tests and for `bulklane check-channel`."""

import asyncio

from bulklane.operations.channel import CallSenderFactory, Channel
from bulklane.operations.conformance.finding import Finding
from bulklane.operations.conformance.http_check import HttpCheck
from bulklane.operations.conformance.mail_check import MailCheck
from bulklane.operations.conformance.sample import HttpSample, MailSample
from bulklane.operations.operation import OperationError


def check_channel(channel: Channel) -> list[Finding]:
    """All that the channel's sender gets wrong, against a scripted server on this machine; empty where nothing is.

    Takes about the channel's `call_seconds`. Raises OperationError where the channel has no `sample`.
    """
    return asyncio.run(find(channel))


async def find(channel: Channel) -> list[Finding]:
    """The same inside an event loop."""
    sample, factory = channel.sample, channel.sender
    if not isinstance(factory, CallSenderFactory):
        raise OperationError(f"the channel {channel.name!r} is a search index: only senders of calls are checked")
    if isinstance(sample, HttpSample):
        return await HttpCheck(channel, factory, sample).findings()
    if isinstance(sample, MailSample):
        return await MailCheck(channel, factory, sample).findings()
    raise OperationError(
        f"the channel {channel.name!r} has no `sample`: give it the system's own answers, such as"
        ' HttpSample(ok=Reply(201, \'{"status":"sent"}\'))'
    )
