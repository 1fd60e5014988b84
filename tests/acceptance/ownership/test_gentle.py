"""Provider and search engine hang, and users write the listed rows: nobody waits longer than a chunk may last."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text

from bulklane import Client
from bulklane.contracts.timing import Timing
from bulklane.starter.local import LocalStack
from tests.support.counting import items_of, make_items
from tests.support.faults import frozen
from tests.support.jobs import finished, scalar
from tests.support.ownership import assert_owned, count_up, in_state

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ITEMS = 2_000
PAUSE = 0.004
SAMPLE_SECONDS = 0.05
# what starting to measure late, or a busy machine, may add to what is measured
SLACK = 0.2
_AGES = text(
    """SELECT split_part(application_name, ' ', 2) AS role, extract(epoch FROM clock_timestamp() - xact_start) AS age
       FROM pg_stat_activity WHERE application_name LIKE 'bulklane %:%/%' AND xact_start IS NOT NULL"""
)
_EDIT = text("UPDATE counted SET pause = pause WHERE item = :item")
_DONE = """
SELECT count(*) FROM bulklane.delivery JOIN bulklane.job USING (job_no) WHERE job_id = :j AND delivery.state = 'done'
"""


@contextmanager
def again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """In a thread, until the block ends; what it raises ends it and is raised here."""
    ended = threading.Event()
    failures: list[Exception] = []

    def repeat() -> None:
        try:
            while not ended.is_set():
                work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert failures == []


@pytest.mark.case("C34")
async def test_nobody_waits_for_what_hangs_outside(local: LocalStack, client: Client, engine: Engine) -> None:
    """e2b-dev/infra#1860: slow steps inside the transaction, and users' requests behind its locks."""
    limit = Timing().transaction_timeout + SLACK
    tenant = make_items(engine, "hanging", ITEMS, pause=PAUSE)
    oldest: dict[str, float] = defaultdict(float)
    waits: list[float] = []

    def sample() -> None:
        with engine.connect() as connection:
            for row in connection.execute(_AGES):
                oldest[row.role] = max(oldest[row.role], float(row.age))
        time.sleep(SAMPLE_SECONDS)

    def edit() -> None:
        began = time.monotonic()
        with engine.connect() as connection:
            connection.execute(_EDIT, {"item": random.choice(items_of(tenant))})
            waits.append(time.monotonic() - began)
            connection.rollback()  # so that the rows' versions stay the job's own

    search = local.stack.servers.opensearch
    assert search is not None
    assert search.process is not None
    began = time.monotonic()
    with frozen(local.stack.services["provider"], search.process), again_and_again(sample), again_and_again(edit):
        job_id = await count_up(client, tenant)
        status = await in_state(client, job_id, "delivering", seconds=90)
        assert status.changed == ITEMS
        assert scalar(engine, _DONE, j=job_id) == 0, "they hang"
        hung = time.monotonic() - began
    assert 0 < oldest["bulk"] < limit
    # nobody calls out from inside a transaction: it would have lasted as long as they hung
    assert max(oldest.values()) < hung / 2
    assert len(waits) > 100
    assert max(waits) < limit
    assert (await finished(client, job_id, seconds=120)).state == "completed"
    assert_owned(local, engine, job_id)
