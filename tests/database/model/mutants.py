"""The product with one thing wrong in each: the model must find every one.

A release that doesn't compare the round is none: every caller has locked the job's row and names the round it read.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, false, func, select, true, update
from sqlalchemy.dialects.postgresql import insert as upsert

from bulklane.activities import freeze
from bulklane.contracts.job import JobState
from bulklane.database import advance, chunk, chunk_chain, effect, job, lease, wish
from bulklane.database import delivery as deliveries
from bulklane.database import range as ranges
from bulklane.database.delivery import Claim
from bulklane.database.tables import job as job_table
from bulklane.database.tables import range_, wish_message
from bulklane.database.tables import wish as wish_table

Break = Callable[[pytest.MonkeyPatch], None]


def _gate(left_out: str) -> Break:
    """A gate that doesn't look at one of three things."""
    looked_at = {
        "cursor": range_.c.cursor == bindparam("_bulklane_from_cursor"),
        "epoch": range_.c.epoch == bindparam("_bulklane_at_epoch"),
        "open": range_.c.open,
    } | {left_out: true()}
    gate = (
        select(range_.c.next_seq.label("seq"))
        .where(
            range_.c.job_no == bindparam("_bulklane_of_job"),
            range_.c.round == bindparam("_bulklane_of_round"),
            range_.c.no == bindparam("_bulklane_of_range"),
            *looked_at.values(),
        )
        .with_for_update()
        .cte("_bulklane_gate")
        .prefix_with("MATERIALIZED")
    )

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(chunk_chain, "GATE", gate)
        patch.setattr(chunk, "_FAIL", chunk_chain.fail_chain())

    return apply


def _take(*condition: Any) -> Break:
    values: dict[str, Any] = {
        "epoch": bindparam("mine"),
        "epoch_cursor": range_.c.cursor,
        "orderly": false(),
        "deaths": func.coalesce(range_.c.deaths, 0) + ranges._DIED.cast(range_.c.deaths.type),
    }
    statement = update(range_).where(ranges._ONE, *condition).values(**values)
    return lambda patch: patch.setattr(ranges, "_TAKE", statement)


class _Anything:
    """No number differs from it."""

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


def _settle_any_run(patch: pytest.MonkeyPatch) -> None:
    settle = advance.settle

    def careless(connection: Connection, job_no: int, **seen: Any) -> bool:
        return settle(connection, job_no, **(seen | {"run_id": job.get_job(connection, job_no).run_id}))

    patch.setattr(advance, "settle", careless)


def _settle_keeps_lease(patch: pytest.MonkeyPatch) -> None:
    release = advance._release

    def keeping(connection: Connection, one: job.Job, *, keep_lease: bool = False) -> job.Job:
        return release(connection, one, keep_lease=one.hold_lease and one.state is JobState.WALKING)

    patch.setattr(advance, "_release", keeping)


def _count_before_shut(patch: pytest.MonkeyPatch) -> None:
    shut, counters = ranges.shut, ranges.counters
    counted: dict[int, ranges.Counters] = {}

    def count_and_shut(connection: Connection, job_no: int, round_no: int) -> None:
        counted[job_no] = counters(connection, job_no, round_no)
        shut(connection, job_no, round_no)

    def counted_before(connection: Connection, job_no: int, round_no: int) -> ranges.Counters:
        return counted.pop(job_no, None) or counters(connection, job_no, round_no)

    patch.setattr(ranges, "shut", count_and_shut)
    patch.setattr(ranges, "counters", counted_before)


def _lease_is_ignored(patch: pytest.MonkeyPatch) -> None:
    acquire = lease.acquire

    def acquired(connection: Connection, resources: Sequence[str], *, job_no: int, round_no: int) -> bool:
        acquire(connection, resources, job_no=job_no, round_no=round_no)
        return True

    patch.setattr(lease, "acquire", acquired)


def _nothing_is_doubtful(patch: pytest.MonkeyPatch) -> None:
    claim = deliveries.claim

    def sure(connection: Connection, job_no: int, channel: str, **options: Any) -> list[Claim]:
        return [replace(one, doubtful=False) for one in claim(connection, job_no, channel, **options)]

    patch.setattr(deliveries, "claim", sure)


def _any_answer_settles(patch: pytest.MonkeyPatch) -> None:
    statement: Any = deliveries._SETTLE._clone()
    statement._where_criteria = deliveries._SETTLE._where_criteria[:-1]
    patch.setattr(deliveries, "_SETTLE", statement)


_stamp = (
    update(job_table)
    .where(job_table.c.job_no == bindparam("number"))
    .values(run_id=bindparam("run"), run_scheduled=bindparam("scheduled"), opened_round=job_table.c.round)
)
_receive = (
    upsert(wish_message)
    .on_conflict_do_update(
        index_elements=[wish_message.c.job_no, wish_message.c.message_id], set_={"verb": wish_message.c.verb}
    )
    .returning(wish_message.c.message_id)
)
_set_wish = (
    update(wish_table)
    .where(wish_table.c.job_no == bindparam("number"))
    .values(wish=bindparam("wanted"), who=bindparam("by"), why=bindparam("because"), wished_at=func.clock_timestamp())
)


def _nothing(*_: object, **__: object) -> None:
    """What should be done isn't."""


MUTANTS: dict[str, Break] = {
    "gate without epoch": _gate("epoch"),
    "gate without open": _gate("open"),
    "gate without cursor": _gate("cursor"),
    "take with <=": _take(range_.c.epoch <= bindparam("mine")),
    "take without comparison": _take(),
    "settle without epochs": lambda patch: patch.setattr(ranges, "sum_of_epochs", lambda *_: _Anything()),
    "settle without run": _settle_any_run,
    "settle keeps a lease that was to be held": _settle_keeps_lease,
    "shut does nothing": lambda patch: patch.setattr(ranges, "shut", _nothing),
    "reopen does nothing": lambda patch: patch.setattr(ranges, "reopen", _nothing),
    "counted before the ranges are shut": _count_before_shut,
    "acceptance without lease": _lease_is_ignored,
    "release does nothing": lambda patch: patch.setattr(lease, "release", _nothing),
    "advance without the job's lock": lambda patch: patch.setattr(advance, "lock_job", job.get_job),
    "freeze without the job's lock": lambda patch: patch.setattr(freeze, "lock_job", job.get_job),
    "an older run stamps": lambda patch: patch.setattr(job, "_STAMP", _stamp),
    "a message applies again": lambda patch: patch.setattr(wish, "_RECEIVE", _receive),
    "a final wish changes": lambda patch: patch.setattr(wish, "_SET", _set_wish),
    "close while it owes": lambda patch: patch.setattr(effect, "owes", lambda *_: False),
    "nothing is doubtful": _nothing_is_doubtful,
    "any answer settles": _any_answer_settles,
}
