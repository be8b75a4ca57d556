"""SQL functions that filters need beyond SQLite's own: patterns over Unicode, and JSON compared by value."""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache
from typing import Any

import msgspec

_INT64 = 2**63


def register_functions(db: sqlite3.Connection) -> None:
    """Gives a connection the functions that compiled filters call; all are pure, and NULL matches nothing.

    text_like(pattern, text), text_ilike(pattern, text): as the functions of this module.
    text_length(text): code points, also behind a NUL, at which SQLite's own stops counting.
    json_same(json, json), json_contains(json, json): as `same` and `contains` of the two decoded values.
    json_at(json, path): the JSON text at a path, itself a JSON list of keys; NULL where there is none.
    """
    db.create_function("text_like", 2, text_like, deterministic=True)
    db.create_function("text_ilike", 2, text_ilike, deterministic=True)
    db.create_function("text_length", 1, len, deterministic=True)
    db.create_function("json_same", 2, _json_same, deterministic=True)
    db.create_function("json_contains", 2, _json_contains, deterministic=True)
    db.create_function("json_at", 2, _json_at, deterministic=True)


def text_like(pattern: str, text: Any) -> bool:
    r"""Whether the whole text fits a SQL pattern, case-sensitive over all of Unicode.

    `%` stands for any run of characters, `_` for one code point, `\` takes the next character as it is. Time is
    proportional to the product of the lengths at worst, whatever the pattern: no backtracking over `%`.

    Args:
        pattern: Does not end within an escape.
        text: What is matched; anything but a text never fits.

    Example:
        >>> text_like("kelp%.md", "kelp/farm.md"), text_like(r"100\%", "1000")
        (True, False)
    """
    return isinstance(text, str) and _matches(_pieces(pattern), text)


def text_ilike(pattern: str, text: Any) -> bool:
    """As `text_like` of both case-folded, so that "STRASSE" fits "straße"; `_` is one code point of the folded text."""
    return isinstance(text, str) and _matches(_pieces(pattern.casefold()), text.casefold())


@lru_cache(maxsize=256)
def _pieces(pattern: str) -> tuple[tuple[re.Pattern[str], int], ...]:
    """What stands between the `%` signs, as expressions of fixed length, and these lengths."""
    pieces: list[list[str]] = [[]]
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        if token == "%":
            pieces.append([])
        else:
            pieces[-1].append("." if token == "_" else re.escape(token[-1]))
    return tuple((re.compile("".join(piece), re.DOTALL), len(piece)) for piece in pieces)


def _matches(pieces: tuple[tuple[re.Pattern[str], int], ...], text: str) -> bool:
    (first, at), rest = pieces[0], pieces[1:]
    if not rest:
        return first.fullmatch(text) is not None
    if first.match(text) is None:
        return False
    for piece, _ in rest[:-1]:  # the leftmost place leaves most room for the others: no need to try another
        found = piece.search(text, at)
        if found is None:
            return False
        at = found.end()
    last, length = rest[-1]
    return len(text) - length >= at and last.match(text, len(text) - length) is not None


def same(value: Any, operand: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true and "1" are not, the order of keys is nothing."""
    if isinstance(value, dict) and isinstance(operand, dict):
        return value.keys() == operand.keys() and all(same(value[key], operand[key]) for key in operand)
    if isinstance(value, list) and isinstance(operand, list):
        return len(value) == len(operand) and all(map(same, value, operand))
    return _kind(value) is _kind(operand) and bool(_number(value) == _number(operand))


def contains(value: Any, operand: Any) -> bool:
    """PostgreSQL's jsonb `@>`, but for its special case of a scalar in an array: structures match at every level.

    An object contains another if it has every key of that, with a value that contains that one's; an array contains
    another if each element of that is contained in some element, whatever their order and number.

    Example:
        >>> contains({"a": [1, {"b": 2, "c": 3}]}, {"a": [{"b": 2}]}), contains({"a": [1]}, {"a": 1})
        (True, False)
    """
    if isinstance(value, dict) and isinstance(operand, dict):
        return all(key in value and contains(value[key], wanted) for key, wanted in operand.items())
    if isinstance(value, list) and isinstance(operand, list):
        return all(any(contains(element, wanted) for element in value) for wanted in operand)
    return same(value, operand)


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)


def _number(value: Any) -> Any:
    """Integers that SQLite cannot hold are read as it reads them from JSON, so that all comparisons agree."""
    return float(value) if type(value) is int and not -_INT64 <= value < _INT64 else value


@lru_cache(maxsize=256)
def _operand(text: str) -> Any:
    return msgspec.json.decode(text)


def _json_same(value: str, operand: str) -> bool:
    return same(msgspec.json.decode(value), _operand(operand))


def _json_contains(value: str, operand: str) -> bool:
    return contains(msgspec.json.decode(value), _operand(operand))


def _json_at(document: str, path: str) -> str | None:
    value = msgspec.json.decode(document)
    for key in _operand(path):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return msgspec.json.encode(value).decode()
