"""The HTTP sender against a server that says what it likes: bounded in memory and time, and never done by mistake."""

import asyncio
import gzip
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import OperationError
from bulklane.operations.sender import Answer, Call, Done, Held, Later, Refused, Unknown
from bulklane.operations.senders.http_provider import LONGEST_ANSWER, HttpProvider, HttpProviderSender

CALL = Call("job/mail/a%2Fb%20%C3%A9/1", '{"record": "é"}')


def judge(status: int, body: Any) -> Answer | None:
    """By status and body."""
    return Done("ok") if body.get("status") == "ok" and status < 300 else None


PROVIDER = HttpProvider("/v1/notices", judge, "/by-key/{key}", judge, done_if_empty=frozenset({200, 204}))


def response(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


class Served:
    """The requests that came, and what is answered: bytes, or a stream of them."""

    def __init__(self, *answers: bytes | Callable[[], AsyncIterator[bytes]]) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = next(
                    (int(x.split(":")[1]) for x in head.split("\r\n") if x.lower().startswith("content-l")), 0
                )
                self.requests.append(head + (await reader.readexactly(length)).decode())
                answer = self.answers.pop(0)
                async for chunk in _one(answer) if isinstance(answer, bytes) else answer():
                    writer.write(chunk)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _one(answer: bytes) -> AsyncIterator[bytes]:
    yield answer


def ask(served: Served, *kinds: str, provider: HttpProvider = PROVIDER, host: str = "127.0.0.1") -> list[Any]:
    """Sends and look-ups, one after another, with one sender."""

    async def run() -> list[Any]:
        server = await asyncio.start_server(served.handle, host)
        port = server.sockets[0].getsockname()[1]
        sender: HttpProviderSender = provider.connect(Endpoint(f"http://{host}:{port}/base"), 2)
        try:
            return [await (sender.send(CALL) if kind == "send" else sender.look_up(CALL)) for kind in kinds]
        finally:
            await sender.close()
            server.close()

    return asyncio.run(run())


OK = json.dumps({"status": "ok"}).encode()


def test_an_endless_answer_is_read_up_to_a_bound_and_unknown() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 X\r\nContent-Length: 2000000000\r\n\r\n"
        while sent < 200_000_000:
            sent += 65536
            yield b" " * 65536

    (answer,) = ask(Served(endless), "send")
    assert isinstance(answer, Unknown)
    # what is in the buffers of the sockets comes on top
    assert sent < LONGEST_ANSWER + 20_000_000


def test_a_small_answer_that_unpacks_to_a_large_one_is_unknown() -> None:
    bomb = gzip.compress(b"[" + b" " * 300_000_000 + b"]")
    (answer,) = ask(Served(response(200, bomb, "Content-Encoding: gzip")), "send")
    assert isinstance(answer, Unknown)


def test_a_packed_answer_is_read() -> None:
    (answer,) = ask(Served(response(200, gzip.compress(OK), "Content-Encoding: gzip")), "send")
    assert answer == Done("ok")


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 X\r\nContent-Length: 500\r\n\r\n" + OK,
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + OK,
        b"HTTP/1.1 200 X\r\nContent-Length: -3\r\n\r\n" + OK,
        b"HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
        b"HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: 16\r\n\r\n" + OK,
        b"HTTP/1.1 200 X\r\nX: " + b"y" * 100_000 + b"\r\nContent-Length: 16\r\n\r\n" + OK,
        b"",
    ],
)
def test_a_broken_answer_is_unknown_to_a_call_and_to_a_look_up(raw: bytes) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield raw
        raise ConnectionError

    for kind in ("send", "look up"):
        (answer,) = ask(Served(broken), kind)
        assert isinstance(answer, Unknown), (kind, answer)


def test_no_cookie_is_kept() -> None:
    served = Served(response(200, OK, "Set-Cookie: session=1; Path=/"), response(200, OK))
    ask(served, "send", "send", host="localhost")
    assert "cookie" not in served.requests[1].lower()


def test_an_empty_look_up_is_no_success_where_an_empty_answer_to_the_call_is_one() -> None:
    first, second = ask(Served(response(200), response(200)), "send", "look up")
    assert (first, type(second)) == (Done("200"), Unknown)


def test_a_redirect_is_not_followed_and_what_its_body_says_proves_nothing() -> None:
    for status in (301, 302, 303, 307, 308):
        served = Served(response(status, OK, "Location: /elsewhere"))
        (answer,) = ask(served, "send")
        assert (type(answer), len(served.requests)) == (Unknown, 1)


@pytest.mark.parametrize(("status", "kind"), [(401, Held), (403, Held), (429, Later), (503, Later), (500, Unknown)])
def test_what_a_look_up_answers_in_trouble(status: int, kind: type[Answer]) -> None:
    (answer,) = ask(Served(response(status, OK, "Retry-After: 7")), "look up")
    assert type(answer) is kind
    assert not isinstance(answer, Later) or answer.seconds == 7


def test_the_key_goes_in_one_header_and_one_part_of_the_path() -> None:
    served = Served(response(200, OK), response(404))
    assert ask(served, "send", "look up") == [Done("ok"), None]
    assert served.requests[0].startswith("POST /base/v1/notices HTTP/1.1\r\n")
    assert f"idempotency-key: {CALL.idempotency_key}\r\n" in served.requests[0]
    assert served.requests[0].endswith(CALL.body)
    assert served.requests[1].startswith("GET /base/by-key/job%2Fmail%2Fa%252Fb%2520%25C3%25A9%2F1 HTTP/1.1\r\n")


def test_two_retry_after_headers_and_odd_bytes_do_no_harm() -> None:
    served = Served(response(429, b"", "Retry-After: 3", "Retry-After: 4"), response(429, b"", "Retry-After: \xe9\xff"))
    for answer in ask(served, "send", "send"):
        assert isinstance(answer, Later)


def test_a_refusal_is_one() -> None:
    (answer,) = ask(Served(response(422, b"<html>")), "send")
    assert isinstance(answer, Refused)


@pytest.mark.parametrize("token", ["secret\n", "sécret", "a\x00b", " a"])
def test_a_token_that_no_header_can_hold_stops_the_process(token: str) -> None:
    with pytest.raises(OperationError, match="token"):
        PROVIDER.connect(Endpoint("http://127.0.0.1:1", token), 1)


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://host/x", "http://", "https:///path", "http://[::1"])
def test_a_url_that_can_never_be_called_stops_the_process(url: str) -> None:
    with pytest.raises(OperationError, match="URL"):
        PROVIDER.connect(Endpoint(url), 1)


@pytest.mark.parametrize(
    ("url", "kind"),
    [("http://127.0.0.1:1", Later), ("http://no-such-host.invalid", Later), ("http://user:p%40@127.0.0.1:1/é", Later)],
)
def test_without_a_connection_nothing_was_asked(url: str, kind: type[Answer]) -> None:
    async def run() -> Answer:
        sender = PROVIDER.connect(Endpoint(url), 1)
        try:
            return await sender.send(CALL)
        finally:
            await sender.close()

    assert isinstance(asyncio.run(run()), kind)


def test_a_certificate_that_nobody_vouches_for_holds_the_channel(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(chain)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)

    async def run() -> Answer:
        server = await asyncio.start_server(Served().handle, "127.0.0.1", ssl=context)
        sender = PROVIDER.connect(Endpoint(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"), 1)
        try:
            return await sender.send(CALL)
        finally:
            await sender.close()
            server.close()

    assert isinstance(asyncio.run(run()), Held)
