"""Which of the two ways an operation is written in must be clear when it is loaded."""

import sys
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Column, Integer, update

from bulklane import FailureThreshold, Operation, OperationError, PerRecord, Skip
from bulklane.operations.registry import load_registry
from tests.support.ledgers import AddParameters, AddToEntries
from tests.support.people import EditPeople, people

MODULE = "tests.unit.made_operations"


def loaded(monkeypatch: pytest.MonkeyPatch, kind: type[Operation], **attributes: Any) -> Operation:
    """An operation of that kind with these attributes, as a process loads it."""
    module = ModuleType(MODULE)
    made = type("Made", (kind,), {"effects": (), **attributes})()
    module.OPERATIONS = [made]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, module)
    return load_registry([MODULE]).operation(made.name)


def test_both_ways_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(loaded(monkeypatch, EditPeople), PerRecord)
    threshold = FailureThreshold(most_failures=5)
    assert loaded(monkeypatch, AddToEntries, failure_threshold=threshold).failure_threshold is threshold


async def change_later(self: Any, record: Any, parameters: Any) -> Skip:
    """No."""
    return Skip("later")


NEITHER = {"name": "neither", "parameters": AddParameters, "records": EditPeople.records}


@pytest.mark.parametrize(
    ("kind", "attributes", "says"),
    [
        (Operation, NEITHER, "'neither' has no `change`"),
        (PerRecord, {**NEITHER, "writes": (people.c.n,)}, "needs a plain method `change_record`"),
        (Operation, {**NEITHER, "change_record": change_later}, "derive it from PerRecord"),
        (AddToEntries, {"change_record": change_later}, "derive it from PerRecord"),
        (EditPeople, {"change": lambda self, parameters: update(people)}, "has `change` too"),
        (EditPeople, {"change_record": change_later}, "not async"),
        (EditPeople, {"writes": ()}, "has no `writes`"),
        (EditPeople, {"writes": (people.c.id,)}, "person.id, a key column"),
        (EditPeople, {"writes": (people.c.n, people.c.tenant)}, "person.tenant, the tenant column"),
        (EditPeople, {"writes": (people.c.row_version,)}, "the row version, which moves by itself"),
        (EditPeople, {"writes": (people.c.twice,)}, "a generated column"),
        (EditPeople, {"writes": (people.c.tags,)}, "an array"),
        (EditPeople, {"writes": (Column("n", Integer),)}, "no column of person"),
        (EditPeople, {"writes": ("n",)}, "no column of person"),
        (EditPeople, {"failure_threshold": 0.5}, "failure_threshold"),
    ],
)
def test_what_is_unclear_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: type[Operation], attributes: dict[str, Any], says: str
) -> None:
    with pytest.raises(OperationError, match=says):
        loaded(monkeypatch, kind, **attributes)
