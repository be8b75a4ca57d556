"""Filters, scope and identity as conditions on the tables of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.scope import Identity
from operators.corpus.comparisons import OF_CHUNKS, comparison, in_collections
from operators.corpus.fragments import FALSE, TRUE, Sql, bound, joined, sql
from operators.filter_tree import AllOf, Compare, Filter, Not


@dataclass(frozen=True)
class Condition:
    """A condition on `documents d` and, if it is `of_chunks`, `chunks c`: true or false for every row, never NULL.

    Args:
        sql: An expression of operators/corpus/schema.py's tables; values are bound, never written into it.
        parameters: One for each `?` in it.
        of_chunks: Whether it speaks of `c`.
    """

    sql: str
    parameters: list[Any]
    of_chunks: bool = False


def compile_filter(filters: Filter) -> Condition:
    """The condition that says the same as a filter that operators/filter_parse.py made."""
    of_chunks = any(compare.field in OF_CHUNKS for compare in _comparisons(filters))
    return _condition(_logic(filters, negated=False), of_chunks=of_chunks)


def visible_to(identity: Identity | None) -> Condition:
    """The documents that someone may see: the own ones and those of the own groups; None sees everything.

    A document without an owner is nobody's, also for an identity without a user.
    """
    if identity is None:
        return _condition(TRUE)
    shared = in_collections([group for group in identity.groups if "\0" not in group])  # where SQLite ends a text
    if not identity.user:
        return _condition(shared)
    own = sql("d.owner = {}", bound(identity.user))
    return _condition(own if shared is FALSE else joined("OR", [own, shared]))


def in_scope(prefix: str) -> Condition:
    """The documents whose id begins so, code point by code point; without a prefix, all."""
    if not prefix:
        return _condition(TRUE)
    head = prefix.rstrip("\U0010ffff")  # no code point comes after that one, so the one before it is raised
    if not head:
        return _condition(sql("d.id >= {}", bound(prefix)))
    following = chr(0xE000 if head[-1] == "\ud7ff" else ord(head[-1]) + 1)  # between them are only half characters
    return _condition(sql("(d.id >= {} AND d.id < {})", bound(prefix), bound(head[:-1] + following)))


def both(*conditions: Condition) -> Condition:
    """The condition that all of these hold."""
    parts = [Sql(f"({each.sql})", each.parameters) for each in conditions if each.sql != TRUE.text]
    of_chunks = any(condition.of_chunks for condition in conditions)
    return _condition(joined("AND", parts) if parts else TRUE, of_chunks=of_chunks)


def _condition(expression: Sql, *, of_chunks: bool = False) -> Condition:
    return Condition(expression.text, expression.parameters, of_chunks)


def _comparisons(filters: Filter) -> Iterator[Compare]:
    if isinstance(filters, Compare):
        yield filters
    else:
        for part in (filters.part,) if isinstance(filters, Not) else filters.parts:
            yield from _comparisons(part)


def _logic(filters: Filter, *, negated: bool) -> Sql:
    """Negation goes down to the comparisons (De Morgan), so that it takes none of the parser's room for nesting."""
    if isinstance(filters, Not):
        return _logic(filters.part, negated=not negated)
    if isinstance(filters, Compare):
        expression = comparison(filters)
        return sql("NOT {}", expression) if negated else expression
    conjunction = isinstance(filters, AllOf) != negated
    if not filters.parts:
        return TRUE if conjunction else FALSE
    return joined("AND" if conjunction else "OR", [_logic(part, negated=negated) for part in filters.parts])
