"""What filters mean, in plain Python: a second implementation to compare the compiled ones with.

Documents are mappings with the keys id, title, source, media_type, owner, collections, version, created, updated,
metadata and, for chunks, chunk_id, chunk_order, text.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from operators.filter_tree import AllOf, AnyOf, Compare, Filter, Not

MISSING = object()
RELATIONS = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le, "$eq": operator.eq}


def matches(filter: Filter, document: Mapping[str, Any]) -> bool:
    """Whether the document (or chunk) passes."""
    if isinstance(filter, AllOf):
        return all(matches(part, document) for part in filter.parts)
    if isinstance(filter, AnyOf):
        return any(matches(part, document) for part in filter.parts)
    if isinstance(filter, Not):
        return not matches(filter.part, document)
    assert isinstance(filter, Compare)
    return _compare(value_of(document, filter.field), filter.operator, filter.operand, filter.field)


def value_of(document: Mapping[str, Any], field: str) -> Any:
    """The value of a field, `MISSING` where there is none."""
    if field in document and field != "metadata":
        value = document[field]
        return sorted(set(value)) if field == "collections" else value
    first, *keys = field.split(".")
    assert first == "metadata", field
    value = document["metadata"]
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
    return value


def type_of(value: Any) -> str:
    """The name of a JSON type."""
    if value is MISSING:
        return "missing"
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "array", dict: "object"}
    return names[type(value)]


def number(value: float) -> float:
    """The database holds integers of 64 bits; others are doubles."""
    return float(value) if isinstance(value, int) and not -(2**63) <= value <= 2**63 - 1 else value


def equal(a: Any, b: Any) -> bool:
    """Whether two values are the same JSON, 1.0 being 1."""
    if type_of(a) != type_of(b):
        return False
    if type_of(a) == "array":
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if type_of(a) == "object":
        return sorted(a) == sorted(b) and all(equal(a[key], b[key]) for key in a)
    return number(a) == number(b) if type_of(a) == "number" else a == b


def like(pattern: str, text: str) -> bool:
    r"""A SQL pattern, by the table of which ends of the text the pattern's beginnings reach."""
    reached = {0}
    tokens = iter(pattern)
    for token in tokens:
        if token == "%":
            reached = set(range(min(reached), len(text) + 1)) if reached else set()
        else:
            wanted = next(tokens) if token == "\\" else token
            any_one = token == "_"
            reached = {end + 1 for end in reached if end < len(text) and (any_one or text[end] == wanted)}
    return len(text) in reached


def contains(a: Any, b: Any) -> bool:
    """PostgreSQL's a @> b below the top."""
    if type_of(a) == type_of(b) == "object":
        return all(contains(a.get(key, MISSING), b[key]) for key in b)
    if type_of(a) == type_of(b) == "array":
        return all(any(contains(x, y) for x in a) for y in b)
    return equal(a, b)


def _compare(value: Any, name: str, operand: Any, field: str) -> bool:
    elements = value if isinstance(value, list) else None
    if name == "$exists":
        return value is not MISSING
    if name == "$length":
        ((relation, wanted),) = operand.items()
        return isinstance(value, list | str) and RELATIONS[relation](len(value), wanted)
    if name in ("$array_contains", "$overlap"):
        quantifier = all if name == "$array_contains" else any
        return elements is not None and quantifier(any(equal(each, wanted) for each in elements) for wanted in operand)
    if name == "$contains":
        return operand in value if isinstance(value, str) else any(equal(each, operand) for each in elements or [])
    if isinstance(operand, list | dict) and name != "$in":
        return _structure(value, name, operand, field)
    return any(_one(each, name, operand) for each in ([value] if elements is None else elements))


def _structure(value: Any, name: str, operand: Any, field: str) -> bool:
    if name == "$json_contains":
        return contains(value, operand)
    if field == "collections" and isinstance(operand, list):
        return all(isinstance(part, str) for part in operand) and set(value) == set(operand)
    return equal(value, operand)


def _one(value: Any, name: str, operand: Any) -> bool:
    """Whether one value, no array, meets what looks into arrays."""
    if name == "$in":
        return any(_one(value, "$eq", each) for each in operand)
    if name == "$eq":
        return equal(None if value is MISSING else value, operand)
    if name in ("$like", "$ilike"):
        fold = str.casefold if name == "$ilike" else str
        return type_of(value) == "text" and like(fold(operand), fold(value))
    if type_of(value) != type_of(operand):
        return False
    return (
        RELATIONS[name](*map(number, (value, operand)))
        if type_of(value) == "number"
        else RELATIONS[name](value, operand)
    )
