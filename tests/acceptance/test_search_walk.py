"""Reading an index while it is written, on the real OpenSearch: what the loops that people write lose, and our walk.

The loops live here only. Each consumer changes what it reads, as a bulk change does.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bulklane.operations.channel import Endpoint
from bulklane.operations.senders.index_search import QueryRefused, SearchTrouble, count_documents, walk_documents
from bulklane.starter.local import LocalStack
from tests.support.indexes import TestIndex, index_of_ones_own
from tests.support.waiting import until

DOCUMENTS = 1000
PAGE = 100
OPEN = {"term": {"state": "open"}}
KEYS = [f"{n:04}" for n in range(DOCUMENTS)]
ONCE = Counter(KEYS)


@pytest.fixture
def index(local: LocalStack) -> Iterator[TestIndex]:
    """A thousand open documents of acme, and some of another tenant."""
    properties = {"state": {"type": "keyword"}, "updated": {"type": "long"}}
    with index_of_ones_own(local.addresses.opensearch_url, properties) as made:
        made.put(document(key, "open", place) for place, key in enumerate(KEYS))
        made.put(document(key, "open", place, tenant="other") for place, key in enumerate(KEYS[:10]))
        yield made


def document(key: str, state: str, updated: int, tenant: str = "acme") -> dict[str, Any]:
    """As the walk reads it."""
    return {"key": key, "tenant": tenant, "state": state, "updated": updated}


def acme(query: dict[str, Any]) -> dict[str, Any]:
    """Within acme's documents."""
    return {"bool": {"filter": [{"term": {"tenant": "acme"}}, query]}}


def close(index: TestIndex, keys: list[str]) -> None:
    """What the consumer of a page does: the documents leave the filter."""
    index.put(document(key, "closed", 0) for key in keys)


def test_from_and_size_lose_half_of_a_shrinking_set_and_our_walk_none(index: TestIndex) -> None:
    handled: Counter[str] = Counter()
    place = 0
    while found := index.search(query=acme(OPEN), sort=["key"], size=PAGE, **{"from": place}):
        keys = [one["key"] for one in found]
        handled.update(keys)
        close(index, keys)
        place += PAGE
    assert (len(handled), max(handled.values())) == (DOCUMENTS // 2, 1)

    index.put(document(key, "open", 0) for key in KEYS)
    walked: Counter[str] = Counter()
    for keys in index.walked("acme", OPEN, PAGE):
        walked.update(keys)
        close(index, keys)
    assert walked == ONCE
    assert index.open_views() == 0


def move(index: TestIndex, keys: list[str], page: int) -> None:
    """The consumer moves the sort key of what it handled; a user sets that of ten others to an old time."""
    index.put(document(key, "open", 10_000 + page * PAGE + n) for n, key in enumerate(keys))
    last = DOCUMENTS - 1 - page * 10
    index.put(document(KEYS[last - n], "open", -1) for n in range(10))


def test_search_after_on_a_moving_key_misses_and_repeats_and_our_walk_does_neither(index: TestIndex) -> None:
    handled: Counter[str] = Counter()
    after: dict[str, Any] = {}
    for page in range(2 * DOCUMENTS // PAGE):  # it would go on for ever
        found = index.search(query=acme(OPEN), sort=["updated", "key"], size=PAGE, **after)
        if not found:
            break
        keys = [one["key"] for one in found]
        handled.update(keys)
        after = {"search_after": found[-1]["sort"]}
        if page < 5:
            move(index, keys, page)
    missed = ONCE - handled
    repeated = [key for key, times in handled.items() if times > 1]
    assert (len(missed), len(repeated)) == (50, 500)

    index.put(document(key, "open", place) for place, key in enumerate(KEYS))
    walked: Counter[str] = Counter()
    for page, keys in enumerate(index.walked("acme", OPEN, PAGE)):
        walked.update(keys)
        if page < 5:
            move(index, keys, page)
    assert walked == ONCE


@pytest.mark.parametrize("page", [1, 7, 99, 100, 101, 999, 1000, 1001])
def test_any_page_size_finds_each_document_once(index: TestIndex, page: int) -> None:
    few = OPEN if page > 1 else {"range": {"updated": {"lt": 20}}}
    pages = list(index.walked("acme", few, page))
    found = [key for keys in pages for key in keys]
    assert found == (KEYS if page > 1 else KEYS[:20])
    assert max(map(len, pages)) <= page


def test_more_than_ten_thousand_documents_are_counted_and_walked(index: TestIndex) -> None:
    many = [f"m-{n:05}" for n in range(12_001)]
    index.put(document(key, "many", 0, tenant="third") for key in many)
    query = {"term": {"state": "many"}}
    assert count_documents(index.endpoint, index.alias, "third", query, 500) == 501
    assert count_documents(index.endpoint, index.alias, "third", query, 20_000) == 12_001
    assert [key for keys in index.walked("third", query, 5000) for key in keys] == many


def test_documents_of_deleted_records_and_of_other_tenants_are_not_found(index: TestIndex) -> None:
    index.put({**document(key, "open", 0), "deleted": True} for key in KEYS[::2])
    assert [key for keys in index.walked("acme", OPEN) for key in keys] == KEYS[1::2]
    assert [key for keys in index.walked("other", OPEN) for key in keys] == KEYS[:10]
    assert list(index.walked("nobody", OPEN)) == []
    anything = {"bool": {"should": [OPEN, {"term": {"tenant": "other"}}, {"match_all": {}}]}}
    wide = [key for keys in index.walked("other", anything) for key in keys]
    assert wide == KEYS[:10], "even a query that no request may have stays within the tenant"


def test_what_was_written_just_before_is_found(index: TestIndex) -> None:
    whole = {**document("late", "fresh", 0), "row_version": 1, "deleted": False}
    index.client.index(index=index.alias, id="late", body=whole)
    assert [key for keys in index.walked("acme", {"term": {"state": "fresh"}}) for key in keys] == ["late"]


def test_a_lost_point_in_time_ends_the_walk_and_is_no_short_answer(index: TestIndex) -> None:
    pages = index.walked("acme", OPEN)
    assert next(pages) == KEYS[:PAGE]
    index.lose_views()
    with pytest.raises(SearchTrouble, match="lost the point in time"):
        next(pages)
    assert [key for keys in index.walked("acme", OPEN) for key in keys] == KEYS


def test_a_walk_that_is_given_up_leaves_no_point_in_time(index: TestIndex) -> None:
    pages = walk_documents(index.endpoint, index.alias, "acme", OPEN, PAGE)
    next(pages)
    assert index.open_views() == 1
    pages.close()
    until(lambda: index.open_views() == 0, what="the point in time is gone")


def test_a_query_that_the_engine_refuses_is_told_from_an_engine_that_is_away(index: TestIndex) -> None:
    impossible = {"range": {"updated": {"gte": "not a number"}}}
    for ask in (
        lambda: count_documents(index.endpoint, index.alias, "acme", impossible, 10),
        lambda: list(index.walked("acme", impossible)),
    ):
        with pytest.raises(QueryRefused) as refusal:
            ask()
        assert "not a number" not in str(refusal.value)
        assert "not a number" in refusal.value.reason
    with pytest.raises(SearchTrouble, match="check the alias"):
        list(walk_documents(index.endpoint, "no-such-alias", "acme", OPEN))
    with pytest.raises(SearchTrouble, match="no answer"):
        list(walk_documents(Endpoint("http://127.0.0.1:9"), index.alias, "acme", OPEN))
