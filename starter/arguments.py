"""Reads what is typed: selections, ids, strict JSON. Nothing is guessed, rounded or dropped in silence."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bulklane.operations.request import InvalidRequest, Problem

MOST_DIGITS = 4_300


class _NotJson(InvalidRequest):
    """The text doesn't follow JSON's grammar."""


def read_json(text: str, path: str) -> Any:
    """The value of a JSON text (RFC 8259); raises InvalidRequest, also where a name comes twice in an object."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_whole
        )
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        _refuse(path, "is nested too deeply")
    except json.JSONDecodeError as error:
        raise _NotJson(
            [Problem(path, f"is no JSON: {error.msg} (line {error.lineno}, column {error.colno})")]
        ) from None
    except UnicodeEncodeError:
        _refuse(path, "holds half a surrogate pair, which isn't Unicode text")
    except ValueError as error:
        _refuse(path, str(error))
    return value


def read_object(text: str, path: str) -> dict[str, Any]:
    """A JSON object; raises InvalidRequest."""
    value = read_json(text, path)
    if not isinstance(value, dict):
        _refuse(path, f'must be a JSON object, such as {{"name": 1}}; {text[:40]!r} is none')
    return value


def read_parameters(document: str | None, assignments: Sequence[str]) -> dict[str, Any]:
    """The parameters of `--parameters JSON` or of `-p name=value`, whose value is JSON or else a text."""
    if document is not None and assignments:
        _refuse("--parameters", "and -p exclude each other: give all parameters one way")
    if document is not None:
        return read_object(document, "--parameters")
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not (name and equals):
            _refuse("-p", f"{assignment[:40]!r} isn't name=value")
        if name in found:
            _refuse(f"-p {name}", "is given twice")
        found[name] = _value(text, f"-p {name}")
    return found


def _value(text: str, path: str) -> Any:
    try:
        return read_json(text, path)
    except _NotJson:
        return text


def read_selection(
    ids: Sequence[str],
    ids_files: Sequence[str],
    filters: Sequence[str],
    searches: Sequence[str] = (),
    *,
    every: bool,
) -> dict[str, Any]:
    """The one selection among the options; ids stay texts, so that they are exact. Raises InvalidRequest."""
    options = {"--ids": len(ids), "--ids-file": len(ids_files), "--filter": len(filters), "--search": len(searches)}
    given = [name for name, times in {**options, "--all": int(every)}.items() for _ in range(times)]
    if len(given) != 1:
        told = f"given: {', '.join(given)}" if given else "none is given"
        _refuse("selection", f"needs exactly one of --ids, --ids-file, --filter, --search and --all, once; {told}")
    if every:
        return {"all": True}
    if filters:
        return {"filter": read_object(filters[0], "--filter")}
    if searches:
        return {"search": read_object(searches[0], "--search")}
    if ids_files:
        return {"ids": _read_lines(ids_files[0])}
    parts = ids[0].split(",")
    for position, part in enumerate(parts):
        if not part:
            _refuse(f"--ids[{position}]", "is empty: ids are separated by single commas")
    return {"ids": parts}


def split_keys(selection: dict[str, Any]) -> dict[str, Any]:
    """For an operation whose keys have several columns: each id is a JSON array. Raises InvalidRequest."""
    if "ids" not in selection:
        return selection
    return selection | {"ids": [_key(text, f"id {number}") for number, text in enumerate(selection["ids"], 1)]}


def _key(text: str, path: str) -> Any:
    if not text.startswith("["):
        _refuse(path, f"{text[:40]!r}: a key has several columns here; write --ids-file with a JSON array on each line")
    return read_json(text, path)


def _read_lines(name: str) -> list[str]:
    path = "--ids-file"
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        _refuse(path, f"{name!r} can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        _refuse(path, f"{name!r} isn't UTF-8 text: byte {error.start} ({error.reason})")
    # not splitlines: a text key may hold characters that it takes for ends of lines
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [line for line in lines if line]


def check_texts(named: Mapping[str, str | None]) -> None:
    """Raise InvalidRequest for an option whose bytes weren't UTF-8: Python hands them on as lone surrogates."""
    problems = [Problem(name, "isn't UTF-8 text") for name, text in named.items() if text and not _is_unicode(text)]
    if problems:
        raise InvalidRequest(problems)


def _is_unicode(text: str) -> bool:
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:40]!r} comes twice in one object")
    return found


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number (write it in double quotes where the text is meant)")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long: {MOST_DIGITS} is the most")
    return int(text)


def _refuse(path: str, message: str) -> NoReturn:
    raise InvalidRequest([Problem(path, message)])
