"""Expressions of SQL that carry their parameters with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec


@dataclass(frozen=True)
class Sql:
    """An expression.

    Args:
        text: With a `?` for each parameter.
        parameters: In the order of the question marks.
        open: How many symbols SQLite's parser holds open for the logic that nests in it; it holds 100 at most.
    """

    text: str
    parameters: list[Any] = field(default_factory=list)
    open: int = 0


TRUE: Final = Sql("TRUE")
FALSE: Final = Sql("FALSE")
_ROW: Final = 32  # SQLite refuses expressions 1,000 deep, and each AND of a row lies one deeper than the last


def sql(template: str, *parts: Sql) -> Sql:
    """The template with each `{}` replaced by a part."""
    parameters = [parameter for part in parts for parameter in part.parameters]
    return Sql(template.format(*(part.text for part in parts)), parameters)


def bound(value: Any) -> Sql:
    """A parameter."""
    return Sql("?", [value])


def as_json(value: Any) -> Sql:
    """A parameter that holds JSON."""
    return bound(msgspec.json.encode(value).decode())


def among(value: Sql, options: list[Any]) -> Sql:
    """Whether a value is one of those, with one parameter however many they are."""
    if len(options) == 1:
        return sql("{} = {}", value, bound(options[0]))
    return sql("{} IN (SELECT value FROM json_each({}))", value, as_json(options))


def joined(word: str, parts: list[Sql]) -> Sql:
    """At least one part, joined by AND or OR so that SQLite takes them however they nest.

    What needs most of the parser's open symbols goes first, where one symbol stands before it and not three; long rows
    are joined in groups.
    """
    first, *rest = sorted(parts, key=lambda part: part.open, reverse=True)
    if len(rest) > _ROW:
        rest = [joined(word, rest[start : start + _ROW]) for start in range(0, len(rest), _ROW)]
    if not rest:
        return first
    row = sql("(" + f" {word} ".join(["{}"] * (1 + len(rest))) + ")", first, *rest)
    return Sql(row.text, row.parameters, max(first.open + 1, *(part.open + 3 for part in rest)))
