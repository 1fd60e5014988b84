"""A provider over HTTP: one POST per record with an idempotency key, and a look-up by key."""

import json
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import OperationError
from bulklane.operations.retry_after import retry_after_seconds
from bulklane.operations.sender import Answer, Call, Done, Held, Later, NoLookUp, Refused, Unknown

Judge = Callable[[int, Mapping[str, Any]], Answer | None]

# bytes; an answer says in a few hundred what became of one record
LONGEST_ANSWER = 2**20

_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_NO_LOOK_UP = (HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE, HTTPStatus.NOT_IMPLEMENTED)
_NEVER_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_HELD = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True)
class HttpProvider:
    """How a provider is called.

    `judge` reads status and JSON body of an answer with a readable body, and says what it means; None leaves it to the
    rules of HTTP: 4xx is a refusal, everything else unknown. `done_if_empty`: the statuses that mean *done* where
    there is no body (204, for some). `refusing`: 5xx statuses that prove that nothing was done and nothing will be.
    `look_up_path` holds `{key}`. `call_seconds`: for the connection and for each wait for bytes; the whole call has the
    channel's.
    """

    path: str
    judge: Judge
    look_up_path: str | None = None
    judge_look_up: Judge | None = None
    key_header: str = "Idempotency-Key"
    done_if_empty: frozenset[int] = frozenset()
    refusing: frozenset[int] = frozenset()
    call_seconds: float = 10.0

    def connect(self, endpoint: Endpoint, concurrency: int) -> "HttpProviderSender":
        """A sender with as many connections as calls at once. Raises OperationError for an endpoint that can't do."""
        _check(endpoint)
        # httpx's own pool is quadratic in its connections (encode/httpx#3215)
        transport = AiohttpTransport(verify=_trusted(), client=partial(_session, concurrency))
        return HttpProviderSender(self, endpoint, transport)


class HttpProviderSender:
    """Sends to one provider; never re-sends by itself, follows no redirect and keeps no cookie.

    It speaks to the transport: what httpx's client does around it (merging, redirects, cookies) isn't wanted here, and
    takes as much time as the call.
    """

    def __init__(self, provider: HttpProvider, endpoint: Endpoint, transport: httpx.AsyncBaseTransport) -> None:
        self._provider = provider
        self._transport = transport
        self._base = httpx.URL(endpoint.url)
        self._headers = {"Accept": "*/*", "User-Agent": "bulklane"} | _authorization(self._base, endpoint.token)
        self._post_url = self._url(provider.path)
        self._extensions = {"timeout": httpx.Timeout(provider.call_seconds).as_dict()}

    async def send(self, call: Call) -> Answer:
        """One POST; what its answer, or the lack of one, says of the effect."""
        headers = {self._provider.key_header: call.idempotency_key, "Content-Type": "application/json"}
        try:
            response = await self._answer("POST", self._post_url, headers, call.body.encode())
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            if isinstance(error.__cause__, aiohttp.ClientConnectorCertificateError):
                return Held("the provider's certificate can't be trusted: check the channel's URL and the certificates")
            if isinstance(error.__cause__, _NEVER_CONNECTED):
                # the connection was never made, so nothing was asked
                return Later(reason=f"no connection: {_short(error.__cause__)}")
            return Unknown(f"no answer: {_short(error.__cause__ or error)}")
        if response.content == b"" and response.status_code in self._provider.done_if_empty:
            return Done(str(response.status_code))
        return self._judge(response, self._provider.judge)

    async def look_up(self, call: Call) -> Answer | None:
        """What the provider knows of the key; None where it knows nothing. Raises NoLookUp."""
        if self._provider.look_up_path is None or self._provider.judge_look_up is None:
            raise NoLookUp("the channel has no look-up")
        path = self._provider.look_up_path.format(key=quote(call.idempotency_key, safe=""))
        try:
            response = await self._answer("GET", self._url(path), {}, b"")
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            return Unknown(f"no answer: {_short(error.__cause__ or error)}")
        status = response.status_code
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status in _NO_LOOK_UP:
            raise NoLookUp(f"the look-up answered {status}")
        if status == HTTPStatus.OK or status in _HELD or status in _LATER:
            return self._judge(response, self._provider.judge_look_up)
        return Unknown(f"the look-up answered {status}")

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    def _url(self, path: str) -> httpx.URL:
        raw = self._base.raw_path.rstrip(b"/") + b"/" + path.lstrip("/").encode()
        return self._base.copy_with(raw_path=raw, userinfo=b"")

    async def _answer(self, method: str, url: httpx.URL, headers: Mapping[str, str], content: bytes) -> "_Response":
        whole = {**self._headers, **headers}
        request = httpx.Request(method, url, headers=whole, content=content, extensions=self._extensions)
        response = await self._transport.handle_async_request(request)
        try:
            return _Response(response.status_code, response.headers, await _read(response))
        finally:
            await response.aclose()

    def _judge(self, response: "_Response", judge: Judge) -> Answer:
        status = response.status_code
        if status in _HELD:
            return Held(f"the provider answered {status}: check the channel's credentials")
        if status in _LATER:
            headers = response.headers
            wait = retry_after_seconds(headers.get("Retry-After"), datetime.now(UTC), headers.get("Date"))
            return Later(wait, f"the provider answered {status}")
        body = _json_object(response.content)
        judged = None if body is None else judge(status, body)
        if judged is not None:
            return judged
        if status == HTTPStatus.REQUEST_TIMEOUT:
            # RFC 9110 section 15.5.9: it gave up waiting for the request, or for what stands behind it
            return Unknown(f"the provider answered {status}")
        if status in self._provider.refusing or HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return Refused(str(status), "the provider refused the request")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Unknown(f"the provider answered {status}")
        return Unknown(f"the provider answered {status} with a body that doesn't say whether it was done")


def _check(endpoint: Endpoint) -> None:
    # else each call would fail here, and each record be in doubt for it
    try:
        url = httpx.URL(endpoint.url)
    except (httpx.InvalidURL, UnicodeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise OperationError("an HTTP channel's URL is https://host/path or http://host:port/path")
    token = endpoint.token or ""
    if not (token.isascii() and token.isprintable()) or token != token.strip():
        raise OperationError(
            "an HTTP channel's token must be of printable ASCII characters without blanks around it: it goes into a"
            " header; does its secret end in a line break?"
        )


def _authorization(url: httpx.URL, token: str | None) -> dict[str, str]:
    if token:
        return {"Authorization": f"Bearer {token}"}
    if url.userinfo:
        # RFC 7617, of a URL with user and password
        return {"Authorization": f"Basic {b64encode(f'{url.username}:{url.password}'.encode()).decode()}"}
    return {}


@cache
def _trusted() -> ssl.SSLContext:
    """The certificates that are trusted; reading them takes a tenth of a second, in which nothing else would run."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class _Response:
    """An answer. `content` None: it is longer than is read."""

    status_code: int
    headers: httpx.Headers
    content: bytes | None


async def _read(response: httpx.Response) -> bytes | None:
    content = b""
    async for part in response.aiter_bytes():
        content += part
        if len(content) > LONGEST_ANSWER:
            return None
    return content


def _session(concurrency: int) -> aiohttp.ClientSession:
    """Made in the event loop that it serves. What one call is given as a cookie is none of the next one's."""
    connector = aiohttp.TCPConnector(limit=concurrency, ssl=_trusted())
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _json_object(content: bytes | None) -> Mapping[str, Any] | None:
    if content is None:
        return None
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _short(error: BaseException) -> str:
    # the class alone: a message may quote addresses with credentials or record content
    return type(error).__name__
