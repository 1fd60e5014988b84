"""How many records a request selects, and which of them are tried. Each read has a few seconds and locks nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, Engine
from sqlalchemy.exc import DBAPIError

from bulklane.contracts.key import Key
from bulklane.database.engine import limited_transaction
from bulklane.database.explain import explain
from bulklane.database.failure import Trouble, trouble_of
from bulklane.database.sample import CANDIDATES, count_all, count_present, sample_matching, spread
from bulklane.database.selection import matching_keys
from bulklane.operations.request import Request
from bulklane.operations.search import Found
from bulklane.starter.preview import Count, PreviewUnable

READ_SECONDS = 5.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class Sampling:
    """Of one request. `condition`: what its chunks check. `found`: by the search engine, where it selects."""

    engine: Engine
    request: Request
    condition: ColumnElement[bool]
    found: Found | None
    small_max_records: int

    def count(self, size: int) -> Count:
        """How many, where `size` was counted up to `small_max_records` + 1."""
        request = self.request
        if request.keys is not None:
            of_these = partial(count_present, records=request.records, tenant=request.tenant, keys=request.keys)
            return Count(len(request.keys), True, present=self._read(of_these), duplicates=request.duplicates)
        if self.found is not None or size <= self.small_max_records:
            return Count(size, True)
        whole = self._read(partial(count_all, records=request.records, tenant=request.tenant, condition=self.condition))
        return Count(self.small_max_records, False, about=self._about()) if whole is None else Count(whole, True)

    def keys(self, sample: int) -> list[Key]:
        """So many keys, in key order.

        Of ids those that are evenly spaced; of a search so many by chance; of a filter or all so many as good as by
        chance, where the matching rows can be read through in five seconds, else among the first that are found.
        """
        request = self.request
        if request.keys is not None:
            return spread(request.keys, sample)
        if self.found is not None:
            return list(self.found.keys)
        pick = partial(
            sample_matching, records=request.records, tenant=request.tenant, condition=self.condition, count=sample
        )
        for among in (None, CANDIDATES, sample):
            keys = self._read(partial(pick, among=among))
            if keys is not None:
                return keys
        raise PreviewUnable(
            f"no sample was found in {READ_SECONDS:g} s: few rows match, and no index leads to them; create one, or"
            " preview with ids"
        )

    def _about(self) -> int:
        with self.engine.connect() as connection:
            keys = matching_keys(self.request.records, self.request.tenant, self.condition)
            return int(explain(connection, keys)["Plan Rows"])

    def _read(self, read: Callable[[Connection], _T]) -> _T | None:
        """What it reads; None where it takes too long."""
        try:
            with limited_transaction(self.engine, statement=READ_SECONDS, transaction=READ_SECONDS * 1.2) as connection:
                return read(connection)
        except DBAPIError as error:
            if trouble_of(error) is not Trouble.SLOW:
                raise
            return None
