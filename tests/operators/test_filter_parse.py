"""What people write as filters, and the trees that it becomes."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.filter_parse import MAX_NESTING, MAX_NODES, parse_filter
from operators.filter_tree import EVERYTHING, AllOf, AnyOf, Compare, Filter, Not

A, B = Compare("metadata.a", "$eq", 1), Compare("metadata.b", "$gt", 2)
THERE, NULL = Compare("metadata.a", "$exists", True), Compare("metadata.a", "$eq", None)
LONG, FOUR = Compare("metadata.a", "$length", {"$gt": 2}), Compare("metadata.a", "$length", {"$eq": 4})


@pytest.mark.parametrize(
    ("raw", "tree"),
    [
        ({}, EVERYTHING),
        ({"a": 1}, A),
        ({"metadata.a": 1}, A),
        ({"metadata": {"a": 1}}, A),
        ({"a": {"$eq": 1}}, A),
        ({"metadata": {"a": 1, "b": {"$gt": 2}}}, AllOf((A, B))),
        ({"a": 1, "b": {"$gt": 2}}, AllOf((A, B))),
        ({"b": {"$gt": 2, "$lt": 5}}, AllOf((B, Compare("metadata.b", "$lt", 5)))),
        ({"a.b": None}, Compare("metadata.a.b", "$eq", None)),
        ({"metadata": {"a.b": "x"}}, Compare("metadata.a.b", "$eq", "x")),
        ({"a": ["x", 1]}, Compare("metadata.a", "$in", ["x", 1])),
        ({"a": []}, Compare("metadata.a", "$in", [])),
        ({"a": {"$eq": {"b": [1]}}}, Compare("metadata.a", "$eq", {"b": [1]})),
        ({"metadata": {"$eq": {"b": 1}}}, Compare("metadata", "$eq", {"b": 1})),
        ({"$and": []}, EVERYTHING),
        ({"$or": []}, AnyOf(())),
        ({"$and": [{"a": 1}, {"b": {"$gt": 2}}]}, AllOf((A, B))),
        ({"$and": [{"a": 1}]}, A),
        ({"$or": [{"a": 1}, {}]}, AnyOf((A, EVERYTHING))),
        ({"a": 1, "$or": [{"b": {"$gt": 2}}, {"a": 1}]}, AllOf((A, AnyOf((B, A))))),
        ({"$not": {"a": 1}}, Not(A)),
        ({"$not": {"$not": {"a": 1}}}, A),
        ({"$not": {}}, Not(EVERYTHING)),
        ({"a": {"$not": 1}}, Not(A)),
        ({"a": {"$not": {"$eq": 1}}}, Not(A)),
        ({"a": {"$ne": 1}}, Not(A)),
        ({"a": {"$neq": 1}}, Not(A)),
        ({"a": {"$not": {"$ne": 1}}}, A),
        ({"a": {"$nin": [1]}}, Not(Compare("metadata.a", "$in", [1]))),
        ({"a": {"$not_contains": "x"}}, Not(Compare("metadata.a", "$contains", "x"))),
        ({"a": {"$contains": "x"}}, Compare("metadata.a", "$contains", "x")),
        ({"a": {"$contains": 1}}, Compare("metadata.a", "$array_contains", [1])),
        ({"a": {"$contains": ["x"]}}, Compare("metadata.a", "$array_contains", ["x"])),
        ({"a": {"$array_contains": "x"}}, Compare("metadata.a", "$array_contains", ["x"])),
        ({"a": {"$overlap": ["x", None]}}, Compare("metadata.a", "$overlap", ["x", None])),
        ({"a": {"$json_contains": 1}}, A),
        ({"a": {"$json_contains": ["x"]}}, Compare("metadata.a", "$array_contains", ["x"])),
        ({"a": {"$json_contains": {"b": 1}}}, Compare("metadata.a", "$json_contains", {"b": 1})),
        ({"a": {"$json_contains": None}}, AllOf((THERE, NULL))),
        ({"a": {"$length": 2}}, Compare("metadata.a", "$length", {"$eq": 2})),
        ({"a": {"$length": {"$gt": 2, "$ne": 4}}}, AllOf((LONG, Not(FOUR)))),
        ({"a": {"$exists": True}}, Compare("metadata.a", "$exists", True)),
        ({"a": {"$exists": False}}, Not(Compare("metadata.a", "$exists", True))),
        ({"a": {"$like": r"100\%"}}, Compare("metadata.a", "$like", r"100\%")),
        ({"a": {"$like": "\\\\"}}, Compare("metadata.a", "$like", "\\\\")),
    ],
)  # fmt: skip
def test_a_mapping_becomes_the_tree_that_says_the_same(raw: Any, tree: Filter):
    assert parse_filter(raw) == tree
    assert parse_filter({"$and": [raw]}) == tree
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(parse_filter(raw)), type=Filter) == tree


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("id", "id"),
        ("document_id", "id"),
        ("owner", "owner"),
        ("owner_id", "owner"),
        ("collections", "collections"),
        ("collection_ids", "collections"),
        ("collection_id", "collections"),
        ("title", "title"),
        ("source", "source"),
        ("media_type", "media_type"),
        ("document_type", "media_type"),
        ("version", "version"),
        ("chunk_id", "chunk_id"),
        ("chunk_order", "chunk_order"),
        ("text", "text"),
        ("metadata.title", "metadata.title"),
        ("metadata.metadata", "metadata.metadata"),
        ("title.short", "metadata.title.short"),
        ("$ref", None),
        ("metadata.$ref", "metadata.$ref"),
        ('it\'s "quoted" \\ [0] -- 名', 'metadata.it\'s "quoted" \\ [0] -- 名'),
    ],
)
def test_a_field_of_documents_wins_over_a_metadata_key_of_the_same_name(name: str, field: str | None):
    if field is None:
        with pytest.raises(InvalidInput, match="there is no operator"):
            parse_filter({name: "x"})
    else:
        assert parse_filter({name: "x"}) == Compare(field, "$eq", "x")


@pytest.mark.parametrize("name", ["created", "created_at", "updated", "updated_at"])
def test_times_may_be_written_as_iso_8601(name: str):
    field = name.removesuffix("_at")
    assert parse_filter({name: {"$gte": "1970-01-02"}}) == Compare(field, "$gte", 86400.0)
    assert parse_filter({name: {"$lt": "1970-01-01T01:00:00.5+01:00"}}) == Compare(field, "$lt", 0.5)
    assert parse_filter({name: ["1970-01-01T00:00:01Z", 2]}) == Compare(field, "$in", [1.0, 2])
    assert parse_filter({name: {"$ne": None}}) == Not(Compare(field, "$eq", None))
    with pytest.raises(InvalidInput, match=rf"filters\.{name}\.\$gt is 'yesterday'; expected seconds since 1970 or an"):
        parse_filter({name: {"$gt": "yesterday"}})


def test_a_time_in_metadata_is_a_text_like_any_other():
    assert parse_filter({"metadata.created": "1970-01-02"}) == Compare("metadata.created", "$eq", "1970-01-02")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (None, r"filters is None; expected a mapping"),
        ([], r"filters is \[\]; expected a mapping"),
        ("year = 1", r"filters is 'year = 1'; expected a mapping"),
        ({1: 1}, r"a key of filters is 1; expected a text"),
        ({"": 1}, r"filters\. is ''; expected the name of a field"),
        ({"a..b": 1}, r"filters\.a\.\.b is 'a\.\.b'; expected the name of a field"),
        ({"metadata": {"": 1}}, r"filters\.metadata is 'metadata\.'; expected the name of a field"),
        ({"metadata": {}}, r"filters\.metadata is {}; expected a value, or operators of \$eq, "),
        ({"a": {}}, r"filters\.a is {}; expected a value, or operators of \$eq, "),
        ({"a": {"gt": 1}}, r"filters\.a is {'gt': 1}; expected a value, or operators of .*a\.b"),
        ({"a": {"$gt": 1, "b": 1}}, r"expected a value, or operators of"),
        ({"metadata": {"$eq": 1, "b": 1}}, r"filters\.metadata is .*expected a value, or operators of"),
        (
            {"a": {"$regex": "x"}},
            r"filters\.a\.\$regex: there is no operator '\$regex'; a field takes .*\$json_contains",
        ),
        ({"metadata": {"a": {"$foo": 1}}}, r"filters\.metadata\.a\.\$foo: there is no operator '\$foo'"),
        ({"a": {"$and": []}}, r"there is no operator '\$and'; a field takes"),
        ({"$gt": 1}, r"filters\.\$gt: there is no operator '\$gt'; a filter has fields, \$and, \$or, \$not"),
        ({"$nor": []}, r"there is no operator '\$nor'"),
        ({"$and": {"a": 1}}, r"filters\.\$and is {'a': 1}; expected a list of filters"),
        ({"$or": [{"a": 1}, 5]}, r"filters\.\$or\[1\] is 5; expected a mapping"),
        ({"$not": [{"a": 1}]}, r"filters\.\$not is \[{'a': 1}\]; expected a mapping"),
        ({"a": [[1]]}, r"filters\.a is \[\[1\]\]; expected a list of texts, numbers"),
        ({"a": {"$in": "x"}}, r"filters\.a\.\$in is 'x'; expected a list"),
        ({"a": {"$nin": {"x": 1}}}, r"filters\.a\.\$nin is {'x': 1}; expected a list"),
        ({"a": {"$overlap": "x"}}, r"expected a list"),
        ({"a": {"$gt": None}}, r"filters\.a\.\$gt is None; expected a number or a text"),
        ({"a": {"$lte": True}}, r"expected a number or a text"),
        ({"a": {"$lt": [1]}}, r"expected a number or a text"),
        ({"a": {"$like": 1}}, r"filters\.a\.\$like is 1; expected a text: % stands for"),
        ({"a": {"$ilike": "a\\"}}, r"expected a text: % stands for"),
        ({"a": {"$contains": {"b": 1}}}, r"expected a text, a number, true, false, null, or a list of these"),
        ({"a": {"$array_contains": [[1]]}}, r"or a list of these"),
        ({"a": {"$length": "2"}}, r"filters\.a\.\$length is '2'; expected a number, or a mapping of \$eq, "),
        ({"a": {"$length": {}}}, r"expected a number, or a mapping"),
        ({"a": {"$length": {"$in": [1]}}}, r"expected a number, or a mapping"),
        ({"a": {"$length": {"$gt": "1"}}}, r"expected a number, or a mapping"),
        ({"a": {"$length": True}}, r"expected a number, or a mapping"),
        ({"a": {"$exists": 1}}, r"filters\.a\.\$exists is 1; expected true or false"),
        ({"a": {"$not": {"b": 1}}}, r"expected a value, or operators of"),
        ({"a": math.nan}, r"filters\.a is nan; expected a finite number"),
        ({"a": [1, -math.inf]}, r"filters\.a\[1\] is -inf; expected a finite number"),
        ({"a": 10**5000}, r"filters\.a is inf; expected a finite number"),
        ({"a": "x\0"}, r"filters\.a is 'x\\x00'; expected a text without NUL"),
        ({"a": {"$eq": {"b": "\ud83d"}}}, r"filters\.a\.\$eq\.b is .* lone surrogates"),
        ({"a\ud83d": 1}, r"a key of filters is .* lone surrogates"),
        ({"a": {"$eq": {"\0": 1}}}, r"a key of filters\.a\.\$eq is .*NUL"),
        ({"a": b"x"}, r"filters\.a is b'x'; expected a JSON value"),
        ({"a": {"$in": {1, 2}}}, r"filters\.a\.\$in is {1, 2}; expected a JSON value"),
        ({"x" * 10_000: object()}, r"^filters\.x{192} is <object"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_place_and_what_is_valid(raw: Any, message: str):
    with pytest.raises(InvalidInput, match=message):
        parse_filter(raw)


def nested(levels: int) -> dict[str, Any]:
    """A filter of so many mappings in each other."""
    raw: dict[str, Any] = {"a": 1}
    for _ in range(levels - 1):
        raw = {"$not": raw}
    return raw


def test_filters_may_nest_so_far_and_no_further():
    assert parse_filter(nested(MAX_NESTING)) == Not(A)
    for raw in (nested(MAX_NESTING + 1), nested(5000), {"a": {"$eq": nested(MAX_NESTING)}}):
        with pytest.raises(InvalidInput, match="nested too deeply; at most 32 levels"):
            parse_filter(raw)
    path = ".".join("a" * MAX_NESTING)
    assert parse_filter({path: 1}) == Compare(f"metadata.{path}", "$eq", 1)
    with pytest.raises(InvalidInput, match="1 to 32 keys"):
        parse_filter({path + ".a": 1})


def test_filters_may_have_so_many_parts_and_no_more():
    raw = {"$or": [{"a": 1}] * (MAX_NODES - 1)}
    assert parse_filter(raw) == AnyOf((A,) * (MAX_NODES - 1))
    raw["$or"].append({"a": 1})
    with pytest.raises(InvalidInput, match=r"filters has 1,001 parts; at most 1,000 are taken: list many values with"):
        parse_filter(raw)
    assert parse_filter({"a": list(range(5000))}) == Compare("metadata.a", "$in", list(range(5000)))


def test_integers_beyond_64_bits_become_doubles_wherever_they_stand():
    raw = {"a": {"$eq": {"b": [2**63, -(2**63), 2**63 - 1]}}, "c": -(2**70), "d": [2**64]}
    operands = [part.operand for part in parse_filter(raw).parts]
    assert operands == [{"b": [2.0**63, -(2**63), 2**63 - 1]}, -(2.0**70), [2.0**64]]
    assert [type(each) for each in operands[0]["b"]] == [float, int, int]


def test_tuples_and_other_mappings_are_taken_as_lists_and_mappings():
    assert parse_filter({"a": (1, 2)}) == Compare("metadata.a", "$in", [1, 2])


_KEYS = st.sampled_from(["a", "$and", "$or", "$not", "$eq", "$in", "$length", "$contains", "metadata", "$x"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=20,
)


@given(_JSON)
def test_whatever_comes_is_a_tree_that_crosses_a_wire_or_is_refused_with_a_place(raw: Any):
    try:
        tree = parse_filter(raw)
    except InvalidInput as error:
        assert "filters" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=Filter) == tree
