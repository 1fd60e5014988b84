"""A preview runs the real chunk on a sample, tells what it did, and leaves nothing."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, Text, case, delete, text, update

from bulklane import InvalidRequest, JobIdReused, Operation, OperationError, PreviewUnable
from bulklane.contracts.key import format_key
from bulklane.operations.operation import Records
from bulklane.operations.per_record import PerRecord
from bulklane.operations.registry import load_registry
from tests.database.jobs import accepted, common_columns, look, opened, operation_on, registry_of, rows, walk
from tests.support import kinds
from tests.support.indexed import CHANNELS, TouchParcels, make_parcels
from tests.support.ledgers import FIRST, AddParameters, AddToEntries, make_entries
from tests.support.people import EditPeople, make_people, people, towns
from tests.support.previews import previewed

INDEXES = {channel.name: channel for channel in CHANNELS}
BY_ACCOUNT = {"field": "account", "op": "=", "value": "acc-1"}


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        ({"all": True}, 30),
        ({"all": True, "live": True}, 30),
        ({"filter": BY_ACCOUNT}, 10),
        ({"filter": BY_ACCOUNT, "live": True}, 10),
    ],
    ids=str,
)
def test_a_condition_shows_rows_bodies_and_counts(engine: Engine, selection: dict[str, Any], count: int) -> None:
    make_entries(engine, 30)
    make_entries(engine, 5, tenant="other")
    found = previewed(engine, AddToEntries(), selection, sample=6, parameters={"cents": 7})
    assert (found.count.records, found.count.exact, found.lane, found.live) == (
        count, True, "small", "live" in selection
    )  # fmt: skip
    assert [record.key for record in found.sample] == sorted({record.key for record in found.sample})
    assert found.outcomes == {"changed": 6}
    for record in found.sample:
        before, after = record.before, record.after
        assert before is not None
        assert after is not None
        assert record.key == format_key((before["account"], before["booked_at"]))
        assert (before["amount"], after["amount"], before["row_version"], after["row_version"]) == (0, 7, 1, 2)
        assert record.differing == ["amount", "row_version"]
        (owed,) = record.owes
        assert (owed.effect, owed.channel) == ("booking", "bookings")
        assert json.loads(owed.body or "") == {"account": before["account"], "amount": 7}
    (effect,) = found.effects
    assert (effect.in_sample, effect.in_all, effect.seconds) == (6, count, None)
    assert found.scans == []


def test_bodies_are_those_that_the_job_then_owes(engine: Engine) -> None:
    make_entries(engine, 12)
    found = previewed(engine, AddToEntries(), {"all": True}, sample=12, parameters={"cents": 3})
    job = opened(engine, accepted(engine, parallelism=1, parameters={"cents": 3}))
    walk(engine, job)
    owed = dict(rows(engine, "SELECT key, body FROM bulklane.owed, unnest(keys, bodies) AS u(key, body)"))
    assert {record.key: record.owes[0].body for record in found.sample} == owed


def test_ids_are_spread_and_the_absent_and_the_other_tenants_are_not_found(engine: Engine) -> None:
    make_people(engine, 100)
    make_people(engine, 200, tenant="other")
    found = previewed(engine, EditPeople(), {"ids": [*range(1, 111), 1, 2]}, sample=11)
    assert [record.key for record in found.sample] == [str(number) for number in range(6, 110, 10)]
    assert (found.count.records, found.count.present, found.count.duplicates) == (110, 100, 2)
    assert found.outcomes == {"changed": 10, "not_found": 1}
    assert (found.lane, found.effects[0].in_sample, found.effects[0].in_all) == ("bulk", 10, 100)
    assert (found.sample[-1].before, found.sample[-1].after, found.sample[-1].owes) == (None, None, [])


def test_a_function_of_a_record_changes_skips_and_fails(engine: Engine) -> None:
    make_people(engine, 4)
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE person SET name = CASE id WHEN 2 THEN 'skip' ELSE 'fail' END WHERE id IN (2, 3)")
        )
    found = previewed(engine, EditPeople(), {"all": True}, parameters={"by": 5})
    assert [(one.key, one.outcome, one.code, one.reason) for one in found.sample] == [
        ("1", "changed", "", ""),
        ("2", "skipped", "", "asked for"),
        ("3", "failed", "too_odd", "its name says so"),
        ("4", "changed", "", ""),
    ]
    assert found.sample[0].after == {"id": 1, "n": 5, "name": "", "row_version": 2}
    assert found.sample[0].differing == ["n", "row_version"]
    assert found.sample[1].before == found.sample[1].after == {"id": 2, "n": 0, "name": "skip", "row_version": 1}
    assert [len(one.owes) for one in found.sample] == [1, 0, 0, 1]


class SetPeople(Operation):
    """As one statement."""

    name = "set_people"
    parameters = AddParameters
    records = EditPeople.records
    values: Any = {}

    def change(self, parameters: AddParameters) -> Any:
        """It."""
        return update(people).values(**self.values)


def setting(**values: Any) -> Operation:
    """An operation that sets these columns."""
    made: Operation = type("Made", (SetPeople,), {"values": values})()
    return made


TOWN = "constraint person_town"


@pytest.mark.parametrize(
    ("bad", "operation", "code", "reason"),
    [
        ("n = 999", setting(n=people.c.n + 1), "23514", "CheckViolation: constraint n_small"),
        ("n = 0", setting(ratio=1 / people.c.n), "22012", "DivisionByZero"),
        ("flag = true", setting(town_id=case((people.c.flag, 77))), "23503", f"ForeignKeyViolation: {TOWN}"),
    ],
    ids=["asked for", "found by halving", "at the commit only"],
)
def test_a_bad_record_is_told_and_its_neighbours_are_changed(
    engine: Engine, bad: str, operation: Operation, code: str, reason: str
) -> None:
    make_people(engine, 16)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE person ALTER CONSTRAINT person_town DEFERRABLE INITIALLY DEFERRED"))
        connection.execute(text("UPDATE person SET n = 1"))
        connection.execute(text(f"UPDATE person SET {bad} WHERE id IN (5, 11)"))
    found = previewed(engine, operation, {"all": True}, sample=16)
    assert found.outcomes == {"changed": 14, "failed": 2}
    failed = [one for one in found.sample if one.outcome == "failed"]
    assert [(one.key, one.code, one.reason) for one in failed] == [("5", code, reason), ("11", code, reason)]
    assert all(one.before == one.after and one.before is not None and not one.owes for one in failed)


def test_a_deletion_shows_the_whole_row_and_none_after(engine: Engine) -> None:
    table = Table(
        "thing", MetaData(), Column("id", BigInteger, primary_key=True), Column("note", Text), *common_columns()
    )
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert(), [{"id": 1, "tenant": "acme", "note": "a"}])
    found = previewed(engine, operation_on(table, ["id"], delete(table)), {"all": True})
    (record,) = found.sample
    assert record.before == {"id": 1, "note": "a", "tenant": "acme", "n": 0, "row_version": 1}
    assert (record.outcome, record.after, record.differing) == ("changed", None, list(record.before))


def test_nothing_selected_is_no_error(engine: Engine) -> None:
    make_entries(engine, 3)
    for selection in (
        {"filter": {**BY_ACCOUNT, "value": "none"}},
        {"filter": {**BY_ACCOUNT, "value": "x"}, "live": True},
    ):
        found = previewed(engine, AddToEntries(), selection)
        assert (found.count.records, found.sample, found.outcomes, found.effects[0].in_all) == (0, [], {}, 0)


def raising(self: PerRecord, record: Any, parameters: Any) -> Any:
    """A bug."""
    return record["nothing"]


def refusing(self: Operation, parameters: Any) -> Any:
    """Another."""
    raise LookupError("secret")


NOWHERE = setting(n=text("nowhere"))
BUGS = [
    (type("Bug", (EditPeople,), {"change_record": raising})(), r"raised KeyError at test_preview.py:\d+ \(record \d\)"),
    (type("Bug", (SetPeople,), {"change": refusing})(), r"'set_people' raised LookupError at test_preview.py:\d+$"),
    (NOWHERE, r'the statement of .set_people. fails: column "nowhere" does not exist \(42703\)'),
]


@pytest.mark.parametrize(("operation", "says"), BUGS, ids=["of the function", "of the method", "of the statement"])
def test_a_bug_is_shown_with_its_place(engine: Engine, operation: Operation, says: str) -> None:
    make_people(engine, 3)
    with pytest.raises(OperationError, match=says) as bug:
        previewed(engine, operation, {"all": True})
    assert "secret" not in str(bug.value)


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        ({"selection": {"ids": ["x"]}}, ["selection.ids[0]"]),
        ({"selection": {"all": True}, "sample": 0}, ["sample"]),
        ({"selection": {"all": True}, "sample": 101}, ["sample"]),
        ({"selection": {"all": True}, "parallelism": 0, "parameters": {"by": "x"}}, ["parallelism", "parameters.by"]),
        ({"selection": {"filter": {"field": "name", "value": "x"}, "live": True}}, ["selection.live"]),
        ({"selection": {"search": {"match_all": {}}}}, ["selection.search"]),
    ],
    ids=str,
)
def test_what_a_submission_refuses_is_refused_alike(engine: Engine, asked: dict[str, Any], places: list[str]) -> None:
    make_people(engine, 2)
    with pytest.raises(InvalidRequest) as refusal:
        previewed(engine, EditPeople(), **asked)
    assert [problem.path for problem in refusal.value.problems] == places


def test_a_live_walk_without_its_index_is_refused_as_by_a_submission(engine: Engine) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger), *common_columns())
    table.create(engine)
    records = Records(table, [Column("id", BigInteger, nullable=False)], table.c.tenant, table.c.row_version)
    operation = operation_on(table, ["tenant"], update(table).values(n=1), records=records)
    with pytest.raises(InvalidRequest, match="thing has no index on"):
        previewed(engine, operation, {"all": True, "live": True})


def test_a_search_whose_index_is_unknown_here_is_told(engine: Engine) -> None:
    make_parcels(engine, 3)
    with pytest.raises(PreviewUnable, match="set BULKLANE_CHANNELS__PARCELS__URL"):
        previewed(engine, TouchParcels(), {"search": {"term": {"n": 0}}}, channels=INDEXES)
    found = previewed(engine, TouchParcels(), {"all": True}, channels=INDEXES)
    assert [(one.effect, one.in_all, one.seconds) for one in found.effects] == [("document", 3, None)]
    assert [owed.body for record in found.sample for owed in record.owes] == [None] * 3


def test_who_owns_the_data_is_told_and_refuses_nothing(engine: Engine) -> None:
    make_entries(engine, 3)
    assert previewed(engine, AddToEntries(), {"all": True}).holders == []
    job = opened(engine, accepted(engine, idempotency_key="k"))
    found = previewed(engine, AddToEntries(), {"all": True}, idempotency_key="k")
    assert [(one.job_id, one.resource, one.state) for one in found.holders] == [
        (job.job_id, "add_to_entries:acme", "walking")
    ]
    assert (found.already, found.outcomes) == (job.job_id, {"changed": 3})
    with pytest.raises(JobIdReused):
        previewed(engine, AddToEntries(), {"filter": BY_ACCOUNT}, idempotency_key="k")


def test_the_rate_is_that_of_jobs_which_came_to_their_end(engine: Engine) -> None:
    make_entries(engine, 40)
    before = previewed(engine, AddToEntries(), {"all": True}).estimate
    assert (before.jobs, before.rows_per_second, before.seconds) == (0, None, None)
    operation = type("Quiet", (AddToEntries,), {"effects": ()})()
    registry = registry_of(operation)
    for _ in range(2):
        job = opened(engine, accepted(engine, registry=registry))
        walk(engine, job, registry=registry)
        assert look(engine, job).over
    with engine.begin() as connection:
        connection.execute(text("UPDATE bulklane.job SET opened_at = now() - interval '10 s'"))
        connection.execute(text("UPDATE bulklane.chunk SET written_at = now() - interval '8 s'"))
    after = previewed(engine, operation, {"all": True}).estimate
    assert after.jobs == 2
    assert after.rows_per_second == pytest.approx(20)
    assert after.seconds == pytest.approx(2)


BEFORE = FIRST - timedelta(microseconds=1)
KEYS: list[tuple[str, list[Any], list[str]]] = [
    ("numbered", [-5, 2**63 - 1, 0], ["-5", "0", "9223372036854775807"]),
    ("named", ["é", "a%b:c", " ", "Z"], [" ", "Z", "a%b:c", "é"]),
    ("unique_ids", [UUID(int=9), UUID(int=2)], [str(UUID(int=2)), str(UUID(int=9))]),
    (
        "timed",
        [FIRST, FIRST - timedelta(microseconds=1)],
        ["2026-03-29T11:59:59.999999Z", "2026-03-29T12:00:00.000000Z"],
    ),
]


@pytest.mark.parametrize("selection", [{"all": True}, {"all": True, "live": True}, {}], ids=["all", "live", "ids"])
@pytest.mark.parametrize(("name", "values", "texts"), KEYS, ids=[name for name, *_ in KEYS])
def test_keys_of_every_kind(
    engine: Engine, name: str, values: list[Any], texts: list[str], selection: dict[str, Any]
) -> None:
    kinds.make_tables(engine, **{name: values})
    operation = load_registry([kinds.MODULE]).operation(name)
    found = previewed(engine, operation, selection or {"ids": [*texts, texts[0]]})
    assert [record.key for record in found.sample] == texts
    assert found.outcomes == {"changed": len(texts)}
    assert found.count.present == (None if selection else len(texts))


def test_a_statement_that_reads_another_table(engine: Engine) -> None:
    make_people(engine, 3)
    with engine.begin() as connection:
        connection.execute(towns.insert(), [{"town_id": 1, "name": "Ulm"}])
        connection.execute(text("UPDATE person SET town_id = 1 WHERE id = 2"))
    renaming = update(people).values(name=towns.c.name).where(people.c.town_id == towns.c.town_id)
    operation = type("Renaming", (SetPeople,), {"change": lambda self, parameters: renaming})()
    found = previewed(engine, operation, {"all": True})
    assert found.outcomes == {"skipped": 2, "changed": 1}
    assert [(record.reason, record.differing) for record in found.sample] == [
        ("no longer matches", []),
        ("", ["name", "row_version"]),
        ("no longer matches", []),
    ]
    assert found.sample[1].after == {"id": 2, "name": "Ulm", "row_version": 2}
