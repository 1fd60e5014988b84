"""Runs the machine on a database of its own: for the tests, for the mutants and for `make lease-model`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from bulklane.database.engine import connect_engine
from tests.database.model.actor import Actor
from tests.database.model.machine import LeaseModel
from tests.database.model.mutants import Break
from tests.database.model.world import make_world

STEPS_OF_AN_EXAMPLE = 60
EXAMPLES_OF_A_SEED = 40
MOST_STEPS = 10_000
ACTORS = ("one", "two", "three")


@contextmanager
def model_on(url: str) -> Iterator[type[LeaseModel]]:
    """The machine's class, with actors on that database, which must be migrated and empty."""
    observer = connect_engine(url, role="model observer", pool_size=1)
    make_world(observer)
    actors = [Actor(name, url) for name in ACTORS]

    class Model(LeaseModel):
        """On this database."""

    Model.observer, Model.actors = observer, actors
    Model.steps, Model.reached = Counter(), Counter()
    try:
        yield Model
    finally:
        for actor in actors:
            actor.dispose()
        observer.dispose()


def explore(model: type[LeaseModel], number: int, examples: int, *, shrink: bool = True) -> None:
    """So many examples of a seed. Raises what the machine raised, after printing the shortest sequence to it."""
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    run_state_machine_as_test(
        seed(number)(model),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_OF_AN_EXAMPLE,
            database=None,
            deadline=None,
            phases=phases,
            verbosity=Verbosity.normal,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )


def finds(model: type[LeaseModel], mutant: Break, patch: pytest.MonkeyPatch) -> tuple[int, str] | None:
    """After how many steps the machine finds a mutant, and what it says; None: not within the bound."""
    model.steps.clear()
    number = 0
    with patch.context() as broken:
        mutant(broken)
        while model.drawn() < MOST_STEPS:
            number += 1
            try:
                explore(model, number, EXAMPLES_OF_A_SEED, shrink=False)
            except Exception as error:
                return model.drawn(), f"{type(error).__name__}: {error}".splitlines()[0]
    return None
