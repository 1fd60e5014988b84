"""Ends a job whose records fail too often: between two chunks the counters of the round are looked at."""

from dataclasses import dataclass

from sqlalchemy import Engine

from bulklane.contracts.job import Wish
from bulklane.database.range import RangeRef, round_counters
from bulklane.database.wish import set_wish
from bulklane.operations.failure_threshold import FailureThreshold


@dataclass(frozen=True)
class FailureWatch:
    """The failure threshold of a job's operation; without one nothing is asked."""

    engine: Engine
    ref: RangeRef
    threshold: FailureThreshold | None

    def stopped(self) -> bool:
        """Whether the threshold is exceeded: then the system wishes the job's end, and no further chunk is begun."""
        if self.threshold is None:
            return False
        with self.engine.begin() as connection:
            counters = round_counters(connection, self.ref.job_no, self.ref.round)
            why = self.threshold.exceeded(counters.failed, counters.processed)
            if why:
                set_wish(connection, self.ref.job_no, Wish.STOP, who="bulklane", why=why)
        return bool(why)
