"""A search node of these tests' own, beside PostgreSQL: deliveries run in this process, without workers."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from opensearchpy import AsyncOpenSearch

from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.index_admin import IndexAdmin
from bulklane.operations.senders.index_reader import create_index
from bulklane.operations.senders.search_index import SearchIndex, SearchIndexSender, connect_search
from bulklane.stack.opensearch import OpenSearchNode
from bulklane.starter.settings import StackSettings
from tests.support.indexed import ALIAS, PROPERTIES
from tests.support.search_proxy import SearchProxy, search_proxy


@pytest.fixture(scope="package")
def node() -> Iterator[OpenSearchNode]:
    """A running node with a write queue so short that it turns writes away."""
    with tempfile.TemporaryDirectory(prefix="bl-", dir="/tmp") as folder:
        made = OpenSearchNode(Path(folder), StackSettings().cache, settings={"thread_pool.write.queue_size": "2"})
        made.start()
        try:
            made.wait_until_ready()
            yield made
        finally:
            made.stop()


@pytest.fixture
def search_url(node: OpenSearchNode) -> Iterator[str]:
    """The node's address, with an empty index behind the alias."""
    create_index(node.url, ALIAS, PROPERTIES)
    yield node.url
    with httpx.Client(base_url=node.url, trust_env=False) as http:
        for name in http.get("/_alias").json():
            http.delete(f"/{name}").raise_for_status()


@pytest.fixture
def proxy(search_url: str) -> Iterator[SearchProxy]:
    """A proxy before it."""
    with search_proxy(search_url) as running:
        yield running


@pytest.fixture
async def search(search_url: str) -> AsyncIterator[AsyncOpenSearch]:
    """A client of the node."""
    client = connect_search(Endpoint(search_url), 30)
    yield client
    await client.close()


@pytest.fixture
def admin(search: AsyncOpenSearch) -> IndexAdmin:
    """What is done with the whole index."""
    return IndexAdmin(search, ALIAS)


@pytest.fixture
async def sender(search_url: str) -> AsyncIterator[SearchIndexSender]:
    """Writes through the alias."""
    made = SearchIndex(ALIAS).connect_index(Endpoint(search_url))
    yield made
    await made.close()


@pytest.fixture
async def proxied(proxy: SearchProxy) -> AsyncIterator[SearchIndexSender]:
    """Writes through the proxy."""
    made = SearchIndex(ALIAS).connect_index(Endpoint(proxy.url))
    yield made
    await made.close()
