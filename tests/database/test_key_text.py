"""The text form of a key: what Python writes and what PostgreSQL writes are the same, and so is their order."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import ARRAY, Engine, Text, cast, func, literal, select, text

from bulklane.contracts.key import Key, KeyType, KeyValue, format_key, parse_key, read_key
from bulklane.database.record import key_text
from bulklane.database.tables import KEY_TYPES

NASTY = [
    '"',
    "\\",
    "\\u0000",
    "\x01",
    "\x1f",
    "\x7f",
    "\b\f\n\r\t",
    "é",
    "e\u0301",
    "\u2028",
    "\U0001f600",
    "\uffff",
    ", ",
    "",
]
texts = st.one_of(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20), st.sampled_from(NASTY))
VALUES: dict[KeyType, st.SearchStrategy[KeyValue]] = {
    KeyType.BIGINT: st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0, 2**53 + 1])),
    KeyType.TEXT: texts,
    KeyType.UUID: st.uuids(),
    KeyType.TIMESTAMPTZ: st.one_of(
        st.datetimes(timezones=st.just(UTC)),
        st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
    ),
}
on_database = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def typed_keys(draw: st.DrawFn) -> tuple[tuple[KeyType, ...], list[Key]]:
    """Key types, and many keys of them: one round trip for all."""
    types = draw(st.lists(st.sampled_from(KeyType), min_size=1, max_size=4))
    one = st.tuples(*(VALUES[key_type] for key_type in types))
    return tuple(types), draw(st.lists(one, min_size=1, max_size=30))


@on_database
@given(typed_keys())
def test_python_and_postgres_write_the_same_text_which_reads_back(
    engine: Engine, typed: tuple[tuple[KeyType, ...], list[Key]]
) -> None:
    types, keys = typed
    arrays = [literal([key[n] for key in keys], ARRAY(KEY_TYPES[key_type])) for n, key_type in enumerate(types)]
    names = [f"k{n}" for n in range(len(types))]
    unnested = func.unnest(*arrays).table_valued(*names, with_ordinality="at", name="given").render_derived()
    statement = select(key_text([unnested.c[name] for name in names], types)).order_by(unnested.c.at)
    with engine.connect() as connection:
        # a session's own settings change nothing
        connection.execute(text("SET LOCAL TimeZone = 'Asia/Kathmandu'; SET LOCAL DateStyle = 'German, DMY'"))
        written = list(connection.execute(statement).scalars())
    assert written == [format_key(key) for key in keys]
    assert [read_key(one, types) for one in written] == keys


@on_database
@given(st.lists(texts, min_size=2, max_size=30))
def test_python_sorts_text_as_the_c_collation_does(engine: Engine, given_texts: list[str]) -> None:
    value = func.unnest(cast(given_texts, ARRAY(Text()))).column_valued("value")
    with engine.connect() as connection:
        found = list(connection.execute(select(value).order_by(value.collate("C"))).scalars())
    assert found == sorted(given_texts)


@on_database
@given(st.sampled_from([KeyType.UUID, KeyType.BIGINT, KeyType.TIMESTAMPTZ]), st.data())
def test_python_sorts_other_types_as_postgres_does(engine: Engine, key_type: KeyType, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[key_type], min_size=2, max_size=30))
    value = func.unnest(literal(values, ARRAY(KEY_TYPES[key_type]))).column_valued("value")
    with engine.connect() as connection:
        connection.execute(text("SET LOCAL TimeZone = 'UTC'"))
        found = list(
            connection.execute(select(key_text([value], [key_type]).label("written")).order_by(value)).scalars()
        )
    assert found == [format_key((one,)) for one in sorted(values)]


@pytest.mark.parametrize(
    ("key", "types", "written"),
    [
        ((-5,), [KeyType.BIGINT], "-5"),
        (('a, "b"\\',), [KeyType.TEXT], 'a, "b"\\'),
        ((UUID(int=10),), [KeyType.UUID], "00000000-0000-0000-0000-00000000000a"),
        (("é\n", 7), [KeyType.TEXT, KeyType.BIGINT], '["é\\n", "7"]'),
    ],
)
def test_the_text_form_is_as_documented(key: Key, types: list[KeyType], written: str) -> None:
    assert format_key(key) == written
    assert parse_key(list(key), types) == key
