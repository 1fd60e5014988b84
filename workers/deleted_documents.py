"""Purges the `deleted` documents of a search index, in the workers of its channel, whichever is first.

Each is removed by a delete of its own version, once it is older than anything that could bring its record back: see
`SearchIndex.keep_deleted`.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Self

import structlog
from opensearchpy.exceptions import OpenSearchException
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from bulklane.database import search_index
from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.index_admin import IndexAdmin, IndexBusy, IndexMissing
from bulklane.operations.senders.search_index import SearchIndex, connect_search
from bulklane.workers.build import Parts

LOOK_SECONDS = 60.0
EVERY_SECONDS = 3600.0

log = structlog.get_logger("bulklane.deleted_documents")


class DeletedDocuments:
    """The `deleted` documents of one channel's index."""

    def __init__(self, engine: Engine, channel: str, index: SearchIndex, endpoint: Endpoint) -> None:
        self._engine = engine
        self._channel = channel
        self._index = index
        self._endpoint = endpoint

    @classmethod
    def of(cls, parts: Parts) -> Self | None:
        """Those of the process's channel; None where it is no search index of ours."""
        name = parts.role.channel
        channel = parts.registry.channels.get(name or "")
        if name is None or channel is None or not isinstance(channel.sender, SearchIndex):
            return None
        return cls(parts.engine, name, channel.sender, parts.settings.channels[name].endpoint())

    async def run(self) -> None:
        """Purge when it is time, until cancelled. A server that is away ends a round, never the loop."""
        while True:
            try:
                before = await asyncio.to_thread(self._claim)
                if before is not None:
                    removed = await self.purge(before)
                    log.info("purged", channel=self._channel, removed=removed)
            except (SQLAlchemyError, OpenSearchException, IndexMissing, IndexBusy) as error:
                log.warning("purge failed", channel=self._channel, error=type(error).__name__)
            await asyncio.sleep(LOOK_SECONDS)

    async def purge(self, before: datetime) -> int:
        """Remove what was deleted before that time; how many documents."""
        client = connect_search(self._endpoint, self._index.request_seconds)
        try:
            admin = IndexAdmin(client, self._index.alias)
            return await admin.purge(await admin.present(), before)
        finally:
            await client.close()

    def _claim(self) -> datetime | None:
        with self._engine.begin() as connection:
            if not search_index.claim_purge(connection, self._channel, every=EVERY_SECONDS):
                return None
            return search_index.now(connection) - timedelta(seconds=self._index.keep_deleted)
