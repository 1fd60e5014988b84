"""`bulklane up` as a user runs it: one terminal that runs the stack, others that speak to it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bulklane.stack import Stack
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BULKLANE = [sys.executable, "-m", "bulklane.starter.cli"]
READY_SECONDS = 150.0  # the servers take some 15 s; a machine that is shared takes its time
STOP_SECONDS = 60.0
OURS = ("BULKLANE_", "DATABASE_URL", "TEMPORAL_", "OPENSEARCH_URL")
# the first start on a machine with an empty cache isn't what is measured here
pytestmark = pytest.mark.timeout(300)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def bulklane(*words: str, stdin: str | None = None, expect: int = 0) -> str:
    done = subprocess.run(
        [*BULKLANE, *words],
        cwd=ROOT,
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if expect == 0 else done.stderr or done.stdout


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="bl-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stack that is ready. Ended by SIGTERM at the latest here; its end is a test of its own."""
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*BULKLANE, "up", "--folder", str(folder / "run"), "--bulk-workers", "1"],
            cwd=ROOT,
            env=environment(),
            stdout=log,
            stderr=log,
        )

    def said() -> str:
        return (folder / "up.log").read_text(errors="replace")

    def is_ready() -> bool:
        assert process.poll() is None, f"up ended with {process.returncode}: {said()}"
        return "Bulklane is up after" in said()

    try:
        until(is_ready, READY_SECONDS, what="bulklane up is ready")
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def run(up: subprocess.Popen[bytes], folder: Path) -> str:
    del up
    return str(folder / "run")


def read_env(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bulklane("env", "--folder", run, "--json"))
    return found


def test_it_says_what_it_did_and_where_things_are(run: str, folder: Path) -> None:
    said = (folder / "up.log").read_text()
    for step in ("PostgreSQL is ready after", "Temporal is ready after", "OpenSearch is ready after"):
        assert step in said
    assert "5 workers serve after" in said
    found = read_env(run)
    assert found["ready"] is True
    for name in ("temporal_ui_url", "opensearch_url", "database_url"):
        assert found[name]
    assert {"small", "control", "bulk-1", "effects-notices", "effects-flights_index", "provider"} <= set(found["pids"])


def test_the_environment_is_one_for_a_shell(run: str) -> None:
    lines = bulklane("env", "--folder", run, "--export")
    script = f"{lines}\nexec {sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    done = subprocess.run(["sh", "-c", script], env=environment(), capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    wanted = read_env(run)["environment"]
    assert {name: told[name] for name in wanted} == wanted
    assert {"BULKLANE_DATABASE_URL", "TEMPORAL_ADDRESS", "BULKLANE_OPERATIONS"} <= set(wanted)


def test_a_small_job_goes_through_and_its_balance_holds(run: str) -> None:
    told = bulklane(
        "submit", "reschedule_flights", "--folder", run, "--tenant", "OO", "--all", "-p", "minutes=15", "--job-id",
        "all-of-oo", "--why", "fog", "--watch",
    )  # fmt: skip
    assert "job all-of-oo is accepted: small lane, 32 rows" in told
    assert "job all-of-oo is completed after" in told
    status = json.loads(bulklane("status", "all-of-oo", "--folder", run, "--json"))
    assert status["state"] == "completed"
    assert (status["total"], status["changed"], status["owed"], status["why"]) == (32, 32, 0, "fog")
    assert status["deliveries"]["notices"] == {"done": 32}
    report = json.loads(bulklane("verify", "all-of-oo", "--folder", run, "--json"))
    assert report["holds"], report


def test_the_same_job_again_is_a_replay_and_other_content_is_refused(run: str) -> None:
    words = ("submit", "reschedule_flights", "--folder", run, "--tenant", "OO", "--job-id", "twice", "-p", "minutes=1")
    ids = "5000\n5001\n5001\n"
    first = json.loads(bulklane(*words, "--ids-file", "-", "--json", stdin=ids))
    again = json.loads(bulklane(*words, "--ids", "5001,5000", "--json"))
    assert (first["replayed"], first["duplicates"], again["replayed"]) == (False, 1, True)
    assert "twice" in bulklane(*words, "--ids", "5002", expect=3)
    assert "is completed" in bulklane("watch", "twice", "--folder", run)


def test_what_cannot_be_is_refused_with_its_places(run: str) -> None:
    told = bulklane(
        "submit", "reschedule_flights", "--folder", run, "--tenant", "OO", "--ids", "1,1.5", "-p", "minutes=9999",
        expect=2,
    )  # fmt: skip
    assert "parameters.minutes: 9999: " in told
    assert "selection.ids[1]: '1.5' is no whole number" in told
    assert "no job 'nobody'" in bulklane("status", "nobody", "--folder", run, expect=4)


def test_verbs_answer_with_the_state_and_the_holder_is_named(run: str) -> None:
    submit = ("submit", "reschedule_flights", "--folder", run, "--tenant", "UA", "-p", "minutes=1")
    job_id = json.loads(bulklane(*submit, "--all", "--json"))["job_id"]
    paused = json.loads(bulklane("pause", job_id, "--folder", run, "--who", "ann", "--json"))
    assert paused["state"] in ("pausing", "paused")
    assert paused["wish"] == "pause"
    until(lambda: json.loads(bulklane("status", job_id, "--folder", run, "--json"))["state"] == "paused")
    if json.loads(bulklane("status", job_id, "--folder", run, "--json"))["released_at"] is None:
        assert f"job {job_id} (paused) owns" in bulklane(*submit, "--ids", "1", expect=3)
    cancelled = json.loads(bulklane("cancel", job_id, "--folder", run, "--json"))
    assert cancelled["state"] in ("cancelling", "cancelled")


def test_install_is_repeatable(run: str) -> None:
    assert "row version triggers: flights" in bulklane("install", "--folder", run)


def test_a_second_stack_in_the_folder_is_refused(run: str, up: subprocess.Popen[bytes]) -> None:
    assert f"owned by process {up.pid}" in bulklane("up", "--folder", run, expect=5)
    assert read_env(run)["owner"] == up.pid


def test_sigterm_ends_all_that_it_started(run: str, up: subprocess.Popen[bytes], folder: Path) -> None:
    started = [psutil.Process(number) for number in read_env(run)["pids"].values()]
    assert len(started) >= 9
    up.send_signal(signal.SIGTERM)
    assert up.wait(STOP_SECONDS) == 0, (folder / "up.log").read_text()
    assert [process for process in started if process.is_running()] == []
    assert Stack.read(Path(run)) is None
    assert "no stack runs" in bulklane("env", "--folder", run, expect=1)
