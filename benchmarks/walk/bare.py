"""What is compared with: one UPDATE, and the bare statements in a loop of psycopg, as fast as they go.

Their chunks do what a walk can't do without: a fence, a cursor, a ledger row and what is owed, in one statement.
"""

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg

CHUNK = 5_000

_TABLES = """
DROP TABLE IF EXISTS bare_range, bare_block, bare_chunk, bare_owed;
CREATE TABLE bare_range (no int PRIMARY KEY, cursor bigint NOT NULL, epoch bigint NOT NULL, open bool NOT NULL);
CREATE TABLE bare_block (no int PRIMARY KEY, keys bigint[] NOT NULL);
CREATE TABLE bare_chunk (range int, lo bigint, epoch bigint, changed int, PRIMARY KEY (range, lo));
CREATE TABLE bare_owed (range int, lo bigint, keys text[], versions bigint[], bodies text[], PRIMARY KEY (range, lo));
"""

RAW = """
UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now() WHERE tenant = 'nyc'
"""

_FREEZE = """
INSERT INTO bare_block
SELECT (n - 1) / 5000, array_agg(id ORDER BY id)
FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM flights_large WHERE tenant = 'nyc') AS numbered
GROUP BY 1
"""

_RANGE = """
WITH gate AS MATERIALIZED (
  SELECT 1 FROM bare_range WHERE no = %(no)s AND cursor = %(lo)s AND epoch = 1 AND open FOR UPDATE
), boundary AS MATERIALIZED (
  SELECT max(id) AS id, count(*) AS size
  FROM (SELECT id FROM flights_large WHERE id > %(lo)s ORDER BY id LIMIT %(size)s) AS ahead
  WHERE EXISTS (SELECT FROM gate)
), changed AS (
  UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now()
  WHERE tenant = 'nyc' AND id > %(lo)s AND id <= (SELECT id FROM boundary)
  RETURNING id, version
), ledger AS (
  INSERT INTO bare_chunk SELECT %(no)s, %(lo)s, 1, count(*) FROM changed
), owed AS (
  INSERT INTO bare_owed SELECT %(no)s, %(lo)s, array_agg(id::text), array_agg(version) FROM changed
)
UPDATE bare_range SET cursor = boundary.id FROM boundary WHERE no = %(no)s AND boundary.size > 0 RETURNING cursor
"""

_FROZEN = """
WITH gate AS MATERIALIZED (
  SELECT 1 FROM bare_range WHERE no = %(no)s AND cursor = %(lo)s AND epoch = 1 AND open FOR UPDATE
), slice AS MATERIALIZED (
  SELECT keys FROM bare_block WHERE no = %(lo)s AND EXISTS (SELECT FROM gate)
), changed AS (
  UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now()
  WHERE tenant = 'nyc' AND id = ANY ((SELECT keys FROM slice)::bigint[])
  RETURNING id, version
), ledger AS (
  INSERT INTO bare_chunk SELECT %(no)s, %(lo)s, 1, count(*) FROM changed
), owed AS (
  INSERT INTO bare_owed SELECT %(no)s, %(lo)s, array_agg(id::text), array_agg(version) FROM changed
)
UPDATE bare_range SET cursor = cursor + 1 WHERE no = %(no)s AND EXISTS (SELECT FROM slice) RETURNING cursor
"""

_INTENT = """
WITH gate AS MATERIALIZED (
  SELECT 1 FROM bare_range WHERE no = %(no)s AND cursor = %(lo)s AND epoch = 1 AND open FOR UPDATE
), slice AS MATERIALIZED (
  SELECT keys FROM bare_block WHERE no = %(lo)s AND EXISTS (SELECT FROM gate)
), changed AS (
  UPDATE flights_large SET status = 'moved', version = version + 1, updated_at = now()
  WHERE tenant = 'nyc' AND id = ANY ((SELECT keys FROM slice)::bigint[])
  RETURNING id, version, jsonb_build_object('record', id, 'carrier', carrier, 'flight_number', flight_number,
                                            'status', status, 'departure', departure)::text AS body
), ledger AS (
  INSERT INTO bare_chunk SELECT %(no)s, %(lo)s, 1, count(*) FROM changed
), owed AS (
  INSERT INTO bare_owed SELECT %(no)s, %(lo)s, array_agg(id::text), array_agg(version), array_agg(body) FROM changed
)
UPDATE bare_range SET cursor = cursor + 1 WHERE no = %(no)s AND EXISTS (SELECT FROM slice) RETURNING cursor
"""


def raw(url: str) -> float:
    """Seconds of one UPDATE of all rows."""
    with psycopg.connect(url) as connection:
        began = time.perf_counter()
        connection.execute(RAW)
        connection.commit()
        return time.perf_counter() - began


def range_loop(url: str) -> float:
    """Seconds of the keyset loop over the key space."""
    _make_ranges(url, [-1])
    return _timed([lambda: _walk_range(url)])


def frozen_loop(url: str, ranges: int = 1) -> float:
    """Seconds of the loop over frozen blocks, cut into ranges that are walked at once; the freezing isn't counted."""
    return _frozen(url, _FROZEN, ranges)


def intent_loop(url: str) -> float:
    """Seconds of the same with a body for each record."""
    return _frozen(url, _INTENT, 1)


def _frozen(url: str, statement: str, ranges: int) -> float:
    blocks = _make_blocks(url)
    bounds = [blocks * number // ranges for number in range(ranges + 1)]
    _make_ranges(url, bounds[:-1])
    return _timed(
        [
            lambda no=no, lo=lo, hi=hi: _walk_blocks(url, statement, no, lo, hi)
            for no, (lo, hi) in enumerate(pairwise(bounds))
        ]
    )


def _make_blocks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TABLES)
        blocks = connection.execute(_FREEZE).rowcount
        connection.execute("ANALYZE bare_block")
        return blocks


def _make_ranges(url: str, cursors: list[int]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        if cursors == [-1]:
            connection.execute(_TABLES)
        rows = [(number, cursor) for number, cursor in enumerate(cursors)]
        connection.cursor().executemany("INSERT INTO bare_range VALUES (%s, %s, 1, true)", rows)


def _walk_range(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        values: dict[str, Any] = {"no": 0, "lo": -1, "size": CHUNK}
        while (row := connection.execute(_RANGE, values).fetchone()) is not None:
            values["lo"] = row[0]


def _walk_blocks(url: str, statement: str, no: int, lo: int, hi: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for block in range(lo, hi):
            moved = connection.execute(statement, {"no": no, "lo": block}).fetchone()
            assert moved == (block + 1,), f"block {block}: {moved}"


def _timed(walks: list[Callable[[], None]]) -> float:
    failures: list[BaseException] = []

    def guarded(walk: Callable[[], None]) -> None:
        try:
            walk()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(walk,)) for walk in walks]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began
