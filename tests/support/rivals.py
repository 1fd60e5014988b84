"""Rival attempts on one job at full speed: they take its ranges from each other, and are killed now and then."""

import itertools
import random
from dataclasses import dataclass
from threading import Event
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from bulklane.activities.plan import plan_course
from bulklane.database import range as ranges
from bulklane.database.course import Course
from bulklane.database.job import Job, get_job
from bulklane.database.range import RangeRef, Standing
from bulklane.operations.operation import Registry

AUDIT = """
CREATE TABLE thing_audit (id bigint);
CREATE FUNCTION audit_thing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO thing_audit VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER audit AFTER UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION audit_thing();
"""


class Interrupted(RuntimeError):
    """A chunk whose process is gone before it commits."""


@dataclass
class Rival:
    """One of several walkers of a range: takes it, walks for a while, gives up, takes it again."""

    engine: Engine
    registry: Registry
    ref: RangeRef
    epochs: "itertools.count[int]"
    chance: random.Random
    refused: int = 0
    interrupted: int = 0
    broken: int = 0
    asks: bool = False
    """Whether the next chunk asks for bad records: the last one broke a rule."""

    def walk(self) -> None:
        """Until the range is done, whoever does it."""
        while not self.attempt():
            pass

    def attempt(self) -> bool:
        """One epoch's walk; whether the range is done."""
        epoch = next(self.epochs)
        with self.engine.begin() as connection:
            standing = ranges.take(connection, self.ref, epoch)
            job = get_job(connection, self.ref.job_no)
            course = plan_course(connection, self.registry, job, self.ref, epoch, standing)
        for _ in range(self.chance.randint(1, 12)):
            if standing.done:
                return True
            try:
                standing = self.chunk(course, standing)
            except (Interrupted, DBAPIError) as error:
                self.asks = isinstance(error, IntegrityError)
                self.broken += self.asks
                self.interrupted += not self.asks
                with self.engine.begin() as connection:
                    standing = ranges.read(connection, self.ref)
        return standing.done

    def chunk(self, course: Course[Any], standing: Standing) -> Standing:
        """A chunk of any size where the range is believed to stand; killed now and then, before or at its commit."""
        with self.engine.begin() as connection:
            piece = course.next_piece(connection, standing, self.chance.choice([1, *range(1, 90)]))
            act, self.asks = course.apply_to_good if self.asks else course.apply, False
            moved = act(connection, standing, piece)
            if self.chance.random() < 0.05:
                raise Interrupted
            if self.chance.random() < 0.03:
                connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        if moved is not None:
            # now and then the answer to COMMIT is lost, and the walker thinks that it stands where it was
            return standing if self.chance.random() < 0.1 else moved
        self.refused += 1
        with self.engine.begin() as connection:
            # a stale walker goes on from where it thinks it is, under its own epoch
            return ranges.read(connection, self.ref) if self.chance.random() < 0.8 else standing


def shut_and_reopen(engine: Engine, job: Job, ended: Event) -> int:
    """A third party at the ranges; how often."""
    times = 0
    while not ended.is_set():
        for act in (ranges.shut, ranges.reopen):
            with engine.begin() as connection:
                act(connection, job.job_no, 1)
        times += 1
    return times
