"""Documents as lines of a bulk request: always valid JSON in UTF-8, cut by bytes and count."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulklane.operations.sender import Document, Done, Held, Later, Refused, Unknown
from bulklane.operations.senders.index_line import cut, document_line
from bulklane.operations.senders.search_index import SearchIndex, judge_item

NOON = datetime(2026, 3, 29, 12, 0, 0, 1, tzinfo=UTC)


def source_of(**source: object) -> dict[str, object]:
    line = document_line(Document("1", "acme", 3, source))
    action, written = line.split(b"\n")[:-1]
    assert json.loads(action) == {"index": {"_id": "1", "version": 3, "version_type": "external_gte"}}
    own = {"key": "1", "tenant": "acme", "row_version": 3, "deleted": False}
    found: dict[str, object] = json.loads(written, parse_constant=lambda name: pytest.fail(name))
    assert own.items() <= found.items()
    return {name: found[name] for name in source}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (math.nan, None),
        (-math.inf, None),
        (Decimal("NaN"), None),
        (Decimal("0.10"), "0.10"),
        ({"a": [1.5, math.inf, {"b": math.nan}]}, {"a": [1.5, None, {"b": None}]}),
        (NOON, "2026-03-29T12:00:00.000001+00:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ("half \ud83d of a pair", "half ? of a pair"),
        ("two\nlines \u2028 é \U0001f600", "two\nlines \u2028 é \U0001f600"),
    ],
)
def test_what_json_has_no_word_for(value: object, written: object) -> None:
    assert source_of(value=value) == {"value": written}


def test_a_deleted_document_says_since_when() -> None:
    line = document_line(Document("1", "acme", 4, None, "acme/1", NOON))
    action, written = (json.loads(one) for one in line.split(b"\n")[:-1])
    assert action["index"]["_id"] == "acme/1"
    assert (written["deleted"], written["deleted_at"]) == (True, "2026-03-29T12:00:00.000001+00:00")


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(1, 120), st.integers(1, 10))
def test_runs_are_bounded_and_keep_the_order(lines: list[bytes], most_bytes: int, most_lines: int) -> None:
    runs = list(cut(lines, most_bytes, most_lines))
    assert [line for run in runs for line in run] == lines
    assert all(len(run) <= most_lines for run in runs)
    assert all(sum(map(len, run)) <= most_bytes or len(run) == 1 for run in runs)


@pytest.mark.parametrize(
    ("status", "kind", "answer"),
    [
        (201, "", Done),
        (409, "version_conflict_engine_exception", Done),
        (429, "rejected_execution_exception", Later),
        (429, "cluster_block_exception", Held),
        (503, "unavailable_shards_exception", Later),
        (500, "exception", Unknown),
        (404, "index_not_found_exception", Held),
        (403, "cluster_block_exception", Held),
        (400, "mapper_parsing_exception", Refused),
    ],
)
def test_each_item_is_judged_by_itself(status: int, kind: str, answer: type) -> None:
    assert isinstance(judge_item({"status": status, **({"error": {"type": kind}} if kind else {})}), answer)


def test_deleted_documents_are_not_kept_too_short() -> None:
    with pytest.raises(ValueError, match="keep_deleted is 60 s; at least 7200 s"):
        SearchIndex("flights", keep_deleted=60)
