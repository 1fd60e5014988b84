"""One process at a time works at a reindex; one that was killed is followed, one that is alive is told of."""

import asyncio

import pytest
from sqlalchemy import Engine, text

from bulklane.database.search_index import RebuildLost, Stage
from bulklane.starter import rebuild
from bulklane.starter.rebuild import Claim, ReindexRunning

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def plan() -> tuple[str, str]:
    return "flights-v1", "flights-v2"


def claim_of(engine: Engine, told: list[str]) -> Claim:
    return Claim(engine, "flights", told.append)


async def test_one_that_is_alive_is_told_of(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(rebuild, "BEAT_SECONDS", 0.1)
    told: list[str] = []
    first, second = claim_of(engine, told), claim_of(engine, told)
    begun = await first.begin(plan, "ann")
    assert (begun.stage, begun.present, begun.next, told) == (
        Stage.CREATING,
        "flights-v1",
        "flights-v2",
        ["builds flights-v2 beside flights-v1"],
    )
    await first.note_stage(Stage.FILLING)
    beats = asyncio.create_task(first.beat())
    with pytest.raises(ReindexRunning, match=r"to flights-v2 is running since .* by ann and stands at filling"):
        await second.begin(plan, "bob")
    beats.cancel()
    # now it is silent, as if it were killed
    followed = await second.begin(plan, "bob")
    assert (followed.stage, followed.who) == (Stage.FILLING, "ann")
    assert "stands at filling" in told[-1]
    with pytest.raises(RebuildLost):
        await first.note_filled("[]", 1)


async def test_of_some_that_begin_at_once_one_works(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(rebuild, "BEAT_SECONDS", 0.1)
    beats: list[asyncio.Task[None]] = []

    async def begin(claim: Claim) -> None:
        await claim.begin(plan, "ann")
        # as the one that works does, so that nobody takes it for dead
        beats.append(asyncio.create_task(claim.beat()))

    found = await asyncio.gather(*(begin(claim_of(engine, [])) for _ in range(4)), return_exceptions=True)
    assert found.count(None) == 1
    beats[0].cancel()


async def test_one_that_left_is_followed_at_once_and_an_end_is_an_end(engine: Engine) -> None:
    first, second = claim_of(engine, []), claim_of(engine, [])
    await first.begin(plan, "ann")
    await first.note_stage(Stage.FILLING)
    await first.note_filled('["7"]', 1000)
    await first.leave()
    followed = await second.begin(plan, "bob")
    assert (followed.cursor, followed.written) == ('["7"]', 1000)
    await second.end()
    assert await second.find() is None
    with engine.connect() as connection:
        assert connection.execute(text("SELECT next FROM bulklane.search_index")).scalar_one() is None
