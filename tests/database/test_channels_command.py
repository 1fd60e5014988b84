"""`bulklane channels`: a table, JSON, and going on; over a real database."""

import json

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from bulklane.database import hold
from bulklane.starter.cli import app
from tests.support.calling import MODULE


@pytest.fixture(autouse=True)
def environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's settings."""
    monkeypatch.setenv("BULKLANE_DATABASE_URL", database_url)
    monkeypatch.setenv("BULKLANE_OPERATIONS", MODULE)


def run(*words: str) -> tuple[int, str]:
    """Exit code and what is said."""
    done = CliRunner().invoke(app, ["channels", *words])
    return done.exit_code, done.output


def test_channels_are_listed_and_resumed(engine: Engine) -> None:
    assert "limited" in run()[1]
    with engine.begin() as connection:
        hold.hold(connection, "limited", "the provider answered 401: check the channel's credentials")
    code, table = run()
    assert code == 0
    assert "held since" in table
    assert "401" in table
    told = {one["name"]: one for one in json.loads(run("--json")[1])}
    assert told["limited"]["held_why"].startswith("the provider answered 401")
    assert told["slow"]["held_since"] is None
    assert run("resume", "limited") == (0, "channel limited goes on within two seconds\n")
    assert run("resume", "limited")[1].strip().endswith("wasn't held: nothing is changed")
    assert "held since" not in run()[1]


def test_a_wrong_name_is_told_with_those_there_are() -> None:
    code, said = run("resume", "limits")
    assert code == 4
    assert "'limits'; known: limited, slow" in said
