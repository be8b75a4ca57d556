"""One comparison of a filter as SQL, for each kind of field: columns, collections, metadata.

Whatever is said here is TRUE or FALSE for every row and never NULL, so that NOT of it is exactly the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from operators.corpus.fragments import FALSE, TRUE, Sql, among, as_json, bound, joined, sql
from operators.filter_tree import Compare

OF_CHUNKS: Final = ("chunk_id", "chunk_order", "text")
_COLUMNS: Final = {
    "id": ("d.id", "text"),
    "owner": ("d.owner", "text"),
    "title": ("d.title", "text"),
    "source": ("d.source", "text"),
    "media_type": ("d.media_type", "text"),
    "version": ("d.version", "integer"),
    "created": ("d.created", "real"),
    "updated": ("d.updated", "real"),
    "chunk_id": ("(d.id || '#' || c.ordinal)", "text"),
    "chunk_order": ("c.ordinal", "integer"),
    "text": ("c.text", "text"),
}
_RELATIONS: Final = {"$eq": "=", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
_NUMBERS: Final = ("integer", "real")
_UNQUOTABLE: Final = re.compile(r'["\\\x00-\x1f]')  # SQLite's paths, unlike ours, cannot say such keys

Test = tuple[tuple[str, ...], Callable[[Sql], Sql]]
"""What a scalar of one of these JSON types has to meet, given the expression of its value."""


def comparison(compare: Compare) -> Sql:
    """A comparison as operators/filter_tree.py describes it."""
    if compare.field in _COLUMNS:
        return _column(compare)
    if compare.field == "collections":
        return _collections(compare.operator, compare.operand)
    return _metadata(_source(compare.field), compare.operator, compare.operand)


# Scalars


def _tests(operator: str, operand: Any) -> list[Test]:
    """What one scalar has to meet; a type that no test names does not match."""
    if operator in ("$eq", "$in"):
        return _equal_one_of(operand if operator == "$in" else [operand])
    if operator in ("$like", "$ilike"):
        return [(("text",), lambda value: sql(f"text_{operator[1:]}({{}}, {{}})", bound(operand), value))]
    if operator in _RELATIONS:
        types = ("text",) if isinstance(operand, str) else _NUMBERS
        return [(types, lambda value: _related(value, operator, operand))]
    return []


def _equal_one_of(operands: list[Any]) -> list[Test]:
    texts = [operand for operand in operands if isinstance(operand, str)]
    numbers = [operand for operand in operands if type(operand) in (int, float)]
    tests: list[Test] = [
        ((name,), lambda _: TRUE)
        for name, constant in (("null", None), ("true", True), ("false", False))
        if any(operand is constant for operand in operands)
    ]
    if texts:
        tests.append((("text",), lambda value: among(value, texts)))
    if numbers:
        tests.append((_NUMBERS, lambda value: among(value, numbers)))
    return tests


def _related(value: Sql, operator: str, operand: Any) -> Sql:
    return sql(f"{{}} {_RELATIONS[operator]} {{}}", value, bound(operand))


def _has_length(length: Sql, operand: dict[str, Any]) -> Sql:
    ((relation, number),) = operand.items()
    return _related(length, relation, number)


# Columns


def _column(compare: Compare) -> Sql:
    operator, operand = compare.operator, compare.operand
    name, kind = _COLUMNS[compare.field]
    column = Sql(name)
    if operator == "$exists":
        return TRUE
    if operator == "$contains" and kind == "text":
        return sql("instr({}, {}) > 0", column, bound(operand))
    if operator == "$length" and kind == "text":
        return _has_length(sql("text_length({})", column), operand)
    tests = [test(column) for types, test in _tests(operator, operand) if kind in types]
    if not tests:
        return FALSE
    if compare.field == "chunk_id" and operator in ("$eq", "$in"):  # the index of ids finds the few documents first
        names = operand if operator == "$in" else [operand]
        ids = [chunk_id.rpartition("#")[0] for chunk_id in names if isinstance(chunk_id, str)]
        return joined("AND", [among(Sql("d.id"), ids), *tests])
    return tests[0]


# Collections


def in_collections(names: list[Any]) -> Sql:
    """Whether a document is in one of the collections; what is no text names none."""
    return _collections("$in", names)


def _collections(operator: str, operand: Any) -> Sql:
    size = Sql("(SELECT count(*) FROM memberships WHERE document = d.number)")
    if operator == "$exists":
        return TRUE
    if operator == "$length":
        return _has_length(size, operand)
    if operator == "$eq" and isinstance(operand, list):
        distinct = len({name for name in operand if isinstance(name, str)})
        return joined("AND", [_in_all(operand), _related(size, "$eq", distinct)])
    if operator == "$array_contains":
        return _in_all(operand)
    if operator in ("$contains", "$overlap"):
        operator, operand = "$in", operand if isinstance(operand, list) else [operand]
    tests = [test(Sql("collection")) for types, test in _tests(operator, operand) if "text" in types]
    return sql("d.number IN (SELECT document FROM memberships WHERE {})", tests[0]) if tests else FALSE


def _in_all(names: list[Any]) -> Sql:
    if not names:
        return TRUE
    if not all(isinstance(name, str) for name in names):
        return FALSE
    distinct = sorted(set(names))
    return sql(
        "d.number IN (SELECT document FROM memberships WHERE {} GROUP BY document HAVING count(*) = {})",
        among(Sql("collection"), distinct),
        bound(len(distinct)),
    )


# Metadata


def _source(field: str) -> Sql:
    """The arguments with which SQLite's JSON functions find the field."""
    steps = field.split(".")[1:]
    if any(_UNQUOTABLE.search(step) for step in steps):
        return sql("json_at(d.metadata, {}), '$'", as_json(steps))
    return sql("d.metadata, {}", bound("$" + "".join(f'."{step}"' for step in steps)))


def _metadata(source: Sql, operator: str, operand: Any) -> Sql:
    if operator == "$exists":
        return sql("json_type({}) IS NOT NULL", source)
    return _by_type(source, _conditions(source, operator, operand))


def _conditions(source: Sql, operator: str, operand: Any) -> list[tuple[str, Sql]]:
    """What the value has to meet, for each JSON type that can."""
    value = sql("json_extract({})", source)
    if operator == "$length":
        lengths = {"text": sql("length({})", value), "array": sql("json_array_length({})", source)}
        return [(name, _has_length(length, operand)) for name, length in lengths.items()]
    if operator in ("$eq", "$json_contains") and isinstance(operand, list | dict):
        function = "json_same" if operator == "$eq" else "json_contains"
        holds = sql(f"{function}({{}}, {{}})", value, as_json(operand))
        return [("array" if isinstance(operand, list) else "object", holds)]
    if operator == "$array_contains":
        return [("array", _holds_all(source, operand))]
    if operator == "$overlap":
        return [("array", _holds_one(source, _tests("$in", operand)))]
    if operator == "$contains":
        found = sql("instr({}, {}) > 0", value, bound(operand))
        return [("text", found), ("array", _holds_one(source, _tests("$eq", operand)))]
    tests = _tests(operator, operand)
    scalars = [(name, test(value)) for types, test in tests for name in types]
    return [*scalars, ("array", _holds_one(source, tests))]


def _by_type(source: Sql, conditions: list[tuple[str, Sql]]) -> Sql:
    """The condition on the value's JSON type; what is missing counts as null, and types without one do not match."""
    conditions = [(name, condition) for name, condition in conditions if condition is not FALSE]
    if not conditions:
        return FALSE
    branches = " ".join(f"WHEN '{name}' THEN {{}}" for name, _ in conditions)
    template = f"CASE coalesce(json_type({{}}), 'null') {branches} ELSE FALSE END"
    return sql(template, source, *(condition for _, condition in conditions))


def _holds_one(source: Sql, tests: list[Test]) -> Sql:
    if not tests:
        return FALSE
    value = Sql("e.value")
    elements = [sql(f"(e.type IN {_quoted(types)} AND {{}})", test(value)) for types, test in tests]
    return sql("EXISTS (SELECT 1 FROM json_each({}) AS e WHERE {})", source, joined("OR", elements))


def _quoted(types: tuple[str, ...]) -> str:
    return "(" + ", ".join(f"'{name}'" for name in types) + ")"


def _holds_all(source: Sql, operands: list[Any]) -> Sql:
    if len(operands) == 1:
        return _holds_one(source, _tests("$in", operands))
    return sql(
        "NOT EXISTS (SELECT 1 FROM json_each({}) AS w WHERE NOT EXISTS (SELECT 1 FROM json_each({}) AS e"
        " WHERE replace(e.type, 'integer', 'real') = replace(w.type, 'integer', 'real') AND e.atom IS w.atom))",
        as_json(operands),
        source,
    )
