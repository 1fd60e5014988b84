"""What the rules are made of: actors that are started, held and killed, and a check of everything after each step."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition
from sqlalchemy import Engine
from temporalio.exceptions import ApplicationError

from bulklane.contracts.message import Verb
from bulklane.database.accept import Conflict, JobIdReused, LeaseMissed
from bulklane.database.control import Suspect
from bulklane.database.delivery import Claim
from bulklane.database.effect import OwedSlice
from tests.database.model import scripts, world
from tests.database.model.actor import Actor, Killed, Run, Script, WouldWait
from tests.database.model.invariants import JOB_INVARIANTS
from tests.database.model.invariants_of_records import RECORD_INVARIANTS
from tests.database.model.scripts import Walker
from tests.database.model.snapshot import Row, Snapshot, read_snapshot

T = TypeVar("T")
EXPECTED = (WouldWait, Killed, Conflict, JobIdReused, LeaseMissed, ApplicationError)

# so many statements or commits, and then the actor is held; None: to the end
EVENTS = st.sampled_from([None, None, None, None, None, 1, 1, 1, 0, 2, 3, 4, 5, 6, 8, 10, 13])
PICK = st.integers(0, 11)
REQUESTS = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(sorted(world.TENANTS)),
        "operation": st.sampled_from(["count", "recount"]),
        "parameters": st.sampled_from([["red"], ["blue"], ["blue", "red"], ["everywhere"], ["everywhere", "red"]]).map(
            lambda things: {"things": things}
        ),
        "selection": st.sampled_from(
            [
                {"all": True},
                {"ids": [3, 1, 4, 99, 1]},
                {"filter": {"field": "color", "op": "=", "value": "red"}},
            ]
        ),
    },
    optional={"idempotency_key": st.sampled_from(["k", "l"])},
)
SMALL = st.sampled_from([0, 100, 100])


idle = precondition(lambda machine: any(actor.run is None for actor in machine.actors))
held = precondition(lambda machine: any(actor.run is not None for actor in machine.actors))
with_jobs = precondition(lambda machine: bool(machine.after.jobs))
with_ranges = precondition(lambda machine: bool(machine._walked_ranges()))
with_freezing = precondition(lambda machine: bool(machine._freezing()))
with_walkers = precondition(lambda machine: bool(machine.walkers))


def picked(things: Sequence[T], pick: int) -> T:
    """One of them, the last first, so that what is new is seen most."""
    return things[-1 - pick % len(things)]


class ModelBase(RuleBasedStateMachine):
    """Three actors, and what a worker or a person would remember between two steps, however old."""

    observer: ClassVar[Engine]
    actors: ClassVar[Sequence[Actor]]
    steps: ClassVar[Counter[str]] = Counter()
    reached: ClassVar[Counter[str]] = Counter()

    @initialize(requests=st.lists(REQUESTS, min_size=1, max_size=2), small=SMALL)
    def begin(self, requests: list[dict[str, Any]], small: int) -> None:
        """A new world, in which perhaps jobs were opened already, as far as their resources are free."""
        self._let_go()
        self.__dict__.pop("after", None)
        world.reset_world(self.observer)
        self.sound = True
        self.number = 0
        self.said: dict[int, list[tuple[str, Verb]]] = {}
        self.walkers: list[Walker] = []
        self.claims: list[tuple[int, list[Claim]]] = []
        self.slices: list[tuple[int, OwedSlice]] = []
        self.suspects: list[Suspect] = []
        self.seen: dict[Suspect, dict[tuple[int, int, int], int]] = {}
        self.ends: dict[str, Callable[[Any], None]] = {}
        self.before = self.after = self._read()
        for number, request in enumerate(requests, 1):
            script = scripts.open_job(f"job-{number}", self._number(0), [request], small)
            self._begin("begin: open_job", script, None, lambda view: None)

    def _retryable(self) -> list[Row]:
        return [job for job in self._jobs() if job["state"] in ("completed_with_failures", "failed")]

    def _two_are_idle(self) -> bool:
        return sum(actor.run is None for actor in self.actors) > 1

    def _around(self, name: str, script: Script, events: int, meanwhile: Callable[[], None]) -> None:
        """Something else, while a script is held."""
        actor = next(actor for actor in self.actors if actor.run is None)
        self._begin(name, script, events, lambda answer: None)
        meanwhile()
        if actor.run is not None:
            self._stopped(actor, actor.go_on(None))

    @classmethod
    def drawn(cls) -> int:
        """How many steps were drawn, not counting those that bring an example to its end."""
        return sum(times for name, times in cls.steps.items() if not name.startswith(("end", "begin")))

    def _let_go(self) -> None:
        for actor in self.actors:
            if actor.run is not None:
                actor.kill()

    def _read(self) -> Snapshot:
        with self.observer.connect() as connection:
            return read_snapshot(connection, getattr(self, "after", None))

    def _begin(self, name: str, script: Script, events: int | None, ended: Callable[[Any], None]) -> None:
        actor = next(actor for actor in self.actors if actor.run is None)
        self.ends[actor.name] = ended
        self._stopped(actor, actor.start(name, script, events))

    def _stopped(self, actor: Actor, run: Run) -> None:
        self.sound = False
        self.steps[run.name if run.in_one_go else f"{run.name}, held"] += 1
        self._check()
        if run.ended and run.error is None:
            self.ends[actor.name](run.result)
        elif run.ended and isinstance(run.error, EXPECTED):
            self.reached[type(run.error).__name__] += 1
        elif run.error is not None:
            raise run.error
        self.sound = True

    def _check(self) -> None:
        self.before, self.after = self.after, self._read()
        for holds in (*JOB_INVARIANTS, *RECORD_INVARIANTS):
            holds(self.before, self.after)
        for job_no, job in self.after.jobs.items():
            if job_no not in self.before.jobs or self.before.jobs[job_no]["state"] != job["state"]:
                self.reached[job["state"]] += 1

    def _number(self, age: int) -> int:
        """A new schedule number; with an age, one that was given out before."""
        if age == 0:
            self.number += 10
            return self.number
        return max(1, self.number - age * 10)

    def _walked_ranges(self) -> list[tuple[int, int, int]]:
        opened = {job_no: job["opened_round"] for job_no, job in self.after.jobs.items()}
        return [key for key in sorted(self.after.ranges) if key[1] <= opened[key[0]]]

    def _freezing(self) -> list[Row]:
        return [job for job in self._jobs() if job["state"] == "freezing"]

    def _jobs(self) -> list[Row]:
        return [self.after.jobs[job_no] for job_no in sorted(self.after.jobs)]
