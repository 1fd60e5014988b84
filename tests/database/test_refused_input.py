"""Nasty inputs by both doors: refused with the place, within a second, and nothing is stored.

What the readers alone make of more of them stands in tests/unit (request, key, filter, cli).
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bulklane.database.engine import connect_engine
from bulklane.operations.request import InvalidRequest
from tests.database.jobs import counts
from tests.support.databases import fresh_database
from tests.support.doors import Doors
from tests.support.kinds import make_tables

UUID_TEXT = "0a1b2c3d-1111-4222-8333-0123456789ab"
NAN, INFINITY = float("nan"), float("inf")
BY_ID = {"field": "id", "op": "=", "value": 1}
NO_TIMES = [
    "2026-03-29", "2026-03-29T12:30:00", "2026-02-30T12:00:00Z", "2026-03-29T23:59:60Z", "2026-03-29T24:00:00Z",
    "infinity", "1743206400", "1743206400000",
]  # fmt: skip


@pytest.fixture(scope="module")
def doors(server_url: str) -> Iterator[Doors]:
    """Both; one database for all, since nothing of this module may be stored."""
    with fresh_database(server_url) as url:
        engine = connect_engine(url, role="test", pool_size=5)
        make_tables(engine, numbered=[1, 2])
        yield Doors(engine, url)
        engine.dispose()


def nested(depth: int, kind: str) -> Any:
    """A list or a filter, so deep."""
    value: Any = BY_ID if kind == "filter" else []
    for _ in range(depth):
        value = {"not": value} if kind == "filter" else [value]
    return value


def assert_refused(doors: Doors, operation: str, selection: Any, parameters: Any, places: Sequence[str]) -> None:
    """The client names these places, within a second of work, and stores nothing."""
    before, began = counts(doors.engine), time.process_time()
    with pytest.raises(InvalidRequest) as refusal:
        doors.submit(operation, selection, parameters, idempotency_key="k")
    assert time.process_time() - began < 1
    assert [problem.path for problem in refusal.value.problems] == list(places)
    assert all(len(problem.message) < 400 for problem in refusal.value.problems)
    assert counts(doors.engine) == before


def assert_command_refused(doors: Doors, operation: str, words: Sequence[str], complaint: str) -> None:
    """So does the command."""
    before, began = counts(doors.engine), time.process_time()
    code, said = doors.command(operation, "--idempotency-key", "k", *words)
    assert time.process_time() - began < 1
    assert complaint in said
    assert (code, "Traceback" in said) == (2, False)
    assert counts(doors.engine) == before


EMPTY: list[tuple[Any, str]] = [
    ({}, "selection"), (None, "selection"), ([], "selection"), ({"ids": []}, "selection.ids"),
    ({"ids": None}, "selection.ids"), ({"filter": {}}, "selection.filter"), ({"filter": None}, "selection.filter"),
    ({"ids": [], "filter": {}}, "selection"), ({"all": False}, "selection.all"), ({"all": None}, "selection.all"),
]  # fmt: skip


@pytest.mark.case("C37")
@pytest.mark.parametrize(("selection", "place"), EMPTY, ids=lambda value: str(value))
def test_an_empty_selection_is_not_everything(doors: Doors, selection: Any, place: str) -> None:
    """twentyhq/twenty#24746, nocobase/nocobase#832: no WHERE clause, and the whole table was changed."""
    assert_refused(doors, "numbered", selection, None, [place])


@pytest.mark.case("C37")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "selection: needs exactly one of"),
        (["--ids", ""], "--ids[0]: is empty"),
        (["--filter", "{}"], "selection.filter: a filter is an object like"),
        (["--filter", ""], "--filter: is no JSON"),
        (["--filter", "null"], "--filter: must be a JSON object"),
        (["--ids-file", "{empty}"], "selection.ids: needs a list of 1 to"),
        (["--ids-file", "{blank}"], "selection.ids: needs a list of 1 to"),
    ],
    ids=str,
)
def test_an_empty_command_is_not_everything(doors: Doors, words: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "blank").write_bytes(b"\xef\xbb\xbf\n\r\n\n")
    typed = [str(tmp_path / word[1:-1]) if word.startswith("{") and word != "{}" else word for word in words]
    assert_command_refused(doors, "numbered", typed, complaint)


# row of the list: operation, ids
BAD_IDS: dict[str, tuple[str, list[Any]]] = {
    "4 almost whole": ("numbered", [9007199254740993.0, 1.0, 1e3, "1.0", "1e3"]),
    "5 booleans": ("numbered", [True, False]),
    "6 beyond 64 bits": ("numbered", [9223372036854775808, 18446744073709551617]),
    "7 thousands of digits": ("numbered", [10**5000, "9" * 10_000_000]),
    "8 deep": ("numbered", [nested(900, "list")]),
    "9 no numbers": ("numbered", [NAN, INFINITY, -INFINITY, "NaN", "Infinity", "1e400"]),
    "10 NUL": ("named", ["a\x00b", "\ud800"]),
    "12 almost a UUID": ("unique_ids", [UUID_TEXT[:-1], f"{{{UUID_TEXT}", 5]),
    "16 no instants": ("timed", [*NO_TIMES, 1743206400, 1743206400000]),
}  # fmt: skip


@pytest.mark.case("C51")
@pytest.mark.parametrize("row", BAD_IDS)
def test_bad_ids_refuse_the_request_with_their_positions(doors: Doors, row: str) -> None:
    operation, bad = BAD_IDS[row]
    good = {"numbered": 1, "named": "ab", "unique_ids": UUID_TEXT, "timed": "2026-03-29T12:30:00Z"}[operation]
    ids = [good, *bad]
    assert_refused(doors, operation, {"ids": ids}, None, [f"selection.ids[{n}]" for n in range(1, len(ids))])


def test_an_id_200_000_lists_deep_is_refused(doors: Doors) -> None:
    deep = nested(200_000, "list")
    assert_refused(doors, "numbered", {"ids": [1, deep]}, None, ["selection.ids[1]"])
    assert_refused(doors, "numbered", {"all": True}, {"label": deep}, ["parameters"])
    while deep:  # taken apart by hand: its own end would need as deep a stack
        deep = deep[0]


@pytest.mark.case("C51")
@pytest.mark.parametrize(
    ("row", "words", "complaint"),
    [
        (4, ["--ids", "1,9007199254740993.0"], "selection.ids[1]"),
        (4, ["--ids", "1,1e3"], "selection.ids[1]"),
        (5, ["--ids", "1,true"], "selection.ids[1]"),
        (6, ["--ids", "1,9223372036854775808"], "selection.ids[1]"),
        (7, ["--ids-file", "{digits}"], "selection.ids[1]"),
        (7, ["--filter", '{"field": "id", "value": ' + "9" * 5000 + "}"], "--filter: a number of 5000 digits"),
        (8, ["--filter", "[" * 200_000], "--filter: is nested too deeply"),
        (8, ["--filter", '{"not": ' * 500 + "1" + "}" * 500], "selection.filter"),
        (9, ["--ids", "1,NaN,Infinity,1e400"], "selection.ids[3]"),
        (9, ["--filter", '{"field": "id", "value": NaN}'], "--filter: NaN is no JSON number"),
        (9, ["--filter", '{"field": "id", "value": -Infinity}'], "--filter: -Infinity is no JSON number"),
        (9, ["--filter", '{"field": "id", "value": 1e400}'], "--filter: the number 1e400 is too large"),
        (9, ["--all", "-p", "share=NaN"], "-p share: NaN is no JSON number"),
        (9, ["--all", "-p", "share=1e400"], "-p share: the number 1e400 is too large"),
        (9, ["--all", "--parameters", '{"share": Infinity}'], "--parameters: Infinity is no JSON number"),
        (2, ["--filter", '{"field": "n", "field": "id", "value": 1}'], "--filter: the name 'field' comes twice"),
        (2, ["--ids", "1", "--filter", '{"field": "id", "value": 1}'], "given: --ids, --filter"),
        (16, ["--all", "-p", 'at="2026-03-29T12:30:00"'], "parameters.at: '2026-03-29T12:30:00' is no timestamp like"),
    ],
)  # fmt: skip
def test_bad_words_refuse_the_command(doors: Doors, row: int, words: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "digits").write_text("1\n" + "9" * 10_000_000)
    assert_command_refused(
        doors, "numbered", [word.replace("{digits}", str(tmp_path / "digits")) for word in words], complaint
    )


@pytest.mark.parametrize(
    ("operation", "lines", "complaint"),
    [
        ("named", b"ab\na\x00b\n", "selection.ids[1]: 'a\\x00b' holds a NUL character"),
        ("timed", "\n".join(["2026-03-29T12:30:00Z", *NO_TIMES]).encode(), "selection.ids[8]"),
    ],
)
def test_bad_lines_refuse_the_command(
    doors: Doors, operation: str, lines: bytes, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "ids").write_bytes(lines)
    assert_command_refused(doors, operation, ["--ids-file", str(tmp_path / "ids")], complaint)


BAD_FILTERS: list[tuple[Any, str]] = [
    ({"ids": [1], "filter": BY_ID}, "selection"),
    ({"filter": nested(1000, "filter")}, "selection.filter" + ".not" * 21),
    ({"filter": {**BY_ID, "value": NAN}}, "selection.filter.value"),
    ({"filter": {"or": [BY_ID, {**BY_ID, "value": INFINITY}]}}, "selection.filter.or[1].value"),
    ({"filter": {"field": "id", "op": "in", "value": [1, NAN]}}, "selection.filter.value[1]"),
    ({"filter": {**BY_ID, "value": 1.0}}, "selection.filter.value"),
    ({"filter": {**BY_ID, "value": 10**5000}}, "selection.filter.value"),
]


@pytest.mark.case("C51")
@pytest.mark.parametrize("number", range(len(BAD_FILTERS)))
def test_bad_filters_are_refused_with_their_place(doors: Doors, number: int) -> None:
    selection, place = BAD_FILTERS[number]
    assert_refused(doors, "numbered", selection, None, [place])


BAD_PARAMETERS: list[tuple[Any, str]] = [
    ({"share": NAN}, "parameters.share"),
    ({"share": -INFINITY}, "parameters.share"),
    ({"shares": {"a": [1.0, 2.0], "b": [1.0, INFINITY]}}, "parameters.shares.b.1"),
    ({"share": "NaN"}, "parameters.share"),
    *[({"at": bad}, "parameters.at") for bad in (*NO_TIMES, 1743206400, 1743206400000, 1.5, True)],
    ({"day": "1743206400"}, "parameters.day"),
    ({"day": "2026-02-30"}, "parameters.day"),
    ({"day": 1743206400}, "parameters.day"),
]


@pytest.mark.case("C51")
@pytest.mark.parametrize("number", range(len(BAD_PARAMETERS)))
def test_bad_parameters_are_refused_with_their_place(doors: Doors, number: int) -> None:
    parameters, place = BAD_PARAMETERS[number]
    assert_refused(doors, "numbered", {"all": True}, parameters, [place])
