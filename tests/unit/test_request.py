"""Requests as they come in: bad ones are refused with every place, before anything is stored."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, Update, Uuid, update

from bulklane.contracts.key import format_key
from bulklane.operations.operation import Operation, Records, Registry
from bulklane.operations.request import MOST_IDS, MOST_PROBLEMS, InvalidRequest, Request, read_request

metadata = MetaData()


def _table(name: str, key: Column[Any]) -> Table:
    return Table(name, metadata, key, Column("tenant", Text), Column("row_version", BigInteger, nullable=False))


@dataclass(frozen=True)
class Parameters:
    """What the operations under test take."""

    note: str = ""
    amount: int = 0


class Numbered(Operation):
    """Records with a bigint key."""

    name = "numbered"
    table: ClassVar[Table] = _table("numbered", Column("id", BigInteger, primary_key=True))
    records = Records(table, [table.c.id], table.c.tenant, table.c.row_version)
    parameters = Parameters
    fields: ClassVar[Mapping[str, Column[Any]]] = {"id": table.c.id}

    def change(self, parameters: Parameters) -> Update:
        """Nothing much."""
        return update(self.table).values(row_version=self.table.c.row_version)


class Named(Numbered):
    """Records with a text key."""

    name = "named"
    table: ClassVar[Table] = _table("named", Column("id", Text, primary_key=True))
    records = Records(table, [table.c.id], table.c.tenant, table.c.row_version)


class Unique(Numbered):
    """Records with a uuid key."""

    name = "unique"
    table: ClassVar[Table] = _table("unique", Column("id", Uuid, primary_key=True))
    records = Records(table, [table.c.id], table.c.tenant, table.c.row_version)


class Owned(Numbered):
    """Records whose tenant is a uuid."""

    name = "owned"
    table: ClassVar[Table] = Table(
        "owned",
        metadata,
        Column("id", BigInteger, primary_key=True),
        Column("tenant", Uuid),
        Column("row_version", BigInteger, nullable=False),
    )
    records = Records(table, [table.c.id], table.c.tenant, table.c.row_version)


REGISTRY = Registry({one.name: one for one in (Numbered(), Named(), Unique(), Owned())}, {})
UUID_TEXT = "0a1b2c3d-1111-4222-8333-0123456789ab"


def read(**request: Any) -> Request:
    """A request that is right but for what is given."""
    whole = {"job_id": "j", "tenant": "acme", "operation": "numbered", "selection": {"ids": [1]}, **request}
    return read_request(whole, REGISTRY)


def places(**request: Any) -> list[str]:
    """Where the request is wrong."""
    with pytest.raises(InvalidRequest) as refusal:
        read(**request)
    assert len(refusal.value.problems) <= MOST_PROBLEMS
    assert all(len(problem.message) < 400 for problem in refusal.value.problems)
    return [problem.path for problem in refusal.value.problems]


@pytest.mark.parametrize(
    ("selection", "path"),
    [
        ({}, "selection"),
        (None, "selection"),
        ([], "selection"),
        ("all", "selection"),
        ({"ids": []}, "selection.ids"),
        ({"ids": None}, "selection.ids"),
        ({"ids": "12"}, "selection.ids"),
        ({"ids": b"12"}, "selection.ids"),
        ({"ids": {"1": 1}}, "selection.ids"),
        ({"filter": {}}, "selection.filter"),
        ({"filter": None}, "selection.filter"),
        ({"all": False}, "selection.all"),
        ({"all": 1}, "selection.all"),
        ({"ids": [1], "filter": {"field": "id", "value": 1}}, "selection"),
        ({"ids": [1], "all": True}, "selection"),
        ({"IDS": [1]}, "selection"),
        ({"filter": {"field": "tenant", "value": "other"}}, "selection.filter.field"),
    ],
)
def test_an_empty_or_double_selection_is_refused(selection: object, path: str) -> None:
    assert places(selection=selection) == [path]


@pytest.mark.parametrize("bad", [9007199254740993.0, 1e3, "1.0", "1e3", True, False, 2**63, 2**64 + 1, float("nan")])
def test_an_id_that_is_almost_a_number_refuses_the_whole_request(bad: object) -> None:
    assert places(selection={"ids": [1, bad, 2]}) == ["selection.ids[1]"]


def test_exact_ids_stay_exact() -> None:
    request = read(selection={"ids": [9007199254740993, "9007199254740992", -1, 0, 2**63 - 1]})
    assert request.keys == [(-1,), (0,), (9007199254740992,), (9007199254740993,), (2**63 - 1,)]


def test_a_tenant_has_one_spelling_so_that_its_jobs_find_each_other() -> None:
    assert read(operation="owned", tenant=UUID_TEXT).tenant == UUID_TEXT
    for spelling in (UUID_TEXT.upper(), UUID_TEXT.replace("-", ""), f"urn:uuid:{UUID_TEXT}", "acme"):
        assert places(operation="owned", tenant=spelling) == ["tenant"]


def test_four_spellings_of_a_uuid_are_one_key_and_three_doubles() -> None:
    spellings = [UUID_TEXT, UUID_TEXT.upper(), UUID_TEXT.replace("-", ""), f"{{{UUID_TEXT}}}", f"urn:uuid:{UUID_TEXT}"]
    request = read(operation="unique", selection={"ids": spellings})
    assert request.keys is not None
    assert [format_key(key) for key in request.keys] == [UUID_TEXT]
    assert request.duplicates == 4


def test_texts_that_look_alike_stay_apart() -> None:
    request = read(operation="named", selection={"ids": ["\u00e9", "e\u0301", "ab", "AB", "ab ", "ab"]})
    assert request.keys == [("AB",), ("ab",), ("ab ",), ("e\u0301",), ("\u00e9",)]
    assert request.duplicates == 1


def test_bad_text_ids_are_named_by_position() -> None:
    ids = ["ok", "a\x00b", "\ud800", 5]
    assert places(operation="named", selection={"ids": ids}) == [f"selection.ids[{n}]" for n in (1, 2, 3)]


def test_many_ids_in_any_order_with_doubles_are_folded_and_counted() -> None:
    ids = [*range(300_000), *range(300_000)]
    random.Random(1).shuffle(ids)
    request = read(selection={"ids": ids})
    assert request.keys == [(number,) for number in range(300_000)]
    assert request.duplicates == 300_000


def test_more_ids_than_a_request_may_have_are_refused() -> None:
    assert places(selection={"ids": range(MOST_IDS + 1)}) == ["selection.ids"]


def test_at_most_twenty_problems_come_back() -> None:
    assert len(places(selection={"ids": [1.5] * 100})) == MOST_PROBLEMS
    assert len(places(**{f"unknown{n}": 1 for n in range(100)}, operation="numbers")) == MOST_PROBLEMS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("job_id", ""), ("job_id", "  "), ("job_id", "a\nb"), ("job_id", "x" * 201), ("job_id", 5), ("job_id", None),
        ("job_id", 10**5000), ("tenant", ""), ("tenant", "a\x00"), ("tenant", "\ud800"), ("tenant", ["acme"]),
        ("operation", "numbers"), ("operation", ""), ("operation", {}),
        ("idempotency_key", ""), ("idempotency_key", " "), ("idempotency_key", "x" * 300), ("idempotency_key", "a\nb"),
        ("priority", 0), ("priority", 6), ("priority", True), ("priority", "3"), ("priority", 3.0),
        ("priority", 10**5000), ("parallelism", 0), ("parallelism", 65), ("parallelism", 1.0),
        ("who", 5), ("who", "x" * 501), ("why", "a\x00b"), ("why", "\udfff"),
    ],
    ids=lambda value: str(value)[:12] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_bad_field_is_named(field: str, value: object) -> None:
    assert places(**{field: value}) == [field]


def test_unknown_fields_are_refused() -> None:
    assert places(selektion={"ids": [1]}) == ["'selektion'"]


BAD_PARAMETERS: list[tuple[object, str]] = [
    ({"nose": "x"}, "parameters.nose"),
    ({"amount": "5"}, "parameters.amount"),
    ({"amount": True}, "parameters.amount"),
    ({"amount": 5.0}, "parameters.amount"),
    ({"note": "a\x00b"}, "parameters"),
    ({"a\x00": "b"}, "parameters"),
    ({"note": "\ud800"}, "parameters"),
    ({"note": float("nan")}, "parameters.note"),
    ({"note": {1, 2}}, "parameters"),
    ({"amount": 10**5000}, "parameters"),
    (None, "parameters"),
    ([], "parameters"),
    ("x", "parameters"),
]


@pytest.mark.parametrize("number", range(len(BAD_PARAMETERS)))
def test_bad_parameters_are_refused(number: int) -> None:
    parameters, path = BAD_PARAMETERS[number]
    assert places(parameters=parameters) == [path]


def test_deep_parameters_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert places(parameters={"note": deep}) == ["parameters"]
    while deep:  # taken apart by hand: its own end would need as deep a stack
        deep = deep[0]


@pytest.mark.parametrize("note", ["\\u0000", "\\\\u0000", '\u2028\n"', "\U0001f600"])
def test_what_only_looks_like_a_nul_is_kept(note: str) -> None:
    assert read(parameters={"note": note}).parameters == {"note": note, "amount": 0}


@pytest.mark.parametrize("raw", [None, [], "x", 5, [{"job_id": "j"}]])
def test_what_is_no_object_is_refused(raw: object) -> None:
    with pytest.raises(InvalidRequest, match="must be an object"):
        read_request(raw, REGISTRY)


def test_the_same_content_has_the_same_hash_whatever_the_order_of_the_ids() -> None:
    first = read(selection={"ids": [3, 1, 2]}).content_hash
    assert read(selection={"ids": ["1", 2, 2, 3]}, job_id="other", who="x").content_hash == first
    assert (
        read(selection={"filter": {"field": "id", "value": 1}}).content_hash
        != read(selection={"all": True}).content_hash
    )


@pytest.mark.parametrize(
    "other",
    [
        {"tenant": "other"},
        {"operation": "named", "selection": {"ids": ["1", "2", "3"]}},
        {"selection": {"ids": [1, 2]}},
        {"selection": {"ids": [1, 2, 3, 4]}},
        {"selection": {"all": True}},
        {"parameters": {"amount": 1}},
    ],
)
def test_other_content_has_another_hash(other: dict[str, Any]) -> None:
    assert (
        read(selection={"ids": [3, 1, 2]}).content_hash
        != read(**{"selection": {"ids": [3, 1, 2]}, **other}).content_hash
    )


def test_live_is_another_request_and_the_default_is_none() -> None:
    def read(**selection: Any) -> Request:
        raw = {"job_id": "j", "tenant": "t", "operation": "numbered", "selection": selection}
        return read_request(raw, REGISTRY)

    plain, live, not_live = read(all=True), read(all=True, live=True), read(all=True, live=False)
    assert (plain.live, live.live, not_live.live) == (False, True, False)
    assert plain.content_hash == not_live.content_hash != live.content_hash
    with pytest.raises(InvalidRequest, match="numbered writes `id` and `id` is a key column"):

        class Moving(Numbered):
            """Writes its key."""

            name = "numbered"

            def change(self, parameters: Parameters) -> Update:
                """The key itself."""
                return update(self.table).values(id=self.table.c.id + 1)

        raw = {"job_id": "j", "tenant": "t", "operation": "numbered", "selection": {"all": True, "live": True}}
        read_request(raw, Registry({"numbered": Moving()}, {}))
