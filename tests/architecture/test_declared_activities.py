"""Each declared activity has one body with equal types, and some worker serves it; there are no others."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

import bulklane.activities
from bulklane.contracts import activity_calls
from bulklane.contracts.lane import EFFECTS_PREFIX
from bulklane.workers.roles import ROLES, role_of
from tests.workflow.fake_job import FakeJob

Function = Callable[..., Any]


def activity_name(function: object) -> str | None:
    """The name under which it is an activity."""
    found = getattr(function, "__temporal_activity_definition", None)
    return None if found is None else str(found.name)


def bodies() -> Iterator[tuple[str, Function]]:
    """Name and body of each activity in the room."""
    for module in pkgutil.iter_modules(bulklane.activities.__path__):
        room = importlib.import_module(f"bulklane.activities.{module.name}")
        for thing in vars(room).values():
            if getattr(thing, "__module__", None) != room.__name__:
                continue
            for function in [thing, *(vars(thing).values() if inspect.isclass(thing) else [])]:
                name = activity_name(function)
                if name is not None:
                    yield name, function


def types(function: Function) -> dict[str, Any]:
    """The types of its parameters and its answer, by place."""
    hints = get_type_hints(function)
    given = [name for name in inspect.signature(function).parameters if name != "self"]
    return {str(place): hints[name] for place, name in enumerate(given)} | {"answer": hints["return"]}


DECLARED = {name: f for name, f in vars(activity_calls).items() if activity_name(f) is not None}


def test_the_declarations_carry_their_own_names() -> None:
    assert {name: activity_name(function) for name, function in DECLARED.items()} == {name: name for name in DECLARED}
    assert len(DECLARED) == 8


def test_each_has_exactly_one_body_and_no_other_exists() -> None:
    assert sorted(name for name, _ in bodies()) == sorted(DECLARED)


@pytest.mark.parametrize("name", DECLARED)
def test_body_and_fake_have_the_declared_types(name: str) -> None:
    body = dict(bodies())[name]
    assert types(body) == types(DECLARED[name])
    fake = {activity_name(function): function for function in vars(FakeJob).values()}[name]
    assert types(fake) == types(DECLARED[name])


@pytest.mark.parametrize("name", DECLARED)
def test_some_role_serves_it(name: str) -> None:
    roles = [*ROLES.values(), role_of(f"{EFFECTS_PREFIX}any")]
    assert any(name in served.activities for role in roles for served in role.queues)


def test_roles_serve_declared_activities_only_and_each_queue_has_one_set_of_them() -> None:
    roles = [*ROLES.values(), role_of(f"{EFFECTS_PREFIX}any")]
    served = [queue for role in roles for queue in role.queues]
    assert {name for queue in served for name in queue.activities} == set(DECLARED)
    assert len({queue.queue for queue in served}) == len(served)
