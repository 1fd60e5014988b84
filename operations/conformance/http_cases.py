"""What a provider over HTTP does to a sender, and what the sender may make of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from bulklane.operations.conformance.finding import Rule
from bulklane.operations.conformance.sample import HttpSample
from bulklane.operations.conformance.scripted_http import Cut, Reaction, Reply, Silence
from bulklane.operations.sender import Done, Held, Later, NoLookUp, Refused, Unknown

ELSEWHERE = "/conformance-elsewhere"
LONGEST_WAIT = 24 * 3600.0
_HTML = "<html><body>We will be back soon.</body></html>"
_MAY = "it may have happened"
_NOT = "the provider refuses, and says so again each time"
_CREDENTIALS = "the credentials are wrong: no record is to blame, and all others would fail too"
_BUSY = "the provider has done nothing and asks to come back"
_LOOK_UP = "an unreadable look-up proves nothing"
_NOTHING_SAID = (Unknown, Later, Held, NoLookUp)


@dataclass(frozen=True)
class Case:
    """What the provider does to every request, and the rule for the answer. `wait`: how long to wait, where Later."""

    rule: Rule
    reaction: Reaction
    wait: tuple[float, float] | None = None


def send_cases(sample: HttpSample) -> list[Case]:
    """For a call."""
    truncated = sample.ok.body[: max(1, len(sample.ok.body) // 2)]
    cases = [
        _case("the provider's own success", sample.ok, Done, why="that is what the provider says when it was done"),
        _case("204 without a body", Reply(204), Unknown, why=f"it says nothing of the effect: {_MAY}"),
        _case("200 with an empty body", Reply(200), Unknown, why=_MAY),
        _case("200 with an HTML body", Reply(200, _HTML, "text/html"), Unknown, why=f"a proxy may say so; {_MAY}"),
        _case("200 with truncated JSON", Reply(200, truncated), Unknown, why=_MAY),
        _case("200 with a JSON array", Reply(200, "[1]"), Unknown, why=_MAY),
        _case("an answer that ends too soon", Cut(sample.ok.encoded()[:-2]), Unknown, why=_MAY),
        _case("redirect 302", Reply(302, headers={"Location": ELSEWHERE}), Unknown, why=_MAY),
        _case("redirect 308", Reply(308, headers={"Location": ELSEWHERE}), Unknown, why=_MAY),
        _case("500", Reply(500, '{"error":"internal"}'), Unknown, why=f"nothing proves a refusal: {_MAY}"),
        _case("500 with an empty body", Reply(500), Unknown, why=_MAY),
        _case("502 from a proxy", Reply(502, _HTML, "text/html"), Unknown, why=_MAY),
        _case("silence", Silence(), Unknown, why=_MAY),
        _case("reset after the request was read", Cut(reset=True), Unknown, why=_MAY),
        _case("closed after the request was read", Cut(), Unknown, why=_MAY),
        _case("no HTTP at all", Cut(b"SSH-2.0-OpenSSH_9.9\r\n"), Unknown, why=_MAY),
        *(_case(str(status), Reply(status, "{}"), Refused, why=_NOT) for status in (400, 404, 409, 422)),
        *(_case(str(status), Reply(status, "{}"), Held, why=_CREDENTIALS) for status in (401, 403)),
        *retry_after_cases(),
    ]
    if sample.error is not None:
        cases.append(_case("the provider's own error", sample.error, Refused, Unknown, why="the body says so"))
    return cases


def retry_after_cases() -> list[Case]:
    """For 429 and 503, with and without a readable time (RFC 9110 section 10.2.3)."""
    now = datetime.now(UTC)
    times: Mapping[str, tuple[str, tuple[float, float] | None]] = {
        "in seconds": ("7", (7.0, 7.0)),
        "as a fraction": ("1.5", (1.5, 2.0)),
        "as a date": (format_datetime(now + timedelta(seconds=60), usegmt=True), (30.0, 61.0)),
        "negative": ("-5", None),
        "past": (format_datetime(now - timedelta(days=1), usegmt=True), None),
        "garbage": ("soon", None),
        "of 400 digits": ("9" * 400, (1.0, LONGEST_WAIT)),
    }
    timed = [
        Case(Rule(f"429 with a Retry-After {name}", (Later,), _BUSY), Reply(429, headers={"Retry-After": value}), wait)
        for name, (value, wait) in times.items()
    ]
    return [*timed, _case("429", Reply(429), Later, why=_BUSY), _case("503", Reply(503), Later, why=_BUSY)]


def look_up_cases(sample: HttpSample) -> list[Case]:
    """For a look-up, where the channel has one."""
    cases = [
        _case("look-up: 404", Reply(404, "{}"), type(None), Unknown, why="a key that isn't known is no refusal"),
        _case("look-up: 500", Reply(500), *_NOTHING_SAID, why=_LOOK_UP),
        _case("look-up: an HTML body", Reply(200, _HTML, "text/html"), *_NOTHING_SAID, why=_LOOK_UP),
        _case("look-up: an empty body", Reply(200), *_NOTHING_SAID, why=_LOOK_UP),
        _case("look-up: silence", Silence(), *_NOTHING_SAID, why=_LOOK_UP),
        _case("look-up: reset", Cut(reset=True), *_NOTHING_SAID, why=_LOOK_UP),
        _case("look-up: 401", Reply(401), *_NOTHING_SAID, why=_LOOK_UP),
    ]
    if sample.known is not None:
        cases.append(_case("look-up: the provider knows the key", sample.known, Done, why="it was done"))
    return cases


def _case(name: str, reaction: Reaction, *allowed: type, why: str) -> Case:
    return Case(Rule(name, allowed, why), reaction)
