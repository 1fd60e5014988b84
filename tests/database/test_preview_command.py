"""`bulklane preview` against a real database, and what it shows."""

import io
import json

import pytest
from rich.console import Console
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from bulklane import Channel, HttpProvider, Limits
from bulklane.database.chunk_plan import OwedEffect
from bulklane.operations.channel import ChannelSettings
from bulklane.starter.cli import app
from bulklane.starter.forecast import forecast_effects
from bulklane.starter.show_preview import preview_json, print_preview
from tests.database.jobs import accepted, opened
from tests.support import kinds
from tests.support.kinds import make_tables
from tests.support.ledgers import AddToEntries, make_entries
from tests.support.people import EditPeople, make_people
from tests.support.previews import nothing_left, previewed

CALLS = {
    "calls": Channel(
        "calls", HttpProvider(path="/", judge=lambda status, body: None), limits=Limits(rate=4.0, tenant_rate=2.0)
    )
}


def command(url: str, *words: str) -> tuple[int, str, str]:
    """Exit code, and what was said on both."""
    environment = {"BULKLANE_DATABASE_URL": url, "BULKLANE_OPERATIONS": kinds.MODULE, "BULKLANE_WHO": "ann"}
    result = CliRunner(env=environment).invoke(app, ["preview", "numbered", "--tenant", "acme", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_it_shows_and_stores_nothing(engine: Engine, database_url: str) -> None:
    make_tables(engine, numbered=[1, 2, 3])
    with nothing_left(engine):
        code, told, _ = command(database_url, "--ids", "1,3,3,9", "--priority", "2", "--why", "to see")
    assert code == 0
    for line in (
        "preview       numbered for acme, ids: nothing was stored",
        "records       3; 2 of them are there now; 1 ids came more than once",
        "lane          small",
        "resources     free",
        "sample        2 changed, 1 not found",
        "indexes       lead to the rows",
    ):
        assert line in told.splitlines()
    assert "n: 0 → 1" in told


def test_it_shows_json(engine: Engine, database_url: str) -> None:
    make_tables(engine, numbered=[2**62, 7])
    with nothing_left(engine):
        code, told, _ = command(database_url, "--all", "--json", "--sample", "1")
    shown = json.loads(told)
    assert code == 0
    assert shown["count"] == {"records": 2, "exact": True, "about": None, "present": None, "duplicates": 0}
    assert (shown["lane"], shown["outcomes"], len(shown["sample"])) == ("small", {"changed": 1}, 1)
    assert shown["sample"][0]["before"]["id"] in (2**62, 7)
    assert shown["sample"][0]["differing"] == ["n", "row_version"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "selection: needs exactly one of"),
        (("--ids", "1", "--sample", "500"), "sample: 500 is no whole number from 1 to 100"),
        (("--ids", "1.0"), "selection.ids[0]: '1.0' is no whole number"),
        (("--all", "--parallelism", "0"), "parallelism: 0 is no whole number"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told(engine: Engine, database_url: str, words: tuple[str, ...], complaint: str) -> None:
    make_tables(engine, numbered=[1])
    code, _, complaints = command(database_url, *words)
    assert code == 2
    assert complaints.startswith(complaint)


def test_a_row_that_others_hold_is_told(engine: Engine, database_url: str) -> None:
    make_tables(engine, numbered=[1])
    with engine.begin() as user:
        user.execute(text("SELECT FROM numbered FOR UPDATE"))
        code, _, complaints = command(database_url, "--all")
    assert code == 5
    assert "is locked by another transaction" in complaints


def test_failures_effects_and_rates_are_shown(engine: Engine) -> None:
    make_people(engine, 40)
    with engine.begin() as connection:
        connection.execute(text("UPDATE person SET name = 'fail' WHERE id = 2"))
    found = previewed(engine, EditPeople(), {"ids": [1, 2, 3, 4]}, channels=CALLS)
    (effect,) = found.effects
    assert (effect.in_sample, effect.in_all, effect.seconds) == (3, 3, 1.5)
    out = io.StringIO()
    print_preview(Console(file=out, width=160, highlight=False, markup=False, soft_wrap=True), found)
    shown = out.getvalue()
    assert (
        "would owe     call to calls: 3 in the sample, about 3 in all, which the channel's rate makes last 1.5 s"
        in shown
    )
    assert "failed (too_odd: its name says so)" in shown
    assert '1 owes call to calls: {"n": 1, "id": 1}' in shown
    assert "no job of this operation has run yet" in shown


def test_a_deployments_rates_go_over_the_channels_own(engine: Engine) -> None:
    make_people(engine, 4)
    found = previewed(engine, EditPeople(), {"all": True}, channels=CALLS)
    effects = [OwedEffect("call", "calls", None)]
    for settings, seconds in (({"rate": 1.0}, 4.0), ({"tenant_rate": 8.0}, 1.0), ({}, 2.0)):
        over = {"calls": ChannelSettings(url="http://x", **settings)}
        (forecast,) = forecast_effects(effects, found.sample, 4, CALLS, over)
        assert forecast.seconds == seconds


def test_a_holder_and_times_are_shown(engine: Engine) -> None:
    make_entries(engine, 2)
    job = opened(engine, accepted(engine))
    found = previewed(engine, AddToEntries(), {"all": True})
    out = io.StringIO()
    print_preview(Console(file=out, width=160, highlight=False, markup=False, soft_wrap=True), found)
    assert f"resources     add_to_entries:acme is owned by job {job.job_id} (walking) since 20" in out.getvalue()
    shown = json.loads(json.dumps(preview_json(found)))
    assert shown["holders"][0]["job_id"] == job.job_id
    assert shown["sample"][0]["before"]["booked_at"] == "2026-03-29T12:00:00+00:00"
