"""The conformance check: it finds what each wrong sender gets wrong, and nothing in the right ones."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bulklane import Channel, Done, Endpoint, Held, HttpProvider, HttpSample, Later, Refused, Reply, Unknown
from bulklane import check_channel as check
from bulklane.operations.operation import OperationError
from bulklane.operations.retry_after import retry_after_seconds
from bulklane.operations.sender import Answer, Call, NoLookUp
from bulklane.operations.senders.search_index import SearchIndex
from examples.flights import operation as flights

# a busy machine must not look like a provider's silence
PATIENT = 3.0
SAMPLE = HttpSample(
    ok=Reply(201, '{"status":"sent"}'),
    error=Reply(200, '{"status":"error"}'),
    known=Reply(200, '{"status":"sent"}'),
)


class OwnSender:
    """A team's own sender, right in all it does; each wrong one below differs in one way."""

    follows = False

    def __init__(self, endpoint: Endpoint) -> None:
        self.client = httpx.AsyncClient(
            base_url=endpoint.url,
            headers={"Authorization": f"Bearer {endpoint.token}"},
            follow_redirects=self.follows,
            verify=False,
            trust_env=False,
        )

    def connect(self, endpoint: Endpoint, concurrency: int) -> "OwnSender":
        return type(self)(endpoint)

    def key(self, call: Call) -> dict[str, str]:
        return {"Idempotency-Key": call.idempotency_key}

    def body(self, call: Call) -> str:
        return call.body

    async def post(self, call: Call) -> httpx.Response:
        return await self.client.post("/notices", content=self.body(call), headers=self.key(call))

    async def send(self, call: Call) -> Answer:
        try:
            return self.judge(await self.post(call))
        except httpx.ConnectError:
            return Later()
        except httpx.HTTPError:
            return self.no_answer()

    def no_answer(self) -> Answer:
        return Unknown("no answer")

    def judge(self, response: httpx.Response) -> Answer:
        status = response.status_code
        if status in (401, 403):
            return Held("credentials")
        if status in (429, 503):
            return Later(self.wait(response))
        if 400 <= status < 500:
            return Refused(str(status))
        if status in (200, 201):
            return self.judge_body(response)
        return Unknown(str(status))

    def judge_body(self, response: httpx.Response) -> Answer:
        try:
            body = response.json()
        except ValueError:
            return Unknown("no JSON")
        if not isinstance(body, dict):
            return Unknown("no object")
        known: dict[str, Answer] = {"sent": Done(), "error": Refused("error")}
        return known.get(str(body.get("status")), Unknown("?"))

    def wait(self, response: httpx.Response) -> float | None:
        return retry_after_seconds(response.headers.get("Retry-After"), datetime.now(UTC))

    async def look_up(self, call: Call) -> Answer | None:
        try:
            response = await self.client.get(f"/notices/{call.idempotency_key}")
        except httpx.HTTPError:
            return Unknown("no answer")
        return self.found(response)

    def found(self, response: httpx.Response) -> Answer | None:
        return None if response.status_code == 404 else self.judge(response)

    async def close(self) -> None:
        await self.client.aclose()


class ByStatusAlone(OwnSender):
    def judge_body(self, response: httpx.Response) -> Answer:
        return Done()


class NoContentIsDone(OwnSender):
    def judge(self, response: httpx.Response) -> Answer:
        return Done() if response.status_code == 204 else super().judge(response)


class ServerErrorIsRefused(OwnSender):
    def judge(self, response: httpx.Response) -> Answer:
        return Refused("500") if response.status_code == 500 else super().judge(response)


class RaisesForStatus(OwnSender):
    def judge(self, response: httpx.Response) -> Answer:
        if response.status_code >= 400:
            raise ValueError(f"status {response.status_code}")
        return super().judge(response)


class FailsRecordsForCredentials(OwnSender):
    def judge(self, response: httpx.Response) -> Answer:
        return Refused("401") if response.status_code == 401 else super().judge(response)


class RefusedForBeingBusy(OwnSender):
    def judge(self, response: httpx.Response) -> Answer:
        return Refused("429") if response.status_code == 429 else super().judge(response)


class RetryAfterIsAFloat(OwnSender):
    def wait(self, response: httpx.Response) -> float | None:
        return float(response.headers.get("Retry-After", 1))


class IgnoresRetryAfter(OwnSender):
    def wait(self, response: httpx.Response) -> float | None:
        return None


class FollowsRedirects(OwnSender):
    follows = True


class SendsAgain(OwnSender):
    async def post(self, call: Call) -> httpx.Response:
        try:
            return await super().post(call)
        except httpx.RemoteProtocolError:
            return await super().post(call)


class SilenceIsLater(OwnSender):
    def no_answer(self) -> Answer:
        return Later()


class NoKey(OwnSender):
    def key(self, call: Call) -> dict[str, str]:
        return {}


class FreshKey(OwnSender):
    def key(self, call: Call) -> dict[str, str]:
        return {"Idempotency-Key": str(uuid4())}


class BodyWithATime(OwnSender):
    def body(self, call: Call) -> str:
        return json.dumps({**json.loads(call.body), "at": str(uuid4())})


class BodyMadeAnew(OwnSender):
    def body(self, call: Call) -> str:
        return json.dumps(json.loads(call.body), indent=1)


class UnknownKeyIsRefused(OwnSender):
    def found(self, response: httpx.Response) -> Answer | None:
        return Refused("404") if response.status_code == 404 else super().found(response)


class SendsInsteadOfLookingUp(OwnSender):
    async def look_up(self, call: Call) -> Answer | None:
        return await self.send(call)


class AnswersATruth(OwnSender):
    async def send(self, call: Call) -> Any:
        answer = await super().send(call)
        return True if isinstance(answer, Done) else answer


WRONG: dict[type[OwnSender], str] = {
    ByStatusAlone: "200 with an HTML body: was taken as Done: it must be Unknown, since a proxy may say so;"
    " it may have happened",
    NoContentIsDone: "204 without a body: was taken as Done: it must be Unknown, since it says nothing of the effect:"
    " it may have happened",
    ServerErrorIsRefused: "500: was taken as Refused: it must be Unknown, since nothing proves a refusal:"
    " it may have happened",
    RaisesForStatus: "400: it raised ValueError instead of answering: the provider refuses, and says so again each"
    " time",
    FailsRecordsForCredentials: "401: was taken as Refused: it must be Held, since the credentials are wrong: no record"
    " is to blame, and all others would fail too",
    RefusedForBeingBusy: "429: was taken as Refused: it must be Later, since the provider has done nothing and asks to"
    " come back",
    RetryAfterIsAFloat: "429 with a Retry-After garbage: it raised ValueError instead of answering: the provider has"
    " done nothing and asks to come back",
    IgnoresRetryAfter: "429 with a Retry-After in seconds: Later(None): the wait must be from 7 to 7 seconds",
    FollowsRedirects: "redirect 308: it followed the redirect with the credentials",
    SendsAgain: "a kept connection that ends after the request was read: it made 2 requests for one call: it must make"
    " one",
    SilenceIsLater: "reset after the request was read: was taken as Later: it must be Unknown, since it may have"
    " happened",
    NoKey: "the same call twice and another once: the idempotency key is not sent",
    FreshKey: "the same call twice and another once: the key differs on the second send: header idempotency-key",
    BodyWithATime: "the same call twice and another once: the body differs on the second send",
    BodyMadeAnew: "the same call twice and another once: the body that was fixed at commit is not sent as it stands",
    UnknownKeyIsRefused: "look-up: 404: was taken as Refused: it must be None or Unknown, since a key that isn't known"
    " is no refusal",
    SendsInsteadOfLookingUp: "look-up: 404: it sent the call while it looked it up",
    AnswersATruth: "the provider's own success: it answered bool, which is none of Done or Refused or Later or Unknown"
    " or Held",
}


def channel(sender: type[OwnSender] = OwnSender, **options: Any) -> Channel:
    """A channel of a sender of one's own."""
    nowhere = Endpoint("http://127.0.0.1:9")
    return Channel("own", sender(nowhere), **{"call_seconds": 1.0, "sample": SAMPLE, **options})


def told(checked: Channel) -> list[str]:
    """What is found, in lines."""
    return [str(finding) for finding in check(checked)]


def test_nothing_is_found_in_a_sender_that_is_right() -> None:
    assert told(channel(call_seconds=PATIENT)) == []


@pytest.mark.parametrize("sender", WRONG, ids=lambda sender: sender.__name__)
def test_what_is_wrong_is_found(sender: type[OwnSender]) -> None:
    assert WRONG[sender] in told(channel(sender))


def test_the_shipped_sender_is_right() -> None:
    (notices,) = (one for one in flights.CHANNELS if one.name == "notices")
    assert told(replace(notices, call_seconds=PATIENT)) == []


@pytest.mark.slow
def test_the_shipped_sender_without_a_look_up_is_right() -> None:
    provider = HttpProvider("/notices", judge=flights.judge_notice)
    assert told(channel(sample=replace(SAMPLE, known=None), sender=lambda _: provider, call_seconds=PATIENT)) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_channel_may_mean_another_answer_on_purpose() -> None:
    sample = replace(SAMPLE, deliberate={"204 without a body": Done})
    assert told(channel(NoContentIsDone, sample=sample, call_seconds=PATIENT)) == []


@pytest.mark.slow
def test_without_keys_none_need_be_sent() -> None:
    assert told(channel(NoKey, keeps_keys=False, call_seconds=PATIENT)) == []


@pytest.mark.slow
def test_a_sender_without_look_up_is_not_asked() -> None:
    class Silent(OwnSender):
        async def look_up(self, call: Call) -> Answer | None:
            raise NoLookUp("none here")

    assert told(channel(Silent, call_seconds=PATIENT)) == []


def test_a_channel_without_a_sample_or_without_calls_says_so() -> None:
    with pytest.raises(OperationError, match="has no `sample`"):
        check(channel(sample=None))
    with pytest.raises(OperationError, match="search index"):
        check(Channel("flights_index", SearchIndex(alias="flights")))
