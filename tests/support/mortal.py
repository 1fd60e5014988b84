"""Worker processes that are killed again and again: each walks a job's range with the real segment, until it is done.

They are forked from a process that has everything imported, so that one costs milliseconds, not seconds.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.synchronize import Event

from bulklane.contracts.timing import Timing
from bulklane.database.engine import connect_engine
from bulklane.database.job import get_job
from tests.database.jobs import REGISTRY
from tests.support.walking import segment_activity

START_SECONDS = 20.0


def walk_until_done(url: str, job_no: int, range_no: int, timing: Timing, began: Event) -> None:
    """What each of them does."""
    engine = connect_engine(url, role="mortal", pool_size=2)
    with engine.connect() as connection:
        job = get_job(connection, job_no)
    began.set()
    while segment_activity(engine, REGISTRY, job, range_no, timing).end != "done":
        pass
    engine.dispose()


class Mortals:
    """Makes them."""

    def __init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    def start(self, url: str, job_no: int, range_no: int, timing: Timing) -> ForkServerProcess:
        """One that is about to take the range."""
        began = self._context.Event()
        process = self._context.Process(target=walk_until_done, args=(url, job_no, range_no, timing, began))
        process.start()
        assert began.wait(START_SECONDS)
        return process
