"""Search queries: what a selection may ask of the index, and what is refused with its place."""

import json
import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, Update, update

from bulklane.operations.channel import Channel, Endpoint
from bulklane.operations.operation import IndexEffect, Operation, OperationError, Records, Registry
from bulklane.operations.registry import load_registry
from bulklane.operations.request import InvalidRequest, Request, read_request
from bulklane.operations.search import SearchUnset, searched_index
from bulklane.operations.search_query import InvalidQuery, check_query
from bulklane.operations.senders.search_index import SearchIndex
from tests.support.ledgers import AddParameters

FIELDS = ["origin", "price", "title"]
table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), Column("tenant", Text))
version = Column("row_version", BigInteger, nullable=False)
table.append_column(version)
DOCUMENT = IndexEffect("document", "things", {"origin": table.c.tenant, "price": table.c.id, "title": table.c.tenant})
CHANNELS = {"things": Channel("things", SearchIndex("things"))}


class Silent(Operation):
    """Without a search index."""

    name = "silent"
    parameters = AddParameters
    records: ClassVar[Records] = Records(table, [table.c.id], table.c.tenant, table.c.row_version)

    def change(self, parameters: AddParameters) -> Update:
        """Nothing much."""
        return update(table).values(row_version=table.c.row_version)


class Indexed(Silent):
    """With one."""

    name = "indexed"
    effects = (DOCUMENT,)


class Doubtful(Silent):
    """With two, and no word about which is searched."""

    name = "doubtful"
    effects = (DOCUMENT, IndexEffect("other", "things", {"price": table.c.id}))


class Reading(Silent):
    """With none of its own: it asks the index that another operation writes."""

    name = "reading"
    search = DOCUMENT


REGISTRY = Registry({one.name: one for one in (Silent(), Indexed(), Doubtful(), Reading())}, CHANNELS)


def read(query: object, operation: str = "indexed") -> Request:
    """A request with this search."""
    raw = {"job_id": "j", "tenant": "acme", "operation": operation, "selection": {"search": query}}
    return read_request(raw, REGISTRY)


def nested(depth: int) -> dict[str, Any]:
    """A query so deep."""
    query: dict[str, Any] = {"term": {"origin": "EWR"}}
    for _ in range(depth):
        query = {"bool": {"must": [query]}}
    return query


@pytest.mark.parametrize(
    "query",
    [
        {"term": {"origin": "EWR"}},
        {"term": {"origin": {"value": "ewr", "case_insensitive": True}}},
        {"term": {"price": 2**63 - 1}},
        {"term": {"key": "9007199254740993"}},
        {"terms": {"origin": ["EWR", "JFK"]}},
        {"range": {"price": {"gte": 1, "lt": 2.5}}},
        {"range": {"price": {"gte": "2026-01-01", "format": "yyyy-MM-dd", "time_zone": "+01:00"}}},
        {"exists": {"field": "title.raw"}},
        {"prefix": {"origin": "E"}},
        {"wildcard": {"origin": {"value": "E*R"}}},
        {"match": {"title": {"query": "a b", "operator": "and"}}},
        {"match_phrase": {"title": {"query": "a b", "slop": 1}}},
        {"multi_match": {"query": "a", "fields": ["title", "origin"]}},
        {"bool": {"must_not": {"term": {"origin": "EWR"}}}},
        {"bool": {"filter": [{"term": {"price": 1}}], "should": [{"term": {"price": 1}}], "minimum_should_match": 1}},
        nested(20),
    ],
)
def test_what_is_allowed_is_stored_as_it_is(query: dict[str, Any]) -> None:
    request = read(query)
    assert (request.selection_kind, request.selection_spec) == ("search", query)
    assert (request.keys, request.condition) == (None, None)


BAD: list[tuple[object, str]] = [
    (None, ""),
    ({}, ""),
    ([], ""),
    ("origin:EWR", ""),
    ({"term": {"origin": "EWR"}, "match_all": {}}, ""),
    ({"match_all": {}}, ""),
    ({"script": {"script": "true"}}, ""),
    ({"script_score": {"query": {"term": {"origin": "E"}}, "script": {"source": "1"}}}, ""),
    ({"percolate": {"field": "origin", "document": {}}}, ""),
    ({"more_like_this": {"like": [{"_index": "others", "_id": "1"}]}}, ""),
    ({"knn": {"price": {"vector": [1], "k": 1}}}, ""),
    ({"query_string": {"query": "tenant:other OR *:*"}}, ""),
    ({"wrapper": {"query": "e30="}}, ""),
    ({"template": {}}, ""),
    ({"regexp": {"origin": ".*"}}, ""),
    ({"has_child": {"type": "x", "query": {"term": {"origin": "E"}}}}, ""),
    ({"terms": {"origin": {"index": "others", "id": "1", "path": "x"}}}, ".terms.origin"),
    ({"terms": {"origin": []}}, ".terms.origin"),
    ({"terms": {"origin": ["x"] * 1001}}, ".terms.origin"),
    ({"terms": {"origin": ["x", None]}}, ".terms.origin[1]"),
    ({"terms": {"origin": ["x"], "boost": 2}}, ".terms"),
    ({"term": {"tenant": "other"}}, ".term"),
    ({"term": {"deleted": True}}, ".term"),
    ({"term": {"_id": "1"}}, ".term"),
    ({"term": {"orgin": "EWR"}}, ".term"),
    ({"term": {"*": "EWR"}}, ".term"),
    ({"term": {"origin": None}}, ".term.origin"),
    ({"term": {"origin": float("nan")}}, ".term.origin"),
    ({"term": {"origin": 2**64}}, ".term.origin"),
    ({"term": {"origin": "a\x00"}}, ".term.origin"),
    ({"term": {"origin": "\ud800"}}, ".term.origin"),
    ({"term": {"origin": "x" * 1001}}, ".term.origin"),
    ({"term": {"origin": {"value": "E", "script": "1"}}}, ".term.origin"),
    ({"term": {"origin": {"case_insensitive": True}}}, ".term.origin.value"),
    ({"term": {"origin": {"value": "E", "case_insensitive": "yes"}}}, ".term.origin.case_insensitive"),
    ({"range": {"price": {}}}, ".range.price"),
    ({"range": {"price": {"format": "yyyy"}}}, ".range.price"),
    ({"range": {"price": {"from": 1}}}, ".range.price"),
    ({"exists": {"field": "tenant"}}, ".exists.field"),
    ({"exists": {}}, ".exists"),
    ({"wildcard": {"origin": {"value": "*R"}}}, ".wildcard.origin"),
    ({"wildcard": {"origin": ""}}, ".wildcard.origin"),
    ({"match": {"title": {"query": "a", "zero_terms_query": "all"}}}, ".match.title"),
    ({"multi_match": {"query": "a", "fields": ["*"]}}, ".multi_match.fields[0]"),
    ({"multi_match": {"query": "a"}}, ".multi_match.fields"),
    ({"multi_match": {"fields": ["title"]}}, ".multi_match.query"),
    ({"bool": {}}, ".bool"),
    ({"bool": {"must": []}}, ".bool.must"),
    ({"bool": {"minimum_should_match": 1}}, ".bool"),
    ({"bool": {"must": [{"term": {"origin": "E"}}, {"match_all": {}}]}}, ".bool.must[1]"),
    ({"bool": {"should": [{"term": {"origin": "E"}}], "minimum_should_match": 0}}, ".bool.minimum_should_match"),
    ({"bool": {"should": [{"term": {"origin": "E"}}], "minimum_should_match": 2}}, ".bool.minimum_should_match"),
    ({"bool": {"should": [nested(0)], "must": [nested(0)]}}, ".bool.minimum_should_match"),
    ({"bool": {"must": [{"term": {"origin": "E"}}], "boost": 2}}, ".bool"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "place"), BAD)
def test_what_is_not_allowed_is_refused_with_its_place(query: object, place: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(query)
    (problem,) = refusal.value.problems
    assert problem.path == f"selection.search{place}"
    assert len(problem.message) < 400


def test_depth_clauses_and_values_are_bounded() -> None:
    with pytest.raises(InvalidQuery, match="20 deep"):
        check_query(nested(21), FIELDS)
    with pytest.raises(InvalidQuery, match="20 deep"):
        check_query(nested(100_000), FIELDS)
    with pytest.raises(InvalidQuery, match="1000 clauses"):
        check_query({"bool": {"must": [{"term": {"origin": "E"}}] * 1000}}, FIELDS)
    with pytest.raises(InvalidQuery, match="10000 values"):
        check_query({"bool": {"must": [{"terms": {"price": list(range(1000))}}] * 11}}, FIELDS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "bool",
                    "must",
                    "should",
                    "term",
                    "terms",
                    "range",
                    "match",
                    "multi_match",
                    "fields",
                    "query",
                    "origin",
                    "gt",
                ]
            )
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_any_json_is_taken_or_refused(query: Any) -> None:
    try:
        check_query(query, FIELDS)
    except InvalidQuery:
        return
    json.dumps(query, allow_nan=False).encode()


@pytest.mark.parametrize("operation", ["silent", "doubtful"])
def test_an_operation_without_one_search_index_refuses(operation: str) -> None:
    with pytest.raises(InvalidRequest, match=r"selection\.search: the operation .* has no search index"):
        read({"term": {"origin": "EWR"}}, operation)


def test_an_operation_may_ask_the_index_that_another_writes() -> None:
    assert read({"term": {"origin": "EWR"}}, "reading").selection_kind == "search"
    index = searched_index(REGISTRY, Reading(), {"things": Endpoint("http://here")})
    assert (index.channel, index.alias, index.endpoint.url) == ("things", "things", "http://here")


def test_a_process_without_the_address_names_the_variable() -> None:
    with pytest.raises(SearchUnset, match="BULKLANE_CHANNELS__THINGS__URL"):
        searched_index(REGISTRY, Indexed(), {})


def test_a_search_on_no_search_channel_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Silent):
        """It asks a channel that nobody has."""

        name = "wrong"
        search = IndexEffect("document", "nowhere", {})

    module = ModuleType("made_operations")
    module.OPERATIONS = [Wrong()]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_operations", module)
    with pytest.raises(OperationError, match="names the channel 'nowhere'"):
        load_registry(["made_operations"])


def test_the_same_query_is_the_same_content_and_another_is_not() -> None:
    one, two = {"terms": {"origin": ["A", "B"]}}, {"terms": {"origin": ["A", "C"]}}
    assert read(one).content_hash == read(dict(one)).content_hash != read(two).content_hash
