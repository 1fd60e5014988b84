"""Search queries: the clauses of OpenSearch's query language that a selection may use, checked before anything asks.

{"term": {"origin": "EWR"}}    terms, range, exists, prefix, wildcard, match, match_phrase, multi_match
{"bool": {"must": [...], "filter": [...], "should": [...], "must_not": [...], "minimum_should_match": 1}}

An allow-list: what isn't known here could run a script, read another index, or cost what nobody foresees
(https://docs.opensearch.org/latest/query-dsl/). It also refuses what matches everything by mistake.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bulklane.contracts.key import LARGEST_BIGINT, LONGEST_TEXT, SMALLEST_BIGINT, shown

DEEPEST = 20
LONGEST_LIST = 1000
MOST_VALUES = 10_000
# OpenSearch's own limit is 1,024 (indices.query.bool.max_clause_count)
MOST_CLAUSES = 1000

_FIELD = re.compile(r"[A-Za-z0-9_@.-]{1,200}", re.ASCII)
_LISTS = ("must", "filter", "should", "must_not")
_BOUNDS = ("gt", "gte", "lt", "lte")
_OWN_FIELDS = ("key", "row_version")


class InvalidQuery(ValueError):
    """A query that isn't passed on; `path` says where."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


def check_query(query: object, fields: Sequence[str], path: str = "search") -> None:
    """Raise InvalidQuery unless the query has allowed clauses only, over `fields` and what Bulklane adds of its own."""
    _Check((*fields, *_OWN_FIELDS)).clause(query, path, 0)


@dataclass
class _Check:
    """One query's check, with what it has counted so far."""

    fields: Sequence[str]
    clauses: int = 0
    values: int = 0

    def clause(self, query: object, path: str, depth: int) -> None:
        """One clause, with all inside it."""
        if depth > DEEPEST:
            raise InvalidQuery(path, f"a query is nested at most {DEEPEST} deep")
        self.clauses += 1
        if self.clauses > MOST_CLAUSES:
            raise InvalidQuery(path, f"a query has at most {MOST_CLAUSES} clauses; use terms, or ids")
        if not isinstance(query, Mapping) or len(query) != 1:
            raise InvalidQuery(
                path, 'a query is an object with one clause, like {"term": {"origin": "EWR"}}; "all": true selects all'
            )
        ((name, body),) = query.items()
        if name == "bool":
            return self._bool(body, f"{path}.bool", depth)
        check = _CLAUSES.get(name) if isinstance(name, str) else None
        if check is None:
            known = ", ".join([*_CLAUSES, "bool"])
            raise InvalidQuery(path, f"{shown(name)} is not one of the clauses that a selection takes: {known}")
        return check(self, body, f"{path}.{name}")

    def _bool(self, body: object, path: str, depth: int) -> None:
        known = (*_LISTS, "minimum_should_match")
        given = _object(body, path, known)
        if not any(name in given for name in _LISTS):
            raise InvalidQuery(path, f'needs at least one of {", ".join(_LISTS)}; "all": true selects all')
        for name in _LISTS:
            if name in given:
                parts = given[name]
                parts = parts if isinstance(parts, list) else [parts]
                if not parts:
                    raise InvalidQuery(f"{path}.{name}", "needs at least one clause")
                for position, part in enumerate(parts):
                    self.clause(part, f"{path}.{name}[{position}]", depth + 1)
        _check_should(given, path)

    def field(self, name: object, path: str) -> None:
        """A field of the documents, or a part of one (`name.raw`)."""
        is_known = isinstance(name, str) and _FIELD.fullmatch(name) and name.split(".")[0] in self.fields
        if not is_known:
            raise InvalidQuery(path, f"{shown(name)} is not one of the index's fields {', '.join(self.fields)}")

    def value(self, value: object, path: str) -> None:
        """A scalar that OpenSearch gets as it is."""
        self.values += 1
        if self.values > MOST_VALUES:
            raise InvalidQuery(path, f"a query has at most {MOST_VALUES} values; use ids for more")
        if isinstance(value, str):
            return check_text(value, path)
        if isinstance(value, float) and math.isfinite(value):
            return None
        if isinstance(value, int) and SMALLEST_BIGINT <= value <= LARGEST_BIGINT:
            return None
        raise InvalidQuery(path, f"{shown(value)} is no text, no boolean and no number within 64 bits")


def check_text(value: object, path: str) -> None:
    """A text that can be stored and sent."""
    is_whole = isinstance(value, str) and "\x00" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    if not is_whole or len(str(value)) > LONGEST_TEXT:
        raise InvalidQuery(path, f"{shown(value)} is no Unicode text of at most {LONGEST_TEXT} characters without NUL")


def _check_should(given: Mapping[str, Any], path: str) -> None:
    """Beside must or filter, `should` selects nothing by default; a minimum of 0 selects all."""
    least, where = given.get("minimum_should_match"), f"{path}.minimum_should_match"
    count = len(given["should"]) if isinstance(given.get("should"), list) else 1
    if least is not None:
        if "should" not in given:
            raise InvalidQuery(where, "counts the clauses of should, and there is none")
        if isinstance(least, bool) or not isinstance(least, int) or not 1 <= least <= count:
            raise InvalidQuery(where, f"{shown(least)} is no whole number from 1 to {count}, the clauses of should")
    elif "should" in given and ("must" in given or "filter" in given):
        raise InvalidQuery(where, "is needed: beside must or filter, OpenSearch ignores should without it")


def _object(body: object, path: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(body, Mapping) or not body:
        raise InvalidQuery(path, f"is an object with {', '.join(known)}")
    for name in body:
        if name not in known:
            raise InvalidQuery(path, f"{shown(name)} is not one of {', '.join(known)}")
    return body


def _of_field(check: _Check, body: object, path: str) -> tuple[str, Any, str]:
    """The one field of a clause, what is asked of it, and where that stands."""
    if not isinstance(body, Mapping) or len(body) != 1:
        raise InvalidQuery(path, "is an object with one field")
    ((field, asked),) = body.items()
    check.field(field, path)
    return field, asked, f"{path}.{field}"


def _options(given: Mapping[str, Any], path: str, kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        if name not in given:
            continue
        value = given[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidQuery(f"{path}.{name}", f"{shown(value)} is no {_KIND_NAMES[kind]}")
        if isinstance(value, str):
            check_text(value, f"{path}.{name}")


_KIND_NAMES: Mapping[type, str] = {str: "text", int: "whole number", bool: "true or false"}


def _scalar(word: str, **kinds: type) -> Callable[[_Check, object, str], None]:
    """A clause on one field: a value, or an object with the value as `word` and options."""

    def check(state: _Check, body: object, path: str) -> None:
        _, asked, where = _of_field(state, body, path)
        if isinstance(asked, Mapping):
            given = _object(asked, where, (word, *kinds))
            if word not in given:
                raise InvalidQuery(f"{where}.{word}", "is needed")
            _options(given, where, kinds)
            return state.value(given[word], f"{where}.{word}")
        return state.value(asked, where)

    return check


def _terms(state: _Check, body: object, path: str) -> None:
    _, asked, where = _of_field(state, body, path)
    if not isinstance(asked, list) or not 1 <= len(asked) <= LONGEST_LIST:
        raise InvalidQuery(where, f"terms takes a list of 1 to {LONGEST_LIST} values; use ids for more")
    for position, value in enumerate(asked):
        state.value(value, f"{where}[{position}]")


def _range(state: _Check, body: object, path: str) -> None:
    _, asked, where = _of_field(state, body, path)
    given = _object(asked, where, (*_BOUNDS, "format", "time_zone"))
    _options(given, where, {"format": str, "time_zone": str})
    bounds = [name for name in _BOUNDS if name in given]
    if not bounds:
        raise InvalidQuery(where, f"needs at least one of {', '.join(_BOUNDS)}")
    for name in bounds:
        state.value(given[name], f"{where}.{name}")


def _exists(state: _Check, body: object, path: str) -> None:
    state.field(_object(body, path, ("field",))["field"], f"{path}.field")


def _wildcard(state: _Check, body: object, path: str) -> None:
    _scalar("value", case_insensitive=bool)(state, body, path)
    field, asked, where = _of_field(state, body, path)
    pattern = asked["value"] if isinstance(asked, Mapping) else asked
    if not isinstance(pattern, str) or pattern[:1] in ("", "*", "?"):
        # it would be compared with every term of the index; match or terms is what is meant
        raise InvalidQuery(where, f"{shown(pattern)}: a pattern for {field} begins with a letter that is no wildcard")


def _multi_match(state: _Check, body: object, path: str) -> None:
    kinds: Mapping[str, type] = {"operator": str, "type": str}
    given = _object(body, path, ("query", "fields", *kinds))
    fields = given.get("fields")
    if not isinstance(fields, list) or not 1 <= len(fields) <= LONGEST_LIST:
        raise InvalidQuery(f"{path}.fields", "needs a list of at least one field")
    for position, field in enumerate(fields):
        state.field(field, f"{path}.fields[{position}]")
    if "query" not in given:
        raise InvalidQuery(f"{path}.query", "is needed")
    _options(given, path, kinds)
    state.value(given["query"], f"{path}.query")


_CLAUSES: Mapping[str, Callable[[_Check, object, str], None]] = {
    "term": _scalar("value", case_insensitive=bool),
    "terms": _terms,
    "range": _range,
    "exists": _exists,
    "prefix": _scalar("value", case_insensitive=bool),
    "wildcard": _wildcard,
    "match": _scalar("query", operator=str, minimum_should_match=int, fuzziness=int),
    "match_phrase": _scalar("query", slop=int),
    "multi_match": _multi_match,
}
