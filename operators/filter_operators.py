r"""The operators that stand behind a field of a filter: which operand each takes, and the comparison that it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from operators.filter_tree import AllOf, Compare, Filter, Not

OPPOSITES: Final = {"$ne": "$eq", "$neq": "$eq", "$nin": "$in", "$not_contains": "$contains"}
_RELATIONS: Final = ("$eq", "$ne", "$neq", "$gt", "$gte", "$lt", "$lte")


def comparison(field: str, operator: str, operand: Any) -> Filter:
    """A positive operator with an operand that fits it, in the few forms that a tree has."""
    if operator == "$exists":
        return Compare(field, operator, True) if operand else Not(Compare(field, operator, True))
    if operator == "$length":
        lengths = operand if isinstance(operand, dict) else {"$eq": operand}
        return all_of([_length(field, relation, number) for relation, number in lengths.items()])
    if operator == "$json_contains":
        return _json_contains(field, operand)
    if operator == "$array_contains" or (operator == "$contains" and not isinstance(operand, str)):
        return Compare(field, "$array_contains", operand if isinstance(operand, list) else [operand])
    return Compare(field, operator, operand)


def _length(field: str, relation: str, number: float) -> Filter:
    if relation in OPPOSITES:
        return opposite(_length(field, OPPOSITES[relation], number))
    return Compare(field, "$length", {relation: number})


def _json_contains(field: str, operand: Any) -> Filter:
    """PostgreSQL lets an array contain a scalar as $eq does, and a list of scalars needs no descent either."""
    if operand is None:
        return AllOf((Compare(field, "$exists", True), Compare(field, "$eq", None)))
    if _is_scalar(operand):
        return Compare(field, "$eq", operand)
    return Compare(field, "$array_contains" if _is_scalars(operand) else "$json_contains", operand)


def all_of(parts: list[Filter]) -> Filter:
    """All parts; a single one is itself."""
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def opposite(part: Filter) -> Filter:
    """What does not hold exactly when the part does."""
    return part.part if isinstance(part, Not) else Not(part)


# What an operand is


def _is_anything(_: Any) -> bool:
    return True


def _is_flag(operand: Any) -> bool:
    return isinstance(operand, bool)


def _is_number(operand: Any) -> bool:
    return isinstance(operand, int | float) and not isinstance(operand, bool)


def _is_ordered(operand: Any) -> bool:
    return _is_number(operand) or isinstance(operand, str)


def _is_scalar(operand: Any) -> bool:
    return not isinstance(operand, list | dict)


def _is_scalars(operand: Any) -> bool:
    return isinstance(operand, list) and all(map(_is_scalar, operand))


def _is_scalar_or_scalars(operand: Any) -> bool:
    return _is_scalar(operand) or _is_scalars(operand)


def _is_pattern(operand: Any) -> bool:
    return isinstance(operand, str) and (len(operand) - len(operand.rstrip("\\"))) % 2 == 0


def _is_length(operand: Any) -> bool:
    if not isinstance(operand, dict):
        return _is_number(operand)
    return bool(operand) and operand.keys() <= set(_RELATIONS) and all(map(_is_number, operand.values()))


_ANYTHING: Final = (_is_anything, "a JSON value")
_ORDERED: Final = (_is_ordered, "a number or a text")
_PATTERN: Final = (
    _is_pattern,
    r"a text: % stands for any run, _ for any character, \ before these and \ for themselves",
)
_SCALARS: Final = (_is_scalars, "a list of texts, numbers, true, false, null")
_HELD: Final = (_is_scalar_or_scalars, "a text, a number, true, false, null, or a list of these")

OPERANDS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "$eq": _ANYTHING,
    "$gt": _ORDERED,
    "$gte": _ORDERED,
    "$lt": _ORDERED,
    "$lte": _ORDERED,
    "$in": _SCALARS,
    "$like": _PATTERN,
    "$ilike": _PATTERN,
    "$contains": _HELD,
    "$array_contains": _HELD,
    "$overlap": _SCALARS,
    "$json_contains": _ANYTHING,
    "$length": (_is_length, f"a number, or a mapping of {', '.join(_RELATIONS)} to numbers"),
    "$exists": (_is_flag, "true or false"),
}
"""Positive operators: whether an operand fits, and what does, in words."""

OPERATORS: Final = (*OPERANDS, *OPPOSITES, "$not")
