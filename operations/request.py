"""Reads a request for a job: the one place where what comes from outside becomes values. Bad input stores nothing."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from sqlalchemy import ColumnElement, true

from bulklane.contracts.key import InvalidKey, Key, format_key, parse_key, shown
from bulklane.contracts.message import MOST_PARALLELISM
from bulklane.operations.filter import InvalidFilter, read_filter
from bulklane.operations.live import NotLive, check_operation_live
from bulklane.operations.operation import Operation, OperationError, Records, Registry, UnknownOperation
from bulklane.operations.parameter_value import no_instants, not_finite
from bulklane.operations.search_query import InvalidQuery, check_query
from bulklane.operations.work import work_of

MOST_IDS = 1_000_000
MOST_PROBLEMS = 20
LONGEST_NAME = 200
LONGEST_WHY = 500

_FIELDS = (
    "job_id",
    "tenant",
    "operation",
    "parameters",
    "selection",
    "idempotency_key",
    "parallelism",
    "priority",
    "who",
    "why",
)


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where."""

    path: str
    message: str


class InvalidRequest(ValueError):
    """The request can't be accepted as it is; `problems` names each place, the value and the rule."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{problem.path}: {problem.message}" for problem in problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Request:
    """A request that was read and checked; everything that acceptance stores."""

    job_id: str
    tenant: str
    operation: str
    parameters: Mapping[str, Any]
    content_hash: str
    resources: Sequence[str]
    records: Records
    selection_kind: str
    selection_spec: Mapping[str, Any]
    keys: Sequence[Key] | None
    condition: ColumnElement[bool] | None
    duplicates: int
    channels: Sequence[str]
    parallelism: int
    hold_lease: bool
    priority: int
    idempotency_key: str | None
    who: str
    why: str
    live: bool = False


@dataclass(frozen=True)
class Selected:
    """A selection that was read: keys, a condition, or neither where the search engine is asked.

    `live`: walked by key order, without freezing keys.
    """

    kind: str
    spec: Mapping[str, Any]
    keys: Sequence[Key] | None
    condition: ColumnElement[bool] | None
    duplicates: int = 0
    live: bool = False


def read_request(raw: object, registry: Registry) -> Request:
    """The request of a JSON object; raises InvalidRequest with every problem found (at most twenty)."""
    if not isinstance(raw, Mapping):
        raise InvalidRequest([Problem("request", f"must be an object with {', '.join(_FIELDS)}")])
    problems = [Problem(shown(name), f"is not one of {', '.join(_FIELDS)}") for name in raw if name not in _FIELDS]
    job_id = _name(raw, "job_id", problems)
    tenant = _name(raw, "tenant", problems)
    operation = _operation(raw, registry, problems)
    key = _optional_name(raw, "idempotency_key", problems)
    priority = _number(raw, "priority", 1, 5, 3, problems)
    who, why = (_note(raw, name, problems) for name in ("who", "why"))
    if operation is None:
        raise InvalidRequest(problems[:MOST_PROBLEMS])
    _check_tenant(tenant, operation, problems)
    parallelism = _number(raw, "parallelism", 1, MOST_PARALLELISM, operation.parallelism, problems)
    parameters = _parameters(raw.get("parameters", {}), operation, problems)
    selected = _selection(raw.get("selection"), operation, problems)
    if selected is not None and selected.live and not problems:
        _check_live(operation, parameters, selected, problems)
    if selected is not None and not problems:
        _check_work(operation, parameters, problems)
    if problems or selected is None:
        raise InvalidRequest(problems[:MOST_PROBLEMS])
    stored = parameters_json(operation, parameters)
    return Request(
        job_id=job_id,
        tenant=tenant,
        operation=operation.name,
        parameters=stored,
        content_hash=_hash(tenant, operation.name, stored, selected),
        resources=list(operation.resources(tenant, parameters)),
        records=operation.records,
        selection_kind=selected.kind,
        selection_spec=selected.spec,
        keys=selected.keys,
        condition=selected.condition,
        duplicates=selected.duplicates,
        channels=operation.channels,
        parallelism=parallelism,
        hold_lease=operation.hold_lease_until_effects_final,
        priority=priority,
        idempotency_key=key,
        who=who,
        why=why,
        live=selected.live,
    )


def read_parameters(operation: Operation, stored: Mapping[str, Any]) -> Any:
    """The operation's parameters, of values that were stored."""
    return _adapter(operation).validate_python(dict(stored))


def parameters_json(operation: Operation, parameters: Any) -> dict[str, Any]:
    """The parameters as JSON values."""
    dumped = _adapter(operation).dump_python(parameters, mode="json")
    return dict(dumped)


def read_condition(operation: Operation, kind: str, spec: Mapping[str, Any]) -> ColumnElement[bool]:
    """The condition of a stored selection: true where keys select."""
    return read_filter(spec, operation.fields) if kind == "filter" else true()


def _adapter(operation: Operation) -> TypeAdapter[Any]:
    parameters: Any = operation.parameters
    return _adapter_of(parameters)


@cache
def _adapter_of(parameters: Any) -> TypeAdapter[Any]:
    parameters.__pydantic_config__ = ConfigDict(extra="forbid")
    return TypeAdapter(parameters)


def _name(raw: Mapping[str, Any], field: str, problems: list[Problem]) -> str:
    found = _optional_name(raw, field, problems)
    if found is None and not any(problem.path == field for problem in problems):
        problems.append(Problem(field, "is needed"))
    return found or ""


def _optional_name(raw: Mapping[str, Any], field: str, problems: list[Problem]) -> str | None:
    value = raw.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME or not value.isprintable():
        problems.append(Problem(field, f"{shown(value)} is no text of 1 to {LONGEST_NAME} printable characters"))
        return None
    return value


def _note(raw: Mapping[str, Any], field: str, problems: list[Problem]) -> str:
    value = raw.get(field, "")
    if not isinstance(value, str) or len(value) > LONGEST_WHY or not _storable(value):
        problems.append(Problem(field, f"is a text of at most {LONGEST_WHY} Unicode characters, none of them NUL"))
        return ""
    return value


def _storable(text: str) -> bool:
    """Whether PostgreSQL can store it: no NUL, no half of a surrogate pair."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _number(raw: Mapping[str, Any], field: str, least: int, most: int, default: int, problems: list[Problem]) -> int:
    value = raw.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        problems.append(Problem(field, f"{shown(value)} is no whole number from {least} to {most}"))
        return default
    return value


def _operation(raw: Mapping[str, Any], registry: Registry, problems: list[Problem]) -> Operation | None:
    name = _name(raw, "operation", problems)
    if not name:
        return None
    try:
        return registry.operation(name)
    except UnknownOperation as error:
        problems.append(Problem("operation", str(error)))
        return None


def _check_tenant(tenant: str, operation: Operation, problems: list[Problem]) -> None:
    if not tenant:
        return
    try:
        canonical = format_key((operation.records.tenant_value(tenant),))
    except InvalidKey as error:
        problems.append(Problem("tenant", str(error)))
        return
    if canonical != tenant:
        # leases and documents are compared by this text: two spellings would be two tenants with the same rows
        problems.append(Problem("tenant", f"{shown(tenant)} is written as {canonical!r} here"))


def _parameters(value: object, operation: Operation, problems: list[Problem]) -> Any:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        # jsonb takes no NUL; an escaped backslash before `u0000` is no such escape
        if _storable(text) and "\\u0000" not in text.replace("\\\\", ""):
            return _instants(_adapter(operation), text, problems)
        problems.append(Problem("parameters", "hold a NUL character or half a surrogate pair"))
    except ValidationError as error:
        for one in error.errors(include_url=False, include_context=False):
            path = ".".join(["parameters", *map(str, one["loc"])])
            problems.append(Problem(path, f"{shown(one['input'])}: {one['msg']}"))
    except (TypeError, ValueError, RecursionError) as error:
        problems.append(Problem(_place(value), f"are not JSON: {error}"))
    return None


def _instants(adapter: TypeAdapter[Any], text: str, problems: list[Problem]) -> Any:
    parameters = adapter.validate_json(text, strict=True)
    found = no_instants(adapter.dump_python(parameters), json.loads(text), "parameters")
    problems.extend(Problem(path, message) for path, message in found)
    return parameters


def _place(value: object) -> str:
    with suppress(RecursionError):
        return next(not_finite(value, "parameters"), "parameters")
    return "parameters"


_SELECTIONS = {
    "ids": '{"ids": [...]}',
    "filter": '{"filter": {...}}',
    "search": '{"search": {...}}',
    "all": '{"all": true}',
}


def _check_work(operation: Operation, parameters: Any, problems: list[Problem]) -> None:
    try:
        work_of(operation, parameters)
    except OperationError as error:
        problems.append(Problem("operation", str(error)))
    except Exception:  # noqa: S110 - a bug is told by the walk and the preview, which name its place
        pass


def _check_live(operation: Operation, parameters: Any, selected: Selected, problems: list[Problem]) -> None:
    if selected.condition is None:
        return
    try:
        check_operation_live(operation, parameters, selected.condition)
    except NotLive as error:
        problems.append(Problem("selection.live", str(error)))


def _selection(value: object, operation: Operation, problems: list[Problem]) -> Selected | None:
    if not isinstance(value, Mapping) or "live" not in value:
        return _plain_selection(value, operation, problems)
    selected = _plain_selection({name: one for name, one in value.items() if name != "live"}, operation, problems)
    live = value["live"]
    if not isinstance(live, bool):
        problems.append(Problem("selection.live", f"{shown(live)} is neither true nor false"))
    elif live and selected is not None and selected.kind not in ("filter", "all"):
        problems.append(Problem("selection.live", "goes with filter or all: other selections are frozen as they are"))
    return None if selected is None else replace(selected, live=live is True)


def _plain_selection(value: object, operation: Operation, problems: list[Problem]) -> Selected | None:
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in _SELECTIONS:
        problems.append(Problem("selection", f"needs exactly one of {', '.join(_SELECTIONS.values())}"))
        return None
    ((kind, spec),) = value.items()
    if kind == "ids":
        return _ids(spec, operation, problems)
    if kind == "all":
        if spec is not True:
            problems.append(Problem("selection.all", "takes only true: it selects every record of the tenant"))
        return Selected("all", {}, None, true())
    if kind == "search":
        return _search(spec, operation, problems)
    try:
        return Selected("filter", spec, None, read_filter(spec, operation.fields, "selection.filter"))
    except InvalidFilter as error:
        problems.append(Problem(error.path, error.message))
        return None


def _ids(spec: object, operation: Operation, problems: list[Problem]) -> Selected | None:
    if not isinstance(spec, Sequence) or isinstance(spec, (str, bytes)) or not 1 <= len(spec) <= MOST_IDS:
        problems.append(Problem("selection.ids", f'needs a list of 1 to {MOST_IDS} ids; {{"all": true}} selects all'))
        return None
    keys: list[Key] = []
    types = operation.records.key_types
    for position, value in enumerate(spec):
        try:
            keys.append(parse_key(value, types))
        except InvalidKey as error:
            problems.append(Problem(f"selection.ids[{position}]", str(error)))
            if len(problems) >= MOST_PROBLEMS:
                break
    distinct = sorted(set(keys))
    return Selected("ids", {}, distinct, true(), duplicates=len(keys) - len(distinct))


def _search(spec: Any, operation: Operation, problems: list[Problem]) -> Selected | None:
    effect = operation.searched
    if effect is None:
        why = f"the operation {operation.name!r} has no search index: it names no index effect to ask (`search`)"
        problems.append(Problem("selection.search", why))
        return None
    try:
        check_query(spec, list(effect.document), "selection.search")
    except InvalidQuery as error:
        problems.append(Problem(error.path, error.message))
        return None
    return Selected("search", spec, None, None)


def _hash(tenant: str, operation: str, parameters: Mapping[str, Any], selected: Selected) -> str:
    """Equal for the same content: the order of the ids and doubles among them don't count."""
    digest = hashlib.sha256()
    content = [tenant, operation, parameters, selected.kind, selected.spec, *(["live"] if selected.live else [])]
    digest.update(json.dumps(content, sort_keys=True, default=str).encode())
    for key in selected.keys or ():
        digest.update(format_key(key).encode() + b"\x00")
    return digest.hexdigest()
