"""Inputs that are easily taken for others: taken exactly as they are, by both doors, and walked to the end."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from bulklane.contracts.job import JobState
from bulklane.database.accept import Conflict
from bulklane.starter.status import read_status
from tests.database.jobs import counts, rows
from tests.support.doors import NOBODY, Doors
from tests.support.kinds import make_tables

UUID_TEXT = "0a1b2c3d-1111-4222-8333-0123456789ab"
SPELLINGS = [UUID_TEXT.upper(), UUID_TEXT.replace("-", ""), f"{{{UUID_TEXT}}}", f"urn:uuid:{UUID_TEXT}"]
NONE = {"filter": {"field": "id", "value": 99}}


@pytest.fixture
def doors(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Doors:
    """Both, with a few rows."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", NOBODY)
    make_tables(engine, numbered=[1, 2], narrow=[1], named=["ab"], unique_ids=[UUID_TEXT])
    return Doors(engine, database_url)


@pytest.mark.case("C37")
def test_all_must_be_said_and_its_count_is_known_before_it_starts(doors: Doors) -> None:
    submitted = doors.submit("numbered", {"all": True})
    with doors.engine.connect() as connection:
        assert read_status(connection, submitted.job_id).total == 2
    assert rows(doors.engine, "SELECT DISTINCT n FROM numbered") == [(0,)]


@pytest.mark.case("C37")
def test_a_filter_that_matches_nothing_succeeds_at_once(doors: Doors) -> None:
    submitted = doors.submit("numbered", NONE)
    ended = doors.run(submitted)
    assert (ended.state, ended.changed) == (JobState.COMPLETED, 0)
    assert rows(doors.engine, "SELECT total FROM bulklane.selection") == [(0,)]
    assert (counts(doors.engine)["lease"], counts(doors.engine)["owed"]) == (0, 0)
    assert rows(doors.engine, "SELECT DISTINCT n FROM numbered") == [(0,)]


def test_a_time_that_is_taken_is_stored_as_an_instant(doors: Doors) -> None:
    submitted = doors.submit("numbered", {"all": True}, {"at": "2026-03-29T14:30:00.5+02:00", "day": "2026-03-29"})
    stored = rows(doors.engine, "SELECT (parameters->>'at')::timestamptz = '2026-03-29T12:30:00.5Z' FROM bulklane.job")
    assert stored == [(True,)]
    assert doors.run(submitted).changed == 2


def test_the_exact_record_is_changed_and_reported(doors: Doors) -> None:
    """The neighbour that a double can't tell from it stays as it is, and what no column holds is not found."""
    with doors.engine.begin() as connection:
        connection.execute(text("INSERT INTO numbered (id) VALUES (9007199254740992), (9007199254740993)"))
    ids = [9007199254740993, 0, -1, 9223372036854775807]
    ended = doors.run(doors.submit("numbered", {"ids": ids}))
    assert (ended.changed, ended.not_found) == (1, 3)
    assert rows(doors.engine, "SELECT id FROM numbered WHERE n > 0") == [(9007199254740993,)]
    reported = rows(doors.engine, "SELECT key FROM bulklane.outcome ORDER BY key::bigint")
    assert reported == [("-1",), ("0",), ("9223372036854775807",)]
    assert doors.command("numbered", "--ids", "9007199254740993")[0] == 0
    ended = doors.run(doors.submit("narrow", {"ids": [1, 2147483648]}))
    assert (ended.changed, ended.not_found) == (1, 1)


def test_texts_that_look_alike_are_other_records(doors: Doors) -> None:
    """Composed and decomposed, upper and lower, with and without a space."""
    names = ["\u00e9", "e\u0301", "AB", "ab "]
    with doors.engine.begin() as connection:
        connection.execute(text("INSERT INTO named (id) VALUES (:id)"), [{"id": name} for name in names])
    ended = doors.run(doors.submit("named", {"ids": ["e\u0301", "ab ", "Ab", "ab", "ab"]}))
    assert (ended.changed, ended.not_found) == (3, 1)
    assert rows(doors.engine, "SELECT duplicates FROM bulklane.selection") == [(1,)]
    changed = rows(doors.engine, 'SELECT id FROM named WHERE n = 1 ORDER BY id COLLATE "C"')
    assert changed == [("ab",), ("ab ",), ("e\u0301",)]


@pytest.mark.case("C41")
def test_four_spellings_of_a_uuid_are_one_record(doors: Doors, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("\n".join(SPELLINGS))
    assert doors.command("unique_ids", "--ids-file", str(tmp_path / "ids"), "--job-id", "typed")[0] == 0
    replayed = doors.submit("unique_ids", {"ids": [UUID_TEXT] * 4}, job_id="typed")
    assert replayed.replayed, "the same content, however it is spelled"
    assert rows(doors.engine, "SELECT total, duplicates FROM bulklane.selection") == [(1, 3)]
    assert doors.run(replayed).changed == 1
    assert rows(doors.engine, "SELECT n FROM unique_ids") == [(1,)]


@pytest.mark.case("C41")
def test_an_absent_uuid_is_reported_in_canonical_form(doors: Doors) -> None:
    absent = UUID_TEXT.replace("0", "f")
    assert doors.run(doors.submit("unique_ids", {"ids": [absent.upper()]})).not_found == 1
    assert rows(doors.engine, "SELECT key FROM bulklane.outcome") == [(absent,)]


@pytest.mark.case("C41")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_conflict_is_seen_between_spellings(doors: Doors, spelling: str) -> None:
    """ramsey/uuid#131: a lock on the lower-case form, another on the upper-case one, and two owners."""
    doors.submit("by_account", {"all": True}, {"account": UUID_TEXT}, job_id="lower")
    before = counts(doors.engine)
    with pytest.raises(Conflict, match=f"job lower .* owns account:acme:{UUID_TEXT}") as refusal:
        doors.submit("by_account", {"all": True}, {"account": spelling})
    assert refusal.value.holder.job_id == "lower"
    assert counts(doors.engine) == before


@pytest.mark.case("C41")
def test_texts_are_leases_byte_for_byte(doors: Doors) -> None:
    for label in ("\u00e9", "e\u0301", "ab", "AB", "ab "):
        doors.submit("by_account", {"all": True}, {"label": label})
    assert counts(doors.engine)["lease"] == 5
    with pytest.raises(Conflict):
        doors.submit("by_account", {"all": True}, {"label": "ab "})
