"""The passenger-notice provider as its callers meet it: a process of its own, over HTTP."""

import hashlib
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

ROOT = Path(__file__).parents[2]
NOTICE = {"record": 17, "text": "moved by an hour"}
PATIENCE = 20.0


class Provider:
    """A running provider and a client of it."""

    def __init__(self, data: Path, *options: str) -> None:
        command = [sys.executable, "-m", "examples.flights.provider", "--port", "0", "--data", str(data), *options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if readable else ""
        if not line.startswith("listening on http://127.0.0.1:"):
            self.process.kill()
            pytest.fail(f"the provider said {line!r}, {self.process.communicate()[1]}")
        self.client = httpx.Client(base_url=line.split()[-1], timeout=PATIENCE, trust_env=False)

    def post(self, key: str, notice: object = NOTICE, timeout: float = PATIENCE) -> httpx.Response:
        return self.client.post("/notices", json=notice, headers={"Idempotency-Key": key}, timeout=timeout)

    def look_up(self, key: str) -> httpx.Response:
        return self.client.get(f"/notices/by-key/{quote(key, safe='')}")

    def faults(self, *faults: dict[str, Any]) -> None:
        assert self.client.put("/faults", json=list(faults)).status_code == 204

    def ledger(self, prefix: str) -> dict[str, dict[str, Any]]:
        return {line["key"]: line for line in self._lines("/ledger", prefix=prefix)}

    def applied(self, key: str) -> int:
        return int(self.ledger(key)[key]["applied"])

    def calls(self, prefix: str, method: str = "POST") -> list[dict[str, Any]]:
        return self._lines("/calls", prefix=prefix, method=method)

    def end(self, number: int) -> str:
        """End the process and return what it had to complain about."""
        self.client.close()
        self.process.send_signal(number)
        return self.process.communicate(timeout=PATIENCE)[1]

    def _lines(self, path: str, **query: str) -> list[dict[str, Any]]:
        answer = self.client.get(path, params=query)
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]


@contextmanager
def running(data: Path, *options: str) -> Iterator[Provider]:
    provider = Provider(data, *options)
    try:
        yield provider
    finally:
        if provider.process.poll() is None:
            complaints = provider.end(signal.SIGTERM)
            assert (provider.process.returncode, complaints) == (0, "")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    with running(tmp_path_factory.mktemp("provider") / "data.sqlite") as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Provider:
    """The module's provider on its best behaviour; each test uses keys of its own."""
    shared.client.delete("/faults")
    shared.client.delete("/limit")
    return shared


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"


def test_a_repeat_gets_the_first_answer(provider: Provider) -> None:
    first, second = provider.post("repeat"), provider.post("repeat")
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json() == {"status": "sent", "notice": first.json()["notice"]}
    assert (provider.ledger("repeat")["repeat"]["calls"], provider.applied("repeat")) == (2, 1)


def test_each_key_gets_a_notice_of_its_own(provider: Provider) -> None:
    assert provider.post("own/1").json()["notice"] < provider.post("own/2").json()["notice"]


def test_a_key_with_another_body_is_refused(provider: Provider) -> None:
    first = provider.post("conflict")
    other = provider.post("conflict", {"record": 18})
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    assert provider.post("conflict").json() == first.json()
    assert provider.applied("conflict") == 1


def test_a_notice_needs_a_key_and_an_object(provider: Provider) -> None:
    without = provider.client.post("/notices", json=NOTICE)
    assert (without.status_code, without.json()["code"]) == (400, "no_key")
    assert (provider.post("list", [1]).status_code, provider.ledger("list")) == (400, {})


def test_ledger_says_what_came_and_when(provider: Provider) -> None:
    before = datetime.now(UTC)
    provider.post("line", {"record": 9_007_199_254_740_993})
    sent = provider.post("line", {"record": 9_007_199_254_740_993}).request.content
    line = provider.ledger("line")["line"]
    assert line["record"] == 9_007_199_254_740_993
    assert before <= datetime.fromisoformat(line["first"]) < datetime.fromisoformat(line["last"]) <= datetime.now(UTC)
    assert line["body_sha256"] == hashlib.sha256(sent).hexdigest()


def test_ledger_and_calls_are_whole_over_many_pages(provider: Provider) -> None:
    keys = {f"many/{number}" for number in range(1_203)}
    with ThreadPoolExecutor(8) as pool:
        assert {answer.status_code for answer in pool.map(provider.post, keys)} == {201}
    provider.post("manx")
    assert provider.ledger("many/").keys() == keys
    assert sorted(call["key"] for call in provider.calls("many/")) == sorted(keys)


def test_calls_show_status_and_connection(provider: Provider) -> None:
    provider.post("seen")
    provider.post("seen", {"record": 18})
    with httpx.Client(base_url=provider.client.base_url, trust_env=False) as other:
        other.post("/notices", json=NOTICE, headers={"Idempotency-Key": "seen"})
    calls = provider.calls("seen")
    assert [call["status"] for call in calls] == [201, 422, 201]
    assert calls[1]["peer"] != calls[2]["peer"]


def test_look_up_finds_what_was_applied(provider: Provider) -> None:
    key = "job 1/räume?%2F#ß"
    sent = provider.client.post("/notices", json=NOTICE, headers={b"Idempotency-Key": key.encode()})
    assert provider.look_up(key).json() == {"status": "applied", "applied": 1, "answer": sent.json()}
    assert [call["status"] for call in provider.calls(key, "GET")] == [200]


def test_look_up_does_not_know_what_never_came(provider: Provider) -> None:
    answer = provider.look_up("never")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_key")


def test_hanging_hides_an_applied_notice(provider: Provider) -> None:
    provider.faults({"kind": "apply_then_hang", "times": 1})
    with pytest.raises(httpx.ReadTimeout):
        provider.post("hang", timeout=0.2)
    assert provider.applied("hang") == 1
    assert provider.post("hang").json() == provider.look_up("hang").json()["answer"]
    assert provider.applied("hang") == 1


def test_an_answer_after_the_silence_is_the_true_one(provider: Provider) -> None:
    provider.faults({"kind": "apply_then_hang", "seconds": 0.2})
    started = time.monotonic()
    assert provider.post("late").status_code == 201
    assert time.monotonic() - started >= 0.2


def test_a_reset_after_applying(provider: Provider) -> None:
    provider.faults({"kind": "apply_then_reset", "times": 1})
    with pytest.raises(httpx.ReadError):
        provider.post("cut")
    assert provider.applied("cut") == 1
    assert (provider.post("cut").status_code, provider.applied("cut")) == (201, 1)
    assert [call["status"] for call in provider.calls("cut")] == [None, 201]


def test_a_reset_without_applying(provider: Provider) -> None:
    provider.faults({"kind": "reset", "times": 1})
    with pytest.raises(httpx.ReadError):
        provider.post("lost")
    assert (provider.applied("lost"), provider.look_up("lost").status_code) == (0, 404)
    assert (provider.post("lost").status_code, provider.applied("lost")) == (201, 1)


@pytest.mark.parametrize("retry_after", ["7", "Wed, 21 Oct 2026 07:28:00 GMT", "soon", None])
def test_a_rate_limit_is_not_stored(provider: Provider, retry_after: str | None) -> None:
    key = f"limited/{retry_after}"
    provider.faults({"kind": "rate_limit", "times": 1, "retry_after": retry_after})
    refused = provider.post(key)
    assert (refused.status_code, refused.headers.get("Retry-After")) == (429, retry_after)
    assert (provider.applied(key), provider.look_up(key).status_code) == (0, 404)
    assert provider.post(key).status_code == 201


@pytest.mark.parametrize(
    ("fault", "status", "applied", "look_up", "repeat"),
    [
        pytest.param({"kind": "server_error"}, 500, 0, None, 201, id="500"),
        pytest.param({"kind": "server_error", "status": 503}, 503, 0, None, 201, id="503"),
        pytest.param({"kind": "server_error", "stored": True}, 500, 0, "not_applied", 500, id="500 for ever"),
        pytest.param({"kind": "server_error", "applied": True}, 500, 1, "applied", 201, id="500 but applied"),
        pytest.param(
            {"kind": "server_error", "applied": True, "stored": True},
            500,
            1,
            "applied",
            500,
            id="applied, 500 for ever",
        ),
        pytest.param({"kind": "ok_with_error"}, 200, 0, "not_applied", 200, id="200 with error"),
        pytest.param({"kind": "bad_request"}, 400, 0, "not_applied", 400, id="400"),
        pytest.param({"kind": "unauthorized"}, 401, 0, None, 201, id="401"),
        pytest.param({"kind": "empty"}, 200, 1, "applied", 201, id="empty"),
        pytest.param({"kind": "truncated"}, 200, 1, "applied", 201, id="truncated"),
        pytest.param({"kind": "html"}, 200, 0, None, 201, id="html"),
        pytest.param({"kind": "no_content"}, 204, 1, "applied", 201, id="204"),
    ],
)
def test_what_a_fault_says_applies_and_leaves(
    provider: Provider, fault: dict[str, Any], status: int, applied: int, look_up: str | None, repeat: int
) -> None:
    key = f"fault/{json.dumps(fault)}"
    provider.faults({**fault, "times": 1})
    first = provider.post(key)
    assert (first.status_code, provider.applied(key)) == (status, applied)
    assert provider.look_up(key).json()["status"] == (look_up or "error")
    second = provider.post(key)
    assert (second.status_code, provider.applied(key)) == (repeat, 1 if repeat == 201 else applied)
    assert repeat == 201 or second.text == first.text


def test_bodies_of_the_misleading_successes(provider: Provider) -> None:
    provider.faults({"kind": "ok_with_error", "keys": ["body/error"], "code": "no_seat", "message": "full"})
    assert provider.post("body/error").json() == {"status": "error", "code": "no_seat", "message": "full"}
    provider.faults({"kind": "html"})
    assert provider.post("body/html").headers["content-type"].startswith("text/html")
    provider.faults({"kind": "empty"})
    assert provider.post("body/empty").content == b""
    provider.faults({"kind": "truncated"})
    with pytest.raises(ValueError, match="Unterminated"):
        provider.post("body/truncated").json()


def test_faults_on_the_way_do_not_apply_a_stored_notice_again(provider: Provider) -> None:
    provider.post("again")
    provider.faults({"kind": "empty"})
    assert provider.post("again").content == b""
    provider.faults({"kind": "bad_request"})
    assert provider.post("again").status_code == 201
    assert provider.applied("again") == 1


def test_faults_follow_each_other_as_a_script(provider: Provider) -> None:
    provider.faults({"kind": "rate_limit", "times": 2}, {"kind": "server_error", "times": 1})
    assert [provider.post("script").status_code for _ in range(5)] == [429, 429, 500, 201, 201]
    assert provider.post("script/other").status_code == 429


def test_faults_choose_their_keys(provider: Provider) -> None:
    provider.faults({"kind": "unauthorized", "keys": ["pick/a"]}, {"kind": "server_error", "key_prefix": "pick/b"})
    answers = {key: provider.post(key).status_code for key in ("pick/a", "pick/aa", "pick/b1", "pick/c")}
    assert answers == {"pick/a": 401, "pick/aa": 201, "pick/b1": 500, "pick/c": 201}


def test_share_is_a_steady_draw_and_a_second_fault_draws_for_itself(provider: Provider) -> None:
    provider.faults({"kind": "server_error", "share": 0.2}, {"kind": "unauthorized", "share": 0.25})
    keys = [f"share/{number}" for number in range(400)]
    statuses = [provider.post(key).status_code for key in keys]
    assert 55 <= statuses.count(500) <= 105
    assert 55 <= statuses.count(401) <= 105
    assert {call["key"]: call["status"] for call in provider.calls("share/")} == dict(zip(keys, statuses, strict=True))


@pytest.mark.parametrize(
    "fault",
    [{"kind": "sloth"}, {"kind": "reset", "tmes": 1}, {"kind": "reset", "share": 2}, {"kind": "html", "stored": True}],
)
def test_a_fault_that_makes_no_sense_is_refused(provider: Provider, fault: dict[str, Any]) -> None:
    answer = provider.client.put("/faults", json=[fault])
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_faults")


def test_a_limit_lets_its_rate_through(provider: Provider) -> None:
    limit = {"rate": 20, "burst": 3, "retry_after": "5"}
    assert provider.client.put("/limit", json=limit).status_code == 204
    answers = [provider.post(f"bucket/{number}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
    assert answers[-1].headers["Retry-After"] == "5"
    wait_until(lambda: provider.post("bucket/3").status_code == 201)
    assert provider.applied("bucket/3") == 1


def test_without_idempotency_each_call_applies(tmp_path: Path) -> None:
    with running(tmp_path / "data.sqlite", "--key-lifetime", "0") as provider:
        assert provider.post("key").json() != provider.post("key").json()
        assert provider.post("key", {"record": 18}).status_code == 201
        assert provider.applied("key") == provider.look_up("key").json()["applied"] == 3


def test_a_key_is_forgotten_after_its_lifetime(tmp_path: Path) -> None:
    with running(tmp_path / "data.sqlite", "--key-lifetime", "0.5") as provider:
        assert provider.post("key").json() == provider.post("key").json()
        wait_until(lambda: provider.look_up("key").status_code == 404)
        provider.post("key")
        assert provider.applied("key") == 2


def test_look_up_can_be_missing(tmp_path: Path) -> None:
    with running(tmp_path / "data.sqlite", "--no-look-up", "--latency-ms", "60") as provider:
        started = time.monotonic()
        assert provider.post("key").status_code == 201
        assert time.monotonic() - started >= 0.06
        answer = provider.look_up("key")
        assert (answer.status_code, answer.json()["code"]) == (501, "no_look_up")


def test_answered_notices_survive_a_kill_under_load(tmp_path: Path) -> None:
    data, answered = tmp_path / "data.sqlite", dict[str, object]()

    def post_until_killed(provider: Provider, caller: int) -> None:
        for number in range(100_000):
            key = f"kill/{caller}/{number}"
            try:
                answered[key] = provider.post(key).json()
            except httpx.TransportError:
                return

    with running(data) as provider, ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(post_until_killed, provider, caller) for caller in range(4)]
        wait_until(lambda: len(answered) > 200)
        provider.process.kill()
        for caller in callers:
            caller.result(PATIENCE)
        provider.end(signal.SIGKILL)
    with running(data) as provider:
        ledger = provider.ledger("kill/")
        assert answered.keys() <= ledger.keys()
        assert {line["applied"] for line in ledger.values()} == {1}
        key = next(iter(answered))
        assert provider.post(key).json() == answered[key]
        assert provider.post("after").json()["notice"] == len(ledger) + 1
        assert provider.client.get("/healthz").json() == {"status": "ok", "notices": len(ledger) + 1}


def test_sigterm_does_not_wait_for_a_hanging_call(tmp_path: Path) -> None:
    with running(tmp_path / "data.sqlite") as provider, ThreadPoolExecutor(1) as pool:
        provider.faults({"kind": "apply_then_hang"})
        hanging = pool.submit(provider.post, "hang")
        wait_until(lambda: "hang" in provider.ledger("hang"))
        provider.process.send_signal(signal.SIGTERM)
        assert provider.process.wait(PATIENCE) == 0
        with pytest.raises(httpx.TransportError):
            hanging.result(PATIENCE)
        assert provider.end(signal.SIGKILL) == ""
