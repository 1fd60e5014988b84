"""Drives a mail channel's sender against a scripted SMTP server, and tells what it got wrong."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email import message_from_bytes, policy
from typing import Any

from bulklane.operations.channel import CallSenderFactory, Channel, Endpoint
from bulklane.operations.conformance.finding import Finding, Rule, ask
from bulklane.operations.conformance.sample import MailSample
from bulklane.operations.conformance.scripted_smtp import (
    CLOSE,
    DATA,
    GREETING,
    LOGIN,
    MESSAGE,
    RECIPIENT,
    RESET,
    SENDER,
    SILENCE,
    scripted_smtp,
)
from bulklane.operations.sender import Call, CallSender, Done, Held, Later, NoLookUp, Refused, Unknown

AT_ONCE = 4
PASSWORD = "conformance-password"  # noqa: S105
NO_MAIL = "no mail at all"
_MAY = "the server has the message and may deliver it"
_NOT = "nothing of the message was sent, and it may be taken another time"
_FOR_GOOD = "the server refuses, and says so again each time"
_CHANNEL = "no record is to blame, and all others would fail too"

# what the server answers at which step (RFC 5321 section 4.2.1: 4 passes, 5 stays)
CASES: tuple[tuple[Mapping[str, str], Rule], ...] = (
    ({}, Rule("250 after the message", (Done,), "the server has taken it")),
    ({GREETING: "421 busy"}, Rule("421 as greeting", (Later,), _NOT)),
    ({GREETING: CLOSE}, Rule("closed before the greeting", (Later,), _NOT)),
    ({LOGIN: "535 5.7.8 wrong"}, Rule("535 at the login", (Held,), _CHANNEL)),
    ({SENDER: "451 later"}, Rule("451 at MAIL", (Later,), _NOT)),
    ({SENDER: "530 5.7.0 log in"}, Rule("530 at MAIL", (Held,), _CHANNEL)),
    ({RECIPIENT: "450 greylisted"}, Rule("450 at RCPT", (Later,), _NOT)),
    ({RECIPIENT: "550 5.1.1 unknown"}, Rule("550 at RCPT", (Refused,), _FOR_GOOD)),
    ({RECIPIENT: RESET}, Rule("reset at RCPT", (Later, Unknown), _NOT)),
    ({RECIPIENT: SILENCE}, Rule("silence at RCPT", (Later, Unknown), _NOT)),
    ({DATA: "451 later"}, Rule("451 at DATA", (Later, Unknown), _NOT)),
    ({MESSAGE: "451 later"}, Rule("451 after the message", (Later,), "the server has not taken it")),
    ({MESSAGE: "452 full"}, Rule("452 after the message", (Later,), "the server has not taken it")),
    ({MESSAGE: "554 5.7.1 spam"}, Rule("554 after the message", (Refused,), _FOR_GOOD)),
    ({MESSAGE: SILENCE}, Rule("silence after the message", (Unknown,), _MAY)),
    ({MESSAGE: RESET}, Rule("reset after the message", (Unknown,), _MAY)),
    ({MESSAGE: CLOSE}, Rule("closed after the message", (Unknown,), _MAY)),
    ({MESSAGE: "garbage"}, Rule("garbage after the message", (Unknown,), _MAY)),
)


@dataclass(frozen=True)
class MailCheck:
    """A mail channel under check."""

    channel: Channel
    factory: CallSenderFactory
    sample: MailSample

    async def findings(self) -> list[Finding]:
        """All that is wrong, in the order of the cases."""
        # few at once: a machine that is busy with all of them would look like a sender that is slow
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(check: Awaitable[list[Finding]]) -> list[Finding]:
            async with slots:
                return await check

        checks = [self._send(answers, rule) for answers, rule in CASES]
        checks += [self._identity(), self._bad_body(), self._look_up(), self._nobody_there()]
        found = [finding for found in await asyncio.gather(*map(one, checks)) for finding in found]
        if self.channel.keeps_keys:
            found.append(Finding("the channel", "a mail server keeps no keys: it must have keeps_keys=False"))
        return found

    async def _send(self, answers: Mapping[str, str], rule: Rule) -> list[Finding]:
        async with scripted_smtp(answers) as server:
            answer = await self._asked(server.port, lambda sender: sender.send(self._call("send")))
            count = len(server.messages)
        found = rule.judge(answer, self.sample.deliberate)
        if count > 1:
            found.append(Finding(rule.case, f"it sent {count} messages for one call: it must send one"))
        return found

    async def _identity(self) -> list[Finding]:
        """The same call twice and another once."""

        async def three(sender: CallSender) -> None:
            for name in ("first", "first", "other"):
                await sender.send(self._call(name))

        async with scripted_smtp({}) as server:
            await self._asked(server.port, three)
            ids = [str(message_from_bytes(one, policy=policy.SMTP)["Message-ID"]) for one in server.messages]
        name = "the same call twice and another once"
        if len(ids) != 3:
            return [Finding(name, f"it sent {len(ids)} messages for three calls that were taken")]
        if ids[0] != ids[1]:
            return [Finding(name, "the Message-ID differs on the second send")]
        return [Finding(name, "two calls have one Message-ID, or none")] if ids[1] == ids[2] else []

    async def _bad_body(self) -> list[Finding]:
        async with scripted_smtp({}) as server:
            call = Call("conformance/bad/1", "[]")
            answer = await self._asked(server.port, lambda sender: sender.send(call))
            count = len(server.messages)
        found = Rule(NO_MAIL, (Refused,), "the body is the record's own fault").judge(answer, self.sample.deliberate)
        return [*found, Finding(NO_MAIL, "it sent a message")] if count else found

    async def _look_up(self) -> list[Finding]:
        async with scripted_smtp({}) as server:
            answer = await self._asked(server.port, lambda sender: sender.look_up(self._call("look-up")))
        return Rule("look-up", (NoLookUp,), "a mail server can't be asked").judge(answer, self.sample.deliberate)

    async def _nobody_there(self) -> list[Finding]:
        with socket.socket() as taken:
            # bound and not listening: nobody else gets the port meanwhile
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            answer = await self._asked(port, lambda sender: sender.send(self._call("nobody")))
        return Rule("nobody listens", (Later, Held), _NOT).judge(answer, self.sample.deliberate)

    def _call(self, name: str) -> Call:
        return Call(f"conformance/{name}/1", self.sample.body)

    async def _asked(self, port: int, question: Callable[[CallSender], Awaitable[Any]]) -> Any:
        sender = self.factory.connect(Endpoint(self.sample.url.format(port=port), PASSWORD), 2)
        try:
            return await ask(question(sender), self.channel.call_seconds)
        finally:
            await sender.close()
