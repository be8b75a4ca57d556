"""Filters as a typed tree that every store understands; operators/filter_parse.py makes it from what people write."""

from __future__ import annotations

from typing import Any

import msgspec


class AllOf(msgspec.Struct, frozen=True, tag="all"):
    """Every part holds; without parts, true."""

    parts: tuple[Filter, ...]


class AnyOf(msgspec.Struct, frozen=True, tag="any"):
    """At least one part holds; without parts, false."""

    parts: tuple[Filter, ...]


class Not(msgspec.Struct, frozen=True, tag="not"):
    """The part does not hold."""

    part: Filter


class Compare(msgspec.Struct, frozen=True, tag="compare"):
    """One operator on one field, in the few forms that parsing leaves; operands are JSON values within 64 bits.

    ============================ ================ ==================================================================
    operator                     operand          holds if the field's value, in the sense of filter_parse.py,
    ============================ ================ ==================================================================
    $eq                          any              equals it; null: or is missing
    $gt $gte $lt $lte            number or text   is a number, or a text, so related to it
    $in                          list of scalars  equals one of them
    $like $ilike                 text             is a text of that pattern
    $contains                    text             is a text with that in it, or an array that holds it
    $array_contains              list of scalars  is an array that holds all of them
    $overlap                     list of scalars  is an array that holds one of them
    $json_contains               list or mapping  contains that structure
    $length                      {relation: n}    is a text or an array of such a length: $eq $gt $gte $lt $lte n
    $exists                      true             is there, if only as null
    ============================ ================ ==================================================================

    Args:
        field: "id", "owner", "collections", "title", "source", "media_type", "version", "created", "updated" of the
            document, "chunk_id", "chunk_order", "text" of the chunk, or "metadata" and the keys that lead to a value,
            joined by dots: "metadata.a.b".
        operator: As above; other operators are these, negated or spelled otherwise.
        operand: As above; times are seconds since 1970.
    """

    field: str
    operator: str
    operand: Any


Filter = AllOf | AnyOf | Not | Compare

EVERYTHING = AllOf(())
