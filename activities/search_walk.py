"""The walk over a search index that comes before a freeze: keys are stored page by page, outside of its transaction."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from bulklane.activities.heartbeat import give_way, superseded
from bulklane.contracts.failure import FailureType
from bulklane.contracts.key import Key, read_key
from bulklane.database.engine import limited_transaction
from bulklane.database.job import Job
from bulklane.database.search_freeze import WalkSuperseded, begin_walk, forget_pages, store_page
from bulklane.database.selection import StoredSelection
from bulklane.operations.channel import Endpoint
from bulklane.operations.operation import Operation, Registry
from bulklane.operations.search import Searched, SearchUnset, searched_index
from bulklane.operations.senders.index_search import PAGE, QueryRefused, SearchTrouble, walk_documents

STEP_SECONDS = 20.0


class SearchFailed(RuntimeError):
    """No retry can help: the job fails with this reason."""


@dataclass(frozen=True)
class SearchWalk:
    """Walks the index of an operation for one selection. `page`: documents in one request, at most 10,000."""

    engine: Engine
    registry: Registry
    endpoints: Mapping[str, Endpoint]
    page: int = PAGE

    def store_keys(self, job: Job, operation: Operation, stored: StoredSelection, epoch: int) -> None:
        """Store the keys that the index has for the query now, as pages of this attempt.

        Raises SearchFailed where no retry can help, else an ApplicationError that is retried: the walk starts again.
        """
        try:
            index = searched_index(self.registry, operation, self.endpoints)
            self._begin(job, index, stored, epoch)
            self._walk(job, index, stored, epoch)
        except QueryRefused as error:
            raise SearchFailed(str(error)) from None
        except WalkSuperseded as error:
            raise superseded(epoch, error.epoch) from None
        except (SearchTrouble, SearchUnset) as error:
            raise ApplicationError(str(error), type=FailureType.SEARCH_TROUBLE) from None

    def _begin(self, job: Job, index: Searched, stored: StoredSelection, epoch: int) -> None:
        with self._step() as connection:
            begin_walk(connection, stored.selection_no, epoch, index.channel, job.tenant)

    def _walk(self, job: Job, index: Searched, stored: StoredSelection, epoch: int) -> None:
        pages = walk_documents(index.endpoint, index.alias, job.tenant, stored.spec, self.page)
        try:
            with closing(pages):
                for number, texts in enumerate(pages):
                    _go_on()
                    keys = _keys(texts, stored)
                    with self._step() as connection:
                        store_page(connection, stored, epoch, number, keys)
        except BaseException:
            with suppress(SQLAlchemyError):
                self._forget(stored, epoch)
            raise

    def _forget(self, stored: StoredSelection, epoch: int) -> None:
        with self._step() as connection:
            forget_pages(connection, stored.selection_no, epoch)

    def _step(self) -> AbstractContextManager[Connection]:
        return limited_transaction(self.engine, statement=STEP_SECONDS, transaction=STEP_SECONDS * 2)


def _keys(texts: Sequence[str], stored: StoredSelection) -> list[Key]:
    try:
        return [read_key(text, stored.key_types) for text in texts]
    except (ValueError, RecursionError):
        # its text would be a document's content
        raise SearchFailed("a document of the index has a key that no record of the operation can have") from None


def _go_on() -> None:
    give_way()
    if activity.is_worker_shutdown():
        # what was walked can't be handed over: the sooner another worker begins, the better
        raise ApplicationError("the worker drains", type=FailureType.YIELDED)
