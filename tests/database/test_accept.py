"""Acceptance: one transaction that stores a job with all that belongs to it, or nothing at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Barrier
from typing import Any, ClassVar

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text, update

from bulklane.contracts.job import JobState
from bulklane.contracts.message import Verb
from bulklane.database import accept
from bulklane.database.accept import Accepted, Conflict, JobIdReused, LeaseMissed
from bulklane.operations.operation import Operation, Records, Registry
from bulklane.operations.request import InvalidRequest, read_request
from bulklane.starter.accept import accept_request
from tests.database.jobs import (
    REGISTRY,
    Background,
    accepted,
    blocked_sessions,
    common_columns,
    counts,
    look,
    opened,
    registry_of,
    rows,
    say,
)
from tests.support.ledgers import make_entries
from tests.support.waiting import until


@dataclass(frozen=True)
class Places:
    """The resources of a job are its places."""

    places: tuple[str, ...] = ("home",)


def placed(engine: Engine) -> Registry:
    """An operation whose jobs own the places that their parameters name."""
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(text("INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(1, 5) i"))

    class Placed(Operation):
        name = "placed"
        parameters = Places
        records = Records(table, [table.c.id], table.c.tenant, table.c.row_version, "application")
        fields: ClassVar[Mapping[str, Column[Any]]] = {"id": table.c.id}

        def change(self, parameters: Places) -> Any:
            return update(table).values(n=table.c.n + 1)

        def resources(self, tenant: str, parameters: Places) -> list[str]:
            return list(parameters.places)

    return registry_of(Placed())


def ask(engine: Engine, registry: Registry = REGISTRY, /, **request: Any) -> Accepted:
    """A request for a job."""
    raw = {"operation": next(iter(registry.operations)), "tenant": "acme", "selection": {"all": True}, **request}
    return accept_request(engine, registry, raw, 10_000)


def test_a_job_is_stored_with_all_that_belongs_to_it(engine: Engine) -> None:
    make_entries(engine, 5)
    before = counts(engine)
    ask(engine, idempotency_key="k", parallelism=3)
    grown = {name: number - before[name] for name, number in counts(engine).items() if number != before[name]}
    one_each = ("idempotency", "job", "wish", "lease", "job_resource", "selection", "block")
    assert grown == {**dict.fromkeys(one_each, 1), "range": 3}


def test_a_conflict_names_the_holder_and_stores_nothing(engine: Engine) -> None:
    make_entries(engine, 5)
    ask(engine, job_id="first")
    before = counts(engine)
    with pytest.raises(Conflict, match=r"job first \(accepted\) owns add_to_entries:acme since") as refusal:
        ask(engine, idempotency_key="k", job_id="second")
    assert refusal.value.holder.job_id == "first"
    assert counts(engine) == before


def test_one_owned_resource_of_several_refuses_them_all(engine: Engine) -> None:
    registry = placed(engine)
    ask(engine, registry, job_id="holder", parameters={"places": ["b"]})
    before = counts(engine)
    with pytest.raises(Conflict, match="job holder"):
        ask(engine, registry, parameters={"places": ["a", "b", "c"]})
    assert counts(engine) == before
    ask(engine, registry, parameters={"places": ["c", "a"]})


@pytest.mark.parametrize(
    "request_",
    [
        {"selection": {"ids": []}},
        {"selection": {"filter": {}}},
        {"selection": {"ids": [["acc-1", "2026-03-29"]]}},
        {"parameters": {"cents": 1.5}},
        {"operation": "unknown"},
        {"tenant": ""},
    ],
    ids=str,
)
def test_what_cannot_be_read_stores_nothing(engine: Engine, request_: dict[str, Any]) -> None:
    make_entries(engine, 2)
    before = counts(engine)
    with pytest.raises(InvalidRequest):
        ask(engine, idempotency_key="k", **request_)
    assert counts(engine) == before


def test_the_same_job_id_with_the_same_content_is_a_replay(engine: Engine) -> None:
    make_entries(engine, 2)
    first = ask(engine, job_id="j")
    before = counts(engine)
    again = ask(engine, job_id="j")
    assert (first.replayed, again.replayed, again.job.job_no) == (False, True, first.job.job_no)
    assert counts(engine) == before


@pytest.mark.parametrize("other", [{"parameters": {"cents": 2}}, {"tenant": "other"}], ids=str)
@pytest.mark.parametrize("name", ["job_id", "idempotency_key"])
def test_a_name_stands_for_one_content(engine: Engine, name: str, other: dict[str, Any]) -> None:
    make_entries(engine, 2)
    ask(engine, **{name: "x"})
    before = counts(engine)
    if name == "idempotency_key" and "tenant" in other:
        assert not ask(engine, **{name: "x"}, **other).replayed  # another tenant's key is another key
        return
    with pytest.raises(JobIdReused, match="already stands for another request"):
        ask(engine, **{name: "x"}, **other)
    assert counts(engine) == before


def test_an_idempotency_key_gives_its_job_back_even_when_that_is_over(engine: Engine) -> None:
    make_entries(engine, 2)
    first = ask(engine, idempotency_key="k")
    say(engine, first.job, Verb.CANCEL)
    assert look(engine, first.job).state is JobState.CANCELLED
    again = ask(engine, idempotency_key="k")
    assert again.replayed
    assert again.job.job_id == first.job.job_id


@pytest.mark.parametrize("name", ["idempotency_key", "job_id"])
def test_twenty_at_once_under_one_name_give_one_job(engine: Engine, name: str) -> None:
    make_entries(engine, 20)
    start = Barrier(20)

    def one() -> Accepted:
        start.wait(20)
        return ask(engine, **{name: "k"})

    answers = [asking.result() for asking in [Background(one) for _ in range(20)]]
    assert len({answer.job.job_no for answer in answers}) == 1
    assert [answer.replayed for answer in answers].count(False) == 1
    assert counts(engine)["job"] == 1


@pytest.mark.parametrize("content", ["the same", "other"])
def test_a_job_id_taken_in_the_middle_of_acceptance_is_no_failure(engine: Engine, content: str) -> None:
    """Both have looked for the job id before the first one commits, and their resources don't meet."""
    registry = placed(engine)
    places = [["a"], ["b"]] if content == "other" else [["a"], ["a"]]
    asked = [
        read_request(
            {"job_id": "j", "tenant": "acme", "operation": "placed", "selection": {"all": True},
             "parameters": {"places": place}},
            registry,
        )
        for place in places
    ]  # fmt: skip
    with engine.connect() as first:
        accept.store(first, asked[0], size=5, small_max_records=100)
        second = Background(lambda: ask(engine, registry, job_id="j", parameters={"places": places[1]}))
        until(lambda: blocked_sessions(engine) == 1)
        first.commit()
    if content == "other":
        with pytest.raises(JobIdReused):
            second.result()
    else:
        assert second.result().replayed
    assert counts(engine)["job"] == counts(engine)["lease"] == counts(engine)["wish"] == 1


def test_a_replay_found_only_while_storing_takes_no_lease(engine: Engine) -> None:
    """The first job was accepted and is over between the look for its id and the store."""
    make_entries(engine, 2)
    raw = {"job_id": "j", "tenant": "acme", "operation": "add_to_entries", "selection": {"all": True}}
    late = read_request(raw, REGISTRY)
    say(engine, accepted(engine, job_id="j"), Verb.CANCEL)
    look(engine, ask(engine, job_id="j").job)
    with pytest.raises(LeaseMissed), engine.begin() as connection:
        accept.store(connection, late, size=2, small_max_records=100)
    assert counts(engine)["lease"] == 0
    with engine.connect() as connection:
        found = accept.conflict(connection, late)
    assert isinstance(found, Accepted)
    assert found.replayed


def test_a_large_filter_is_left_to_the_freeze(engine: Engine) -> None:
    make_entries(engine, 11)
    raw = {"operation": "add_to_entries", "tenant": "acme", "selection": {"all": True}}
    job = accept_request(engine, REGISTRY, raw, 10).job
    assert (job.lane, counts(engine)["block"], counts(engine)["range"]) == ("bulk", 0, 0)
    assert opened(engine, job).state is JobState.FREEZING
    assert rows(engine, "SELECT state, total FROM bulklane.selection") == [("stated", None)]
