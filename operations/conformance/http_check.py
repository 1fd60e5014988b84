"""Drives a provider's sender against a scripted server over real HTTP, and tells what it got wrong."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bulklane.operations.channel import CallSenderFactory, Channel, Endpoint
from bulklane.operations.conformance.finding import Finding, Rule, ask
from bulklane.operations.conformance.http_cases import ELSEWHERE, Case, look_up_cases, send_cases
from bulklane.operations.conformance.sample import HttpSample
from bulklane.operations.conformance.scripted_http import Asked, Cut, Reply, scripted_http
from bulklane.operations.sender import Call, CallSender, Held, Later, NoLookUp, Unknown

AT_ONCE = 4
TOKEN = "conformance-token"  # noqa: S105
# what a client may vary from one request to the next
_VARIES = frozenset({"date", "traceparent", "tracestate", "x-request-id", "content-length", "host", "connection"})


@dataclass(frozen=True)
class HttpCheck:
    """A channel under check."""

    channel: Channel
    factory: CallSenderFactory
    sample: HttpSample

    async def findings(self) -> list[Finding]:
        """All that is wrong, in the order of the cases."""
        looks_up = await self._looks_up()
        checks = [self._send(case) for case in send_cases(self.sample)]
        checks += [self._look_up(case) for case in look_up_cases(self.sample)] if looks_up else []
        checks += [self._keys(), self._kept_alive(), self._nobody_there()]
        # few at once: a machine that is busy with all of them would look like a sender that is slow
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(check: Awaitable[list[Finding]]) -> list[Finding]:
            async with slots:
                return await check

        return [finding for found in await asyncio.gather(*map(one, checks)) for finding in found]

    def call(self, name: str) -> Call:
        """A call under a key of its own."""
        return Call(f"conformance/{name}/1", self.sample.body)

    async def _send(self, case: Case) -> list[Finding]:
        name, call = case.rule.case, self.call("send")
        async with scripted_http(lambda asked, _: Reply(404) if asked.target == ELSEWHERE else case.reaction) as server:
            answer = await self._asked(server.url, lambda sender: sender.send(call))
            asked = list(server.asked)
        found = case.rule.judge(answer, self.sample.deliberate) + _wait(case, answer)
        followed = [one for one in asked if one.target == ELSEWHERE]
        if followed:
            with_token = any(TOKEN in value for one in followed for value in one.headers.values())
            found.append(Finding(name, "it followed the redirect" + (" with the credentials" if with_token else "")))
        elif len(asked) != 1:
            found.append(Finding(name, f"it made {len(asked)} requests for one call: it must make one"))
        return found

    async def _look_up(self, case: Case) -> list[Finding]:
        async with scripted_http(lambda _asked, _number: case.reaction) as server:
            answer = await self._asked(server.url, lambda sender: sender.look_up(self.call("look-up")))
            sent = [asked for asked in server.asked if self.sample.body.encode() in asked.body]
        found = case.rule.judge(answer, self.sample.deliberate)
        return [*found, Finding(case.rule.case, "it sent the call while it looked it up")] if sent else found

    async def _looks_up(self) -> bool:
        async with scripted_http(lambda _asked, _number: self.sample.known or Reply(404)) as server:
            answer = await self._asked(server.url, lambda sender: sender.look_up(self.call("look-up")))
            return bool(server.asked) or not isinstance(answer, NoLookUp)

    async def _keys(self) -> list[Finding]:
        """The same call twice and another once."""
        first, other = self.call("first"), self.call("other")

        async def three(sender: CallSender) -> None:
            for call in (first, first, other):
                await sender.send(call)

        async with scripted_http(lambda _asked, _number: self.sample.ok) as server:
            await self._asked(server.url, three)
            return _check_keys(server.asked, self.sample.body.encode(), keeps_keys=self.channel.keeps_keys)

    async def _kept_alive(self) -> list[Finding]:
        """The connection ends after the second request was read: some clients send it again on a new one."""
        name = "a kept connection that ends after the request was read"

        async def two(sender: CallSender) -> Any:
            await sender.send(self.call("first"))
            return await sender.send(self.call("second"))

        async with scripted_http(lambda _asked, number: self.sample.ok if number == 1 else Cut()) as server:
            answer = await self._asked(server.url, two)
            count = len(server.asked)
        found = Rule(name, (Unknown,), "it may have happened").judge(answer, self.sample.deliberate)
        if count > 2:
            found.append(Finding(name, f"it made {count - 1} requests for one call: it must make one"))
        return found

    async def _nobody_there(self) -> list[Finding]:
        with socket.socket() as taken:
            # bound and not listening: nobody else gets the port meanwhile
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            answer = await self._asked(url, lambda sender: sender.send(self.call("nobody")))
        rule = Rule("nobody listens", (Later, Unknown, Held), "nothing was asked, and it may be there again soon")
        return rule.judge(answer, self.sample.deliberate)

    async def _asked(self, url: str, question: Callable[[CallSender], Awaitable[Any]]) -> Any:
        sender = self.factory.connect(Endpoint(url, TOKEN), 2)
        try:
            return await ask(question(sender), self.channel.call_seconds)
        finally:
            await sender.close()


def _wait(case: Case, answer: Any) -> list[Finding]:
    """How long a `Later` waits: what the header says, or a backoff of ours."""
    if not isinstance(answer, Later) or not case.rule.case.startswith("429 with"):
        return []
    if case.wait is None:
        return [] if answer.seconds is None else [_bad_wait(case, answer, "None, for a backoff of ours")]
    shortest, longest = case.wait
    if answer.seconds is not None and shortest <= answer.seconds <= longest * 1.1 + 5:
        return []
    return [_bad_wait(case, answer, f"from {shortest:g} to {longest:g} seconds")]


def _bad_wait(case: Case, answer: Later, wanted: str) -> Finding:
    return Finding(case.rule.case, f"Later({answer.seconds}): the wait must be {wanted}")


def _check_keys(asked: Sequence[Asked], body: bytes, *, keeps_keys: bool) -> list[Finding]:
    name = "the same call twice and another once"
    if len(asked) != 3:
        return [Finding(name, f"it made {len(asked)} requests for three calls that were done")]
    first, again, other = asked
    found = [] if body in first.body else [Finding(name, "the body that was fixed at commit is not sent as it stands")]
    if first.body != again.body:
        found.append(Finding(name, "the body differs on the second send"))
    if not keeps_keys or _tells_apart(first, again, other):
        return found
    varying = [header for header in first.headers if _differs(first, again, header)]
    if varying:
        return [*found, Finding(name, f"the key differs on the second send: header {', '.join(varying)}")]
    return [*found, Finding(name, "the idempotency key is not sent")]


def _tells_apart(first: Asked, again: Asked, other: Asked) -> bool:
    if (first.target, first.body) == (again.target, again.body) != (other.target, other.body):
        return True
    return any(_differs(first, other, header) and not _differs(first, again, header) for header in first.headers)


def _differs(one: Asked, other: Asked, header: str) -> bool:
    return header not in _VARIES and one.headers.get(header) != other.headers.get(header)
