"""A reindex that is given up while a delivery still knows its index."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from bulklane.activities.index_delivery import IndexDelivery
from bulklane.database import search_index
from bulklane.database.search_index import Stage
from bulklane.operations.sender import Answer, Document, Done, Held, Refused
from tests.support.indexed import CHANNEL, REGISTRY, committed, drained, make_parcels, refused

WORKER = uuid4()


class Beside:
    """An index that is gone. `going`: what happens before it says so."""

    def __init__(self, going: Callable[[], None]) -> None:
        self.asked = 0
        self._going = going

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        self.asked += 1
        await asyncio.to_thread(self._going)
        return [Held("the index is missing or blocked: index_not_found_exception")] * len(documents)

    def beside(self, index: str) -> "Beside":
        return self

    async def close(self) -> None:
        """Nothing to close."""


class Present(Beside):
    """Takes everything; what is built beside it is gone."""

    def __init__(self, gone: Beside) -> None:
        super().__init__(lambda: None)
        self.gone = gone

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        self.asked += 1
        return [Done("200")] * len(documents)

    def beside(self, index: str) -> Beside:
        assert index == "parcels-v2"
        return self.gone


class Taking(Beside):
    """An index that takes everything."""

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        return [Done("200")] * len(documents)


class Hiding(Present):
    """`deleted` documents of later versions stand there."""

    async def index(self, documents: Sequence[Document]) -> list[Answer]:
        return [Done("409")] * len(documents)

    async def look_at_conflicts(self, documents: Sequence[Document]) -> list[Answer]:
        """As the engine's own would."""
        return [Refused("409", "a `deleted` document")] * len(documents)


def begin(engine: Engine) -> None:
    with engine.begin() as connection:
        assert search_index.begin_rebuild(
            connection, CHANNEL, WORKER, present="parcels-v1", to_index="parcels-v2", who="ann"
        )
        search_index.note_stage(connection, CHANNEL, WORKER, Stage.FILLING)


def end(engine: Engine) -> None:
    with engine.begin() as connection:
        search_index.end_rebuild(connection, CHANNEL, WORKER)


@pytest.mark.parametrize("given_up", [True, False])
def test_only_an_index_that_is_still_being_built_holds_the_channel(engine: Engine, given_up: bool) -> None:
    make_parcels(engine, 5)
    job = committed(engine)
    begin(engine)
    gone = Beside(partial(end, engine) if given_up else lambda: None)

    async def run() -> IndexDelivery:
        delivery = IndexDelivery(engine, REGISTRY, job, CHANNEL, Present(gone))
        async with asyncio.timeout(30):
            while await delivery.send_some() and delivery.held is None:
                pass
        return delivery

    delivery = asyncio.run(run())
    assert gone.asked == 1
    assert (delivery.settled, delivery.held is None) == ((5, True) if given_up else (0, False))


def test_a_record_that_is_hidden_in_the_present_index_is_refused_though_the_next_one_takes_it(engine: Engine) -> None:
    make_parcels(engine, 5)
    job = committed(engine)
    begin(engine)
    asyncio.run(drained(engine, job, Hiding(Taking(lambda: None))))
    assert refused(engine, job).keys() == {"1", "2", "3", "4", "5"}
