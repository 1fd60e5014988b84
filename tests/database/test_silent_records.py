"""Records that a selection leaves out, or that a walk passes over, without a word: found by the review of issue 5."""

import pytest
from sqlalchemy import BigInteger, Column, Engine, MetaData, Table, text

from tests.database.jobs import accepted, common_columns, look, opened, registry_of, rows, simple_operation
from tests.support.ledgers import make_entries
from tests.support.walking import PATIENT, walk_whole

SUPPRESS = """
CREATE FUNCTION suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.id % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW;
END $$;
CREATE TRIGGER suppress BEFORE UPDATE ON thing FOR EACH ROW EXECUTE FUNCTION suppress();
INSERT INTO thing (id, tenant) SELECT i, 'acme' FROM generate_series(1, 9) i;
"""


@pytest.mark.case("C22")
@pytest.mark.parametrize(
    "rest", [{"not": {"field": "note", "value": "x"}}, {"field": "note", "op": "!=", "value": "x"}], ids=["not", "!="]
)
def test_a_filter_and_its_opposite_are_all_records(engine: Engine, rest: dict[str, object]) -> None:
    make_entries(engine, 10)
    with engine.begin() as connection:
        connection.execute(text("UPDATE entry SET note = 'x' WHERE extract(microseconds FROM booked_at)::int % 2 = 0"))
    assert accepted(engine, selection={"filter": rest}).total == 5


def test_records_that_a_trigger_keeps_from_being_changed_are_reported(engine: Engine) -> None:
    table = Table("thing", MetaData(), Column("id", BigInteger, primary_key=True), *common_columns())
    registry = registry_of(simple_operation(engine, table, ["id"]))
    with engine.begin() as connection:
        connection.execute(text(SUPPRESS))
    job = opened(engine, accepted(engine, registry=registry, selection={"all": True, "live": True}))
    walk_whole(engine, registry, job, timing=PATIENT)
    ended = look(engine, job)
    assert (ended.changed, ended.skipped) == (5, 4)
    assert rows(engine, "SELECT count(*) FROM bulklane.outcome") == [(4,)]
