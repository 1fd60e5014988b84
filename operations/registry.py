"""Loads operations and channels from the modules that a deployment names. No import side effects, no global."""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from bulklane.operations.channel import Channel
from bulklane.operations.failure_threshold import FailureThreshold
from bulklane.operations.operation import CallEffect, IndexEffect, Operation, OperationError, Registry, key_type_of
from bulklane.operations.per_record import check_way

_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")


def load_registry(modules: Sequence[str]) -> Registry:
    """The registry of these modules' `OPERATIONS` and `CHANNELS`.

    Raises OperationError where a module can't be imported, a name comes twice, or an effect names no channel.
    """
    loaded = [_import(name) for name in modules]
    operations = _by_name(
        "operation", ((one, module.__name__) for module in loaded for one in _list(module, "OPERATIONS", Operation))
    )
    channels = _by_name(
        "channel", ((one, module.__name__) for module in loaded for one in _list(module, "CHANNELS", Channel))
    )
    for operation in operations.values():
        _check(operation, channels)
    return Registry(operations, channels)


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        raise OperationError(
            f"the module {name!r} of BULKLANE_OPERATIONS can't be imported: {type(error).__name__}: {error}"
        ) from error


def _list(module: ModuleType, attribute: str, kind: type[Any]) -> list[Any]:
    found = getattr(module, attribute, None if attribute == "OPERATIONS" else [])
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, kind) for one in found):
        raise OperationError(
            f"the module {module.__name__} must end in {attribute} = [...], a list of {kind.__name__} instances"
        )
    return list(found)


def _by_name(what: str, found: Iterable[tuple[Any, str]]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for one, module in found:
        name = getattr(one, "name", None)
        if not isinstance(name, str) or not name:
            raise OperationError(f"a {what} in {module} has no name")
        if not _NAME.fullmatch(name):
            raise OperationError(
                f"the {what} {name!r} in {module}: a name is small letters, digits and underscores, since queues and"
                " settings are named after it"
            )
        if name in named:
            raise OperationError(f"two {what}s are named {name!r}; the second is in {module}")
        named[name] = one
    return named


def _check(operation: Operation, channels: dict[str, Any]) -> None:
    for required in ("records", "parameters"):
        if not hasattr(operation, required):
            raise OperationError(f"the operation {operation.name!r} has no `{required}`")
    _ = operation.records.key_types, key_type_of(operation.records.tenant)
    check_way(operation)
    if not isinstance(operation.failure_threshold, FailureThreshold | None):
        raise OperationError(f"failure_threshold of the operation {operation.name!r} must be a FailureThreshold")
    for column in operation.fields.values():
        key_type_of(column)
    names = [effect.name for effect in operation.effects]
    if len(set(names)) < len(names):
        raise OperationError(f"the operation {operation.name!r} has two effects of one name: {', '.join(names)}")
    asked = [] if operation.search is None or operation.search in operation.effects else [operation.search]
    for effect in (*operation.effects, *asked):
        channel = channels.get(effect.channel)
        if channel is None:
            known = ", ".join(sorted(channels)) or "none"
            raise OperationError(
                f"effect {effect.name!r} of {operation.name!r} names the channel {effect.channel!r}; known: {known}"
            )
        if isinstance(effect, IndexEffect) != channel.indexes:
            raise OperationError(
                f"effect {effect.name!r} of {operation.name!r} doesn't fit the channel {effect.channel!r}: an"
                " IndexEffect goes to a search index, a CallEffect to a provider"
            )
        if isinstance(effect, CallEffect) and not effect.body:
            raise OperationError(f"effect {effect.name!r} of {operation.name!r} has an empty body")
