"""Searches frozen from the real OpenSearch into the real PostgreSQL by the activity, here: keys of two columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from sqlalchemy import Engine, text
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from bulklane.activities.freeze import Freeze
from bulklane.contracts.job import JobState
from bulklane.contracts.key import format_key
from bulklane.contracts.message import Verb
from bulklane.contracts.timing import Timing
from bulklane.contracts.walk import FreezeRequest
from bulklane.database.engine import connect_engine
from bulklane.database.job import Job
from bulklane.operations.channel import Channel, Endpoint
from bulklane.operations.operation import Effect, IndexEffect, Registry
from bulklane.operations.request import InvalidRequest
from bulklane.operations.senders.search_index import SearchIndex
from bulklane.starter.accept import accept_request
from bulklane.starter.local import LocalStack
from bulklane.starter.status import read_status
from tests.database.jobs import Background, blocked_sessions, counts, look, opened, rows, say, stands, walk
from tests.support.holding import held_at
from tests.support.indexes import TestIndex, index_of_ones_own
from tests.support.ledgers import AddToEntries, entries, make_entries
from tests.support.waiting import until

COUNT = 30
PAGE = 7
TENANTS = ("acme", "other", "third")
NOTED = {"term": {"note": "red"}}


class Indexed(AddToEntries):
    """Its documents carry the note."""

    effects: ClassVar[Sequence[Effect]] = (IndexEffect("document", "ledger", {"note": entries.c.note}),)


@dataclass
class World:
    """A database with entries of three tenants, and their documents."""

    engine: Engine
    index: TestIndex
    registry: Registry
    keys: list[str]

    def accept(self, *, tenant: str = "acme", query: Any = None, endpoint: Endpoint | None = None) -> Job:
        """A search job, opened."""
        raw = {"operation": "add_to_entries", "tenant": tenant, "selection": {"search": query or NOTED}}
        endpoints = {"ledger": endpoint or self.index.endpoint}
        return opened(self.engine, accept_request(self.engine, self.registry, raw, 20, endpoints).job)

    def freeze(self, job: Job, *, attempt: int = 1, endpoint: Endpoint | None = None, draining: bool = False) -> None:
        """An attempt of the activity, scheduled at that second."""
        environment = ActivityEnvironment()
        scheduled = datetime(2026, 3, 29, tzinfo=UTC) + timedelta(seconds=attempt)
        environment.info = replace(environment.info, current_attempt_scheduled_time=scheduled)
        if draining:
            environment.worker_shutdown()
        endpoints = {"ledger": endpoint or self.index.endpoint}
        activity = Freeze(self.engine, self.registry, Timing(), endpoints, 20, PAGE)
        environment.run(activity.freeze, FreezeRequest(job.job_no, 1))

    def frozen(self) -> list[str]:
        """The keys of the blocks, in order."""
        found = rows(
            self.engine,
            "SELECT a, b FROM bulklane.block, unnest(key1_text, key2_timestamptz) WITH ORDINALITY u(a, b, o)"
            " ORDER BY selection_no, no, o",
        )
        return [format_key((account, at)) for account, at in found]


@pytest.fixture
def world(local: LocalStack, database_url: str) -> Iterator[World]:
    """Every second entry's note is red."""
    engine = connect_engine(database_url, role="test", pool_size=10)
    with index_of_ones_own(local.addresses.opensearch_url, {"note": {"type": "keyword"}}) as index:
        keys = []
        for tenant in TENANTS:
            keys = [format_key(key) for key in make_entries(engine, COUNT, tenant)]
            index.put({"key": key, "tenant": tenant, "note": ("red", "blue")[n % 2]} for n, key in enumerate(keys))
        registry = Registry({"add_to_entries": Indexed()}, {"ledger": Channel("ledger", SearchIndex(index.alias))})
        yield World(engine, index, registry, keys)
    engine.dispose()


def changed(world: World) -> dict[str, int]:
    """How many changes the audit has seen by tenant, and that none came twice."""
    assert rows(world.engine, "SELECT 1 FROM entry WHERE amount > 1") == []
    return dict(rows(world.engine, "SELECT tenant, count(*) FROM entry WHERE amount = 1 GROUP BY 1"))


def test_each_tenant_gets_its_own_records_once_in_key_order(world: World) -> None:
    for tenant in TENANTS:
        job = world.accept(tenant=tenant)
        assert (job.lane, job.state) == ("small", JobState.FREEZING)
        world.freeze(job)
        assert stands(world.engine, job).total == COUNT // 2
        walk(world.engine, job, size=4, registry=world.registry)
        assert look(world.engine, job).state is JobState.DELIVERING
    assert changed(world) == dict.fromkeys(TENANTS, COUNT // 2)
    assert world.frozen()[: COUNT // 2] == world.keys[::2]


def test_rows_that_went_or_changed_hands_since_are_not_found_and_no_other_tenant_s_changes(world: World) -> None:
    job = world.accept()
    world.freeze(job)
    red = world.keys[::2]
    with world.engine.begin() as connection:
        for key, statement in (
            (
                red[0],
                "DELETE FROM entry WHERE tenant = 'acme' AND account = :a AND booked_at = CAST(:b AS timestamptz)",
            ),
            (
                red[1],
                "UPDATE entry SET tenant = 'thief' WHERE tenant = 'acme' AND account = :a"
                " AND booked_at = CAST(:b AS timestamptz)",
            ),
        ):
            account, at = key.strip("[]").replace('"', "").split(", ")
            assert connection.execute(text(statement), {"a": account, "b": at}).rowcount == 1
    walk(world.engine, job, size=4, registry=world.registry)
    with world.engine.connect() as connection:
        status = read_status(connection, job.job_id)
    assert (status.total, status.changed, status.not_found, status.skipped) == (15, 13, 2, 0)
    assert changed(world) == {"acme": 13}
    assert rows(world.engine, "SELECT key FROM bulklane.outcome WHERE kind = 'not_found' ORDER BY 1") == [
        (red[0],),
        (red[1],),
    ]


def test_documents_of_deleted_records_are_not_selected_and_nothing_found_is_a_success(world: World) -> None:
    world.index.put({"key": key, "tenant": "acme", "note": "red", "deleted": True} for key in world.keys)
    job = world.accept()
    world.freeze(job)
    assert stands(world.engine, job).total == 0
    walk(world.engine, job, registry=world.registry)
    look(world.engine, job)
    assert look(world.engine, job).state is JobState.COMPLETED


def test_a_lost_point_in_time_starts_the_walk_again(world: World) -> None:
    job = world.accept()
    with held_at(world.engine, "in search"):
        lost = Background(lambda: world.freeze(job))
        until(lambda: blocked_sessions(world.engine), what="a page waits")
        world.index.lose_views()
    with pytest.raises(ApplicationError, match="lost the point in time") as trouble:
        lost.result()
    assert trouble.value.type == "SearchTrouble"
    assert "lost the point in time" in stands(world.engine, job).reason
    assert counts(world.engine)["search_page"] == 0
    world.freeze(job, attempt=2)
    assert world.frozen() == world.keys[::2]
    assert (stands(world.engine, job).state, stands(world.engine, job).reason) == (JobState.WALKING, "")


def test_an_attempt_that_comes_back_late_changes_nothing(world: World) -> None:
    job = world.accept()
    with held_at(world.engine, "in search"):
        late = Background(lambda: world.freeze(job))
        until(lambda: blocked_sessions(world.engine), what="a page waits")
        # the next attempt waits for the selection, which the page's transaction holds
        next_one = Background(lambda: world.freeze(job, attempt=2))
        until(lambda: blocked_sessions(world.engine) > 1, what="the next attempt waits")
    next_one.result()
    with pytest.raises(ApplicationError, match="a later attempt"):
        late.result()
    assert world.frozen() == world.keys[::2]
    assert counts(world.engine)["search_page"] == 0


def test_a_cancel_in_the_middle_leaves_no_page(world: World) -> None:
    job = world.accept()
    with held_at(world.engine, "in search"):
        walking = Background(lambda: world.freeze(job))
        until(lambda: blocked_sessions(world.engine), what="a page waits")
        say(world.engine, job, Verb.CANCEL)
        assert look(world.engine, job).state is JobState.CANCELLED
    walking.result()
    assert stands(world.engine, job).state is JobState.CANCELLED
    assert (counts(world.engine)["block"], counts(world.engine)["range"]) == (0, 0)
    assert counts(world.engine)["search_page"] == 0


def test_a_worker_that_drains_leaves_the_walk_to_another_at_once(world: World) -> None:
    job = world.accept()
    with pytest.raises(ApplicationError) as given_up:
        world.freeze(job, draining=True)
    assert given_up.value.type == "Yielded"
    assert (counts(world.engine)["search_page"], world.index.open_views()) == (0, 0)
    world.freeze(job, attempt=2)
    assert world.frozen() == world.keys[::2]


def test_a_search_that_grew_since_it_was_counted_is_walked_in_the_bulk_lane(world: World) -> None:
    job = world.accept()
    assert job.lane == "small"
    world.index.put({"key": key, "tenant": "acme", "note": "red"} for key in world.keys)
    world.freeze(job)
    assert (stands(world.engine, job).lane, stands(world.engine, job).total) == ("bulk", COUNT)


IMPOSSIBLE = {"range": {"row_version": {"gte": "ten"}}}
AWAY = Endpoint("http://127.0.0.1:9")


def test_a_query_that_only_the_engine_can_refuse_is_refused_at_acceptance(world: World) -> None:
    with pytest.raises(InvalidRequest, match=r"selection\.search: the search engine refuses the query"):
        world.accept(query=IMPOSSIBLE)
    assert sum(counts(world.engine).values()) == 0


def test_where_it_could_not_be_asked_at_acceptance_the_job_fails_with_the_reason(world: World) -> None:
    job = world.accept(query=IMPOSSIBLE, endpoint=AWAY)
    assert job.lane == "bulk"
    world.freeze(job)
    failed = look(world.engine, job)
    assert failed.state is JobState.FAILED
    assert failed.reason.startswith("the search engine refuses the query: ")
    assert "ten" not in failed.reason


def test_an_engine_that_is_away_is_waited_for(world: World) -> None:
    job = world.accept()
    with pytest.raises(ApplicationError, match="no answer from the search engine"):
        world.freeze(job, endpoint=AWAY)
    assert stands(world.engine, job).state is JobState.FREEZING
    world.freeze(job, attempt=2)
    assert stands(world.engine, job).state is JobState.WALKING


def test_a_key_that_no_record_can_have_ends_the_job(world: World) -> None:
    world.index.put([{"key": "secret", "tenant": "acme", "note": "red"}])
    job = world.accept()
    world.freeze(job)
    failed = look(world.engine, job)
    assert failed.state is JobState.FAILED
    assert "secret" not in failed.reason
    assert counts(world.engine)["search_page"] == 0
