r"""The language of filters, as MongoDB's: a mapping of fields to values or operators, parsed once into a tree.

A filter such as `{"year": {"$gte": 1890}, "$or": [{"tags": "kelp"}, {"owner": "ann"}]}` says what a document must be
like. Several fields in one mapping, and several operators on one field, all have to hold; `{}` lets everything through.
`$and`, `$or` take lists of filters (an empty `$and` is true, an empty `$or` false), `$not` takes one.

Fields:
    id (document_id), owner (owner_id), collections (collection_ids, collection_id), title, source, media_type
    (document_type), version, created (created_at), updated (updated_at); of the chunk: chunk_id, chunk_order, text.
    Every other name is a metadata key, with or without "metadata." before it, a dot between nested keys;
    `{"metadata": {"a": 1}}` says the same as `{"metadata.a": 1}`. The names above win over metadata keys of the same
    name, which are reached as "metadata.title". A key that has a dot in itself is reached by
    `{"metadata": {"$json_contains": {"a.b": 1}}}`. Nested keys do not look into arrays.

Values:
    A value is missing, null, true or false, a number, a text, an array or an object. 1 equals 1.0; otherwise values of
    different types are never equal and never ordered, and comparing them is no error, it does not match: "1" is not 1,
    true is not 1. Texts are compared by code points. Numbers are 64-bit integers or doubles.
    `created` and `updated` are seconds since 1970; ISO 8601 texts are taken for them, without an offset as UTC.
    `collections` is a set of texts: order and repetition are nothing.
    Only metadata can be missing or null.

================================ ============================= =========================================================
operator                         operand                       matches if the value
================================ ============================= =========================================================
$eq, or the value alone          scalar                        equals it, or is an array that holds it;
                                                               null: also if it is missing
$eq                              array or object               equals it, element by element, key by key
$in, or a list alone             list of scalars               matches $eq with one of them; [] matches nothing
$gt $gte $lt $lte                number or text                is so related, or is an array of which one element is
$like $ilike                     text; % any run, _ any one    is such a text, or is an array that holds one;
                                 code point, \ before either   $ilike: both case-folded
$contains                        text                          is a text with that in it, or an array that holds it
$contains, $array_contains       other scalar, or list         is an array that holds it, or all of the list
$overlap                         list of scalars               is an array that holds one of them
$json_contains                   any                           contains it, as jsonb @> in PostgreSQL: objects by some
                                                               of their keys, arrays in any order, at every level
$length                          number, or a mapping of       is a text of that many code points, or an array of that
                                 $eq $ne $gt $gte $lt $lte     many elements
$exists                          true or false                 is there, if only as null; false: is missing
$ne (or $neq) $nin $not_contains as $eq, $in, $contains        does not match $eq, $in, $contains: also if it is missing
$not                             value or operators            does not match them
================================ ============================= =========================================================

Whatever is not said here is refused: an operator that is not known, an operand of another type, an empty mapping or one
of plain keys where operators are expected, more than `MAX_NESTING` levels or `MAX_NODES` parts.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from engine.errors import InvalidInput
from operators.filter_operators import OPERANDS, OPERATORS, OPPOSITES, all_of, comparison, opposite
from operators.filter_tree import AnyOf, Compare, Filter, Not

MAX_NESTING: Final = 32  # mappings and lists within each other, and keys of one path
MAX_NODES: Final = 1_000  # comparisons, $and, $or and $not

_FIELDS: Final = {
    "id": "id", "document_id": "id", "owner": "owner", "owner_id": "owner", "collections": "collections",
    "collection_ids": "collections", "collection_id": "collections", "title": "title", "source": "source",
    "media_type": "media_type", "document_type": "media_type", "version": "version", "created": "created",
    "created_at": "created", "updated": "updated", "updated_at": "updated", "chunk_id": "chunk_id",
    "chunk_order": "chunk_order", "text": "text", "metadata": "metadata",
}  # fmt: skip
_TIMES: Final = ("created", "updated")
_SHOWN: Final = 200  # characters of a place that a message shows
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def parse_filter(raw: Any) -> Filter:
    """The tree that says the same as a mapping in the language above.

    Raises:
        InvalidInput: The mapping is malformed; the message names the place, the operator or value, and what is valid.

    Example:
        >>> parse_filter({"year": {"$gte": 1890}})
        Compare(field='metadata.year', operator='$gte', operand=1890)
    """
    tree = _filter(_json(raw, "filters", 0), "filters")
    nodes = _count(tree)
    if nodes > MAX_NODES:
        raise InvalidInput(f"filters has {nodes:,} parts; at most {MAX_NODES:,} are taken: list many values with $in")
    return tree


def _refuse(where: str, value: Any, expected: str) -> NoReturn:
    raise InvalidInput(f"{where[:_SHOWN]} is {reprlib.repr(value)}; expected {expected}")


# JSON


def _json(value: Any, where: str, depth: int) -> Any:
    """The value as JSON that every store can hold: no NUL, no half characters, numbers within 64 bits."""
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, where)
    if isinstance(value, list | tuple | Mapping):
        if depth == MAX_NESTING:
            raise InvalidInput(f"{where[:_SHOWN]} is nested too deeply; at most {MAX_NESTING} levels are taken")
        if isinstance(value, Mapping):
            return {_key(key, where): _json(part, f"{where}.{key}", depth + 1) for key, part in value.items()}
        return [_json(part, f"{where}[{place}]", depth + 1) for place, part in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    _refuse(where, value, "a JSON value: a mapping, a list, a text, a number, true, false or null")


def _key(key: Any, where: str) -> str:
    return _text(key, f"a key of {where}") if isinstance(key, str) else _refuse(f"a key of {where}", key, "a text")


def _text(value: str, where: str) -> str:
    if _UNSTORABLE.search(value):
        _refuse(where, value, "a text without NUL characters and lone surrogates; decode it as UTF-8")
    return value


def _number(value: float, where: str) -> int | float:
    """Integers of more than 64 bits become doubles, as the database reads them."""
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf  # not shown as it came: Python refuses to print an integer of thousands of digits
    return number if math.isfinite(number) else _refuse(where, number, "a finite number, of at most 1.8e308")


# Filters


def _filter(raw: Any, where: str) -> Filter:
    if not isinstance(raw, dict):
        _refuse(where, raw, "a mapping of fields to values or operators")
    return all_of([_entry(key, value, f"{where}.{key}") for key, value in raw.items()])


def _entry(key: str, value: Any, where: str) -> Filter:
    if key == "$not":
        return opposite(_filter(value, where))
    if key in ("$and", "$or"):
        if not isinstance(value, list):
            _refuse(where, value, "a list of filters")
        parts = [_filter(part, f"{where}[{place}]") for place, part in enumerate(value)]
        return all_of(parts) if key == "$and" else AnyOf(tuple(parts))
    if key.startswith("$"):
        _unknown(where, key, "a filter has fields, $and, $or, $not; operators stand behind a field")
    if key == "metadata" and isinstance(value, dict) and value and not any(name.startswith("$") for name in value):
        return all_of(
            [_field(_path(f"metadata.{name}", where), part, f"{where}.{name}") for name, part in value.items()]
        )
    return _field(_path(key, where), value, where)


def _path(name: str, where: str) -> str:
    steps = name.split(".")
    if not all(steps) or len(steps) > MAX_NESTING:
        _refuse(where, name, f"the name of a field: 1 to {MAX_NESTING} keys joined by dots, none empty")
    return _FIELDS.get(name) or (name if steps[0] == "metadata" else f"metadata.{name}")


def _field(field: str, value: Any, where: str) -> Filter:
    if isinstance(value, list):
        return _operator(field, "$in", value, where)
    if not isinstance(value, dict):
        return _operator(field, "$eq", value, where)
    if not value or not all(name.startswith("$") for name in value):
        nested = 'write a nested key with a dot, "a.b", and a whole object behind $eq'
        _refuse(where, value, f"a value, or operators of {', '.join(OPERATORS)}; {nested}")
    return all_of([_operator(field, name, operand, f"{where}.{name}") for name, operand in value.items()])


def _operator(field: str, name: str, operand: Any, where: str) -> Filter:
    if name == "$not":
        return opposite(_field(field, operand, where))
    if name in OPPOSITES:
        return opposite(_operator(field, OPPOSITES[name], operand, where))
    if name not in OPERANDS:
        _unknown(where, name, f"a field takes {', '.join(OPERATORS)}")
    if field in _TIMES:
        operand = [_time(part, where) for part in operand] if isinstance(operand, list) else _time(operand, where)
    fits, expected = OPERANDS[name]
    if not fits(operand):
        _refuse(where, operand, expected)
    return comparison(field, name, operand)


def _time(value: Any, where: str) -> Any:
    """Seconds since 1970 for a text, anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        _refuse(where, value, 'seconds since 1970 or an ISO 8601 time such as "2024-05-01T12:00:00Z"')


def _unknown(where: str, name: str, valid: str) -> NoReturn:
    raise InvalidInput(f"{where[:_SHOWN]}: there is no operator {reprlib.repr(name)}; {valid}")


def _count(tree: Filter) -> int:
    if isinstance(tree, Not):
        return 1 + _count(tree.part)
    return 1 if isinstance(tree, Compare) else 1 + sum(map(_count, tree.parts))
