"""Compiled filters against hand-worked tables and against a second implementation, tests/filter_model.py."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.scope import Identity
from operators.corpus.filter_sql import Condition, both, compile_filter, in_scope, visible_to
from operators.corpus.schema import connect
from operators.filter_parse import MAX_NODES, parse_filter
from operators.filter_tree import EVERYTHING, AllOf, AnyOf, Compare, Filter, Not
from tests.filter_model import like, matches

Document = dict[str, Any]


def document(id: str, metadata: dict[str, Any] | None = None, **fields: Any) -> Document:
    """A document and its one chunk, as tests/filter_model.py wants it."""
    plain = {"id": id, "title": "", "source": "", "media_type": "text/plain", "owner": "", "collections": []}
    plain |= {"version": 1, "created": 0.0, "updated": 0.0, "metadata": metadata or {}, "chunk_order": 0, "text": ""}
    plain |= fields
    return plain | {"chunk_id": f"{id}#{plain['chunk_order']}"}


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = connect(Path(":memory:"))
    yield connection
    connection.close()


def fill(db: sqlite3.Connection, documents: Iterable[Document]) -> None:
    """Makes these all that there is."""
    db.execute("DELETE FROM documents")
    db.execute("DELETE FROM chunks")
    db.execute("DELETE FROM memberships")
    for number, each in enumerate(documents, 1):
        metadata = msgspec.json.encode(each["metadata"]).decode()
        row = (number, *(each[name] for name in ("id", "version", "created", "updated", "title", "source")))
        row = (*row, each["media_type"], each["owner"], metadata)
        db.execute(
            "INSERT INTO documents (number, id, version, created, updated, title, source, media_type, owner, metadata,"
            " seq, touched, content_hash, size_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, x'', 0)",
            row,
        )
        db.execute(
            'INSERT INTO chunks (key, document, ordinal, text, seq, start, "end", tokens, edited, indexed,'
            " content_hash, context) VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0, 0, x'', '')",
            (number, number, each["chunk_order"], each["text"]),
        )
        db.executemany("INSERT INTO memberships VALUES (?, ?)", [(name, number) for name in set(each["collections"])])


def selected(db: sqlite3.Connection, condition: Condition) -> list[str]:
    """Ids of the documents that pass, in the order in which they came; the condition is never NULL."""
    tables = "documents d JOIN chunks c ON c.document = d.number" if condition.of_chunks else "documents d"
    sql = f"SELECT d.id, {condition.sql} FROM {tables} ORDER BY d.number"
    rows = db.execute(sql, condition.parameters).fetchall()
    assert {passes for _, passes in rows} <= {0, 1}
    found = [id for id, passes in rows if passes]
    where = f"SELECT d.id FROM {tables} WHERE {condition.sql} ORDER BY d.number"
    assert [id for (id,) in db.execute(where, condition.parameters)] == found
    return found


def passing(db: sqlite3.Connection, raw: Mapping[str, Any]) -> list[str]:
    return selected(db, compile_filter(parse_filter(raw)))


# Every operator, every kind of stored value

KINDS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "one.0": 1.0,
    "1.5": 1.5,
    "minus": -3,
    "huge": 2**64 - 1,
    "''": "",
    "'1'": "1",
    "kelp": "kelp",
    "Kelp": "Kelp farm",
    "straße": "STRASSE 100%",
    "[]": [],
    "[1]": [1, True],
    "[kelp]": ["kelp", "mill", None],
    "[[1]]": [[1], {"a": 1}],
    "{}": {},
    "{a}": {"a": 1, "b": [1, 2, {"c": "x"}]},
}
TEXTS = ["''", "'1'", "kelp", "Kelp", "straße"]
NUMBERS = ["zero", "one", "one.0", "1.5", "minus", "huge"]
ARRAYS = ["[]", "[1]", "[kelp]", "[[1]]"]
ALL = ["missing", *KINDS]


@pytest.fixture
def kinds(db: sqlite3.Connection) -> sqlite3.Connection:
    fill(db, [document("missing"), *(document(name, {"v": value}) for name, value in KINDS.items())])
    return db


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (1, ["one", "one.0", "[1]"]),
        (1.0, ["one", "one.0", "[1]"]),
        ("1", ["'1'"]),
        (True, ["true", "[1]"]),
        (False, ["false"]),
        ("", ["''"]),
        ("kelp", ["kelp", "[kelp]"]),
        (None, ["missing", "null", "[kelp]"]),
        (2**64 - 1, ["huge"]),
        (2**64, ["huge"]),  # the same double
        (10**300, []),
        ({"$eq": []}, ["[]"]),
        ({"$eq": [1.0, True]}, ["[1]"]),
        ({"$eq": [1]}, []),
        ({"$eq": [True, 1]}, []),
        ({"$eq": [1, 1]}, []),
        ({"$eq": {}}, ["{}"]),
        ({"$eq": {"b": [1, 2.0, {"c": "x"}], "a": 1}}, ["{a}"]),
        ({"$eq": {"a": 1}}, []),
        ({"$ne": 1}, [name for name in ALL if name not in ("one", "one.0", "[1]")]),
        ({"$neq": None}, [name for name in ALL if name not in ("missing", "null", "[kelp]")]),
        ([], []),
        (["1", 1], ["one", "one.0", "'1'", "[1]"]),
        ({"$in": ["kelp", False, None]}, ["missing", "null", "false", "kelp", "[kelp]"]),
        ({"$in": [0, 1.5, 2**64]}, ["zero", "1.5", "huge"]),
        ({"$nin": []}, ALL),
        ({"$nin": ["kelp", None]}, [name for name in ALL if name not in ("missing", "null", "kelp", "[kelp]")]),
        ({"$gt": 0}, ["one", "one.0", "1.5", "huge", "[1]"]),
        ({"$gte": 0}, ["zero", "one", "one.0", "1.5", "huge", "[1]"]),
        ({"$lt": 1}, ["zero", "minus"]),
        ({"$lte": 1.0}, ["zero", "one", "one.0", "minus", "[1]"]),
        ({"$gt": 0, "$lt": 1.5}, ["one", "one.0", "[1]"]),
        ({"$gt": 2**63}, ["huge"]),
        ({"$lt": "Z"}, ["''", "'1'", "Kelp", "straße"]),
        ({"$gte": "kelp"}, ["kelp", "[kelp]"]),
        ({"$like": "kelp%"}, ["kelp", "[kelp]"]),
        ({"$like": "K__p%"}, ["Kelp"]),
        ({"$like": r"%\%"}, ["straße"]),
        ({"$like": "%"}, [*TEXTS, "[kelp]"]),
        ({"$like": ""}, ["''"]),
        ({"$ilike": "KELP%"}, ["kelp", "Kelp", "[kelp]"]),
        ({"$ilike": "%straße%"}, ["straße"]),
        ({"$contains": "el"}, ["kelp", "Kelp"]),
        ({"$contains": "kelp"}, ["kelp", "[kelp]"]),
        ({"$contains": ""}, TEXTS),
        ({"$contains": 1}, ["[1]"]),
        ({"$contains": True}, ["[1]"]),
        ({"$contains": None}, ["[kelp]"]),
        ({"$contains": []}, ARRAYS),
        ({"$contains": ["mill", "kelp"]}, ["[kelp]"]),
        ({"$contains": [1.0, 1, True]}, ["[1]"]),
        ({"$contains": ["kelp", "el"]}, []),
        ({"$contains": ["kelp"]}, ["[kelp]"]),
        ({"$not_contains": "kelp"}, [name for name in ALL if name not in ("kelp", "[kelp]")]),
        ({"$not_contains": ["kelp", None]}, [name for name in ALL if name != "[kelp]"]),
        ({"$array_contains": "kelp"}, ["[kelp]"]),
        ({"$array_contains": ["kelp", None]}, ["[kelp]"]),
        ({"$overlap": []}, []),
        ({"$overlap": ["mill", True, 7]}, ["[1]", "[kelp]"]),
        ({"$overlap": ["kelp"]}, ["[kelp]"]),
        ({"$json_contains": None}, ["null", "[kelp]"]),
        ({"$json_contains": 1}, ["one", "one.0", "[1]"]),
        ({"$json_contains": ["kelp"]}, ["[kelp]"]),
        ({"$json_contains": []}, ARRAYS),
        ({"$json_contains": {}}, ["{}", "{a}"]),
        ({"$json_contains": {"a": 1.0}}, ["{a}"]),
        ({"$json_contains": {"a": True}}, []),
        ({"$json_contains": {"b": [{"c": "x"}, 2, 2]}}, ["{a}"]),
        ({"$json_contains": {"b": 2}}, []),
        ({"$json_contains": [{"a": 1}, []]}, ["[[1]]"]),
        ({"$json_contains": [[2]]}, []),
        ({"$length": 0}, ["''", "[]"]),
        ({"$length": {"$gte": 3}}, ["kelp", "Kelp", "straße", "[kelp]"]),
        ({"$length": {"$gt": 3, "$lt": 5}}, ["kelp"]),
        ({"$length": {"$ne": 0}}, [name for name in ALL if name not in ("''", "[]")]),
        ({"$length": 0.5}, []),
        ({"$exists": True}, list(KINDS)),
        ({"$exists": False}, ["missing"]),
        ({"$not": {"$gt": 0}}, [name for name in ALL if name not in ("one", "one.0", "1.5", "huge", "[1]")]),
    ],
)
def test_each_operator_matches_the_kinds_of_values_that_it_should(kinds, condition: Any, expected: list[str]):
    assert passing(kinds, {"v": condition}) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"v.a": 1}, ["{a}"]),
        ({"v.b": {"$length": 3}}, ["{a}"]),
        ({"v.b.c": "x"}, []),  # keys do not look into arrays
        ({"v.b.0": 1}, []),
        ({"v.a.b": {"$exists": True}}, []),
        ({"v.a": None}, [name for name in ALL if name != "{a}"]),
        ({"metadata": {"$eq": {}}}, ["missing"]),
        ({"metadata": {"$json_contains": {"v": {"a": 1}}}}, ["{a}"]),
        ({"metadata": {"v": 1, "v.a": 1}}, []),
        ({}, ALL),
        ({"$or": []}, []),
        ({"$not": {"$or": []}}, ALL),
        ({"$not": {}}, []),
        ({"$or": [{"v": "kelp"}, {"$and": [{"v": {"$gt": 1}}, {"v": {"$lt": 2}}]}]}, ["1.5", "kelp", "[kelp]"]),
        ({"$not": {"v": {"$exists": True}, "v.a": {"$exists": False}}}, ["missing", "{a}"]),
    ],
)
def test_paths_and_logic(kinds, raw: Any, expected: list[str]):
    assert passing(kinds, raw) == expected


# Fields of documents and chunks

PAPERS = [
    document(
        "kelp/1", {"title": "in metadata", "year": 1890}, title="Kelp farms", source="kelp.pdf", owner="ann",
        media_type="application/pdf", version=2, created=86400.0, updated=90000.5, collections=["sea", "food"],
        text="Kelp grows fast.", chunk_order=3,
    ),
    document("mill", title="Mills", owner="bob", collections=["food"], text="A mill grinds.", created=10.0),
    document("kelp#2", collections=[], text="kelp again"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"id": "mill"}, ["mill"]),
        ({"document_id": ["mill", "kelp#2", "nobody", 5]}, ["mill", "kelp#2"]),
        ({"id": 5}, []),
        ({"id": {"$gt": "l"}}, ["mill"]),
        ({"owner": "ann"}, ["kelp/1"]),
        ({"owner_id": {"$ne": "ann"}}, ["mill", "kelp#2"]),
        ({"owner": None}, []),
        ({"owner": {"$exists": True}}, ["kelp/1", "mill", "kelp#2"]),
        ({"title": {"$ilike": "KELP%"}}, ["kelp/1"]),
        ({"metadata.title": "in metadata"}, ["kelp/1"]),
        ({"title": "in metadata"}, []),
        ({"title": {"$contains": "il"}}, ["mill"]),
        ({"title": {"$contains": ["il"]}}, []),
        ({"title": {"$length": {"$gt": 4}}}, ["kelp/1", "mill"]),
        ({"source": {"$like": "%.pdf"}}, ["kelp/1"]),
        ({"document_type": "application/pdf"}, ["kelp/1"]),
        ({"version": 2.0}, ["kelp/1"]),
        ({"version": "2"}, []),
        ({"version": {"$gte": 1, "$lt": 2}}, ["mill", "kelp#2"]),
        ({"version": [2, 3, "1"]}, ["kelp/1"]),
        ({"version": {"$length": 1}}, []),
        ({"version": {"$contains": "2"}}, []),
        ({"version": {"$overlap": [2]}}, []),
        ({"created_at": "1970-01-02"}, ["kelp/1"]),
        ({"created": {"$lt": "1970-01-01T00:00:11Z"}}, ["mill", "kelp#2"]),
        ({"updated_at": {"$gte": 90000.5}}, ["kelp/1"]),
        ({"collections": "food"}, ["kelp/1", "mill"]),
        ({"collections": None}, []),
        ({"collections": {"$exists": True}}, ["kelp/1", "mill", "kelp#2"]),
        ({"collections": {"$length": 0}}, ["kelp#2"]),
        ({"collections": {"$length": {"$gte": 1}}}, ["kelp/1", "mill"]),
        ({"collections": {"$like": "s%"}}, ["kelp/1"]),
        ({"collections": {"$gt": "g"}}, ["kelp/1"]),
        ({"collections": {"$eq": ["food", "sea", "food"]}}, ["kelp/1"]),
        ({"collections": {"$eq": []}}, ["kelp#2"]),
        ({"collections": {"$eq": ["food", 1]}}, []),
        ({"collections": {"$eq": {}}}, []),
        ({"collections": {"$json_contains": ["sea"]}}, ["kelp/1"]),
        ({"collections": {"$json_contains": [["sea"]]}}, []),
        ({"chunk_id": "kelp/1#3"}, ["kelp/1"]),
        ({"chunk_id": "kelp/1#03"}, []),
        ({"chunk_id": 3}, []),
        ({"chunk_id": []}, []),
        ({"chunk_id": {"$in": ["kelp#2#0", "kelp#2", "mill#0", None]}}, ["mill", "kelp#2"]),
        ({"chunk_id": {"$nin": ["kelp#2#0"]}}, ["kelp/1", "mill"]),
        ({"chunk_id": {"$like": "kelp#%"}}, ["kelp#2"]),
        ({"chunk_order": {"$gt": 0}}, ["kelp/1"]),
        ({"text": {"$contains": "kelp"}}, ["kelp#2"]),
        ({"text": {"$ilike": "kelp%"}, "metadata": {"year": {"$exists": True}}}, ["kelp/1"]),
        ({"$or": [{"text": {"$like": "A mill%"}}, {"year": 1890}]}, ["kelp/1", "mill"]),
    ],
)  # fmt: skip
def test_fields_of_documents_and_chunks(db, raw: Any, expected: list[str]):
    fill(db, PAPERS)
    assert passing(db, raw) == expected


def test_only_a_filter_that_speaks_of_chunks_is_of_chunks():
    assert not compile_filter(parse_filter({"id": "a", "metadata.text": "x"})).of_chunks
    for field in ("chunk_id", "chunk_order", "text"):
        assert compile_filter(parse_filter({"$or": [{"a": 1}, {"$not": {field: 1}}]})).of_chunks


@pytest.mark.parametrize("field", ["collection_id", "collection_ids"])
@pytest.mark.parametrize("groups", [None, ("one", "two")])
def test_every_operator_on_collections_works_for_ordinary_users_r2r_1698(db, field: str, groups):
    """SciPhi-AI/R2R#1698: such a filter of someone who is no superuser was an error 500."""
    fill(
        db,
        [
            document("first", owner="ann", collections=["one"]),
            document("second", owner="bob", collections=["one", "two"]),
            document("third", owner="bob", collections=["two"]),
            document("foreign", owner="bob", collections=["three"]),
        ],
    )
    everything = groups is None
    seen = visible_to(None if everything else Identity("ann", groups))
    cases: list[tuple[Any, list[str]]] = [
        ("one", ["first", "second"]),
        (["one"], ["first", "second"]),
        ({"$eq": "two"}, ["second", "third"]),
        ({"$eq": ["one"]}, ["first"]),
        ({"$eq": ["two", "one"]}, ["second"]),
        ({"$ne": "one"}, ["third", "foreign"]),
        ({"$ne": ["one"]}, ["second", "third", "foreign"]),
        ({"$in": ["one", "two"]}, ["first", "second", "third"]),
        ({"$in": ["three"]}, ["foreign"]),
        ({"$in": []}, []),
        ({"$nin": ["one"]}, ["third", "foreign"]),
        ({"$nin": []}, ["first", "second", "third", "foreign"]),
        ({"$overlap": ["two", "four"]}, ["second", "third"]),
        ({"$contains": "two"}, ["second", "third"]),
        ({"$contains": ["two", "one"]}, ["second"]),
        ({"$contains": []}, ["first", "second", "third", "foreign"]),
        ({"$not_contains": ["two", "one"]}, ["first", "third", "foreign"]),
        ({"$array_contains": ["two"]}, ["second", "third"]),
        ({"$like": "t%"}, ["second", "third", "foreign"]),
        ({"$ilike": "ONE"}, ["first", "second"]),
        ({"$json_contains": ["two", "one"]}, ["second"]),
        ({"$length": 2}, ["second"]),
        ({"$exists": False}, []),
        ({"$gt": 5}, []),
    ]
    for condition, expected in cases:
        found = selected(db, both(compile_filter(parse_filter({field: condition})), seen))
        assert found == [id for id in expected if everything or id != "foreign"], condition


# Against the model

_KEYS = st.sampled_from(["a", "b", "a.b", 'it\'s "q"', "名\\", "x[0]", "$a", "\n", "title"])
_NUMBER = st.sampled_from([0, 1, 1.0, -1, 1.5, 0.1, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 1e300])
_TEXT = st.text(alphabet="aAb%_\\ßé名1", max_size=3) | st.sampled_from(["a", "b", "1", "STRASSE"])
_SCALAR = st.none() | st.booleans() | _NUMBER | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
_VALUE = st.recursive(
    _SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=2),
    max_leaves=5,
)
_NAME = st.sampled_from(["ann", "bob", "", "é"])
_DOCUMENT = st.fixed_dictionaries(
    {
        "metadata": st.dictionaries(_KEYS, _VALUE, max_size=3),
        "title": _TEXT,
        "owner": _NAME,
        "collections": st.lists(_TEXT, max_size=3),
        "version": st.integers(1, 3),
        "created": st.sampled_from([0.0, 1.0, 86400.0, 0.1]),
        "text": _TEXT,
        "chunk_order": st.integers(0, 2),
    }
)
_SCALARS = st.lists(_SCALAR, max_size=4)
_ORDERED = _NUMBER | _TEXT
_LENGTH = st.integers(-1, 3) | st.dictionaries(
    st.sampled_from(["$eq", "$ne", "$neq", "$gt", "$gte", "$lt", "$lte"]), st.integers(-1, 3), min_size=1, max_size=2
)
_PATTERN = _TEXT.filter(lambda text: (len(text) - len(text.rstrip("\\"))) % 2 == 0)
_OPERATORS = st.fixed_dictionaries(
    {},
    optional={
        "$eq": _VALUE, "$ne": _VALUE, "$neq": _SCALAR, "$gt": _ORDERED, "$gte": _ORDERED, "$lt": _ORDERED,
        "$lte": _ORDERED, "$in": _SCALARS, "$nin": _SCALARS, "$like": _PATTERN, "$ilike": _PATTERN,
        "$contains": _SCALAR | _SCALARS, "$not_contains": _SCALAR | _SCALARS, "$array_contains": _SCALAR | _SCALARS,
        "$overlap": _SCALARS, "$json_contains": _VALUE, "$length": _LENGTH, "$exists": st.booleans(),
    },
).filter(bool)  # fmt: skip
_CONDITION = _SCALAR | _SCALARS | _OPERATORS.flatmap(
    lambda whole: st.sampled_from(sorted(whole)).map(lambda name: {name: whole[name]})
)  # fmt: skip
_METADATA_FIELD = st.lists(_KEYS, min_size=1, max_size=2).map(lambda keys: "metadata." + ".".join(keys))
_FIELD = _METADATA_FIELD | st.sampled_from(
    ["metadata", "id", "title", "owner", "collections", "version", "chunk_id", "chunk_order", "text"]
)
_LEAF = st.dictionaries(_FIELD.filter(lambda name: "" not in name.split(".")), _CONDITION, min_size=1, max_size=2)
_LEAF = _LEAF.filter(lambda leaf: not isinstance(leaf.get("metadata"), dict) or leaf["metadata"].keys() != {})
_FILTER = st.recursive(
    _LEAF,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"$or": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=4,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(raw=_FILTER, documents=st.lists(_DOCUMENT, min_size=1, max_size=4))
def test_sql_and_model_agree_on_every_filter_and_document(db, raw: Any, documents: list[Any]):
    filled = [document(f"d{place}", **fields) for place, fields in enumerate(documents)]
    fill(db, filled)
    tree = parse_filter(raw)
    expected = [each["id"] for each in filled if matches(tree, each)]
    assert selected(db, compile_filter(tree)) == expected
    assert selected(db, compile_filter(Not(tree))) == [each["id"] for each in filled if each["id"] not in expected]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operators=_OPERATORS, value=_VALUE)
def test_sql_and_model_agree_on_one_value(db, operators: Any, value: Any):
    """As above, but a field that is there, so that most of the examples are about something."""
    elements = value if isinstance(value, list) else [value]
    filled = [document("d", {"v": value}), *(document(f"e{n}", {"v": each}) for n, each in enumerate(elements))]
    fill(db, filled)
    scalars = [each for each in elements if not isinstance(each, list | dict)]
    probes = [{name: operand} for name, operand in operators.items()]
    probes += [{"$eq": value}, {"$json_contains": value}, {"$in": scalars}, {"$contains": scalars}]
    for probe in probes:
        tree = parse_filter({"v": probe})
        assert selected(db, compile_filter(tree)) == [each["id"] for each in filled if matches(tree, each)], probe


@given(pattern=_PATTERN, text=_TEXT)
def test_a_pattern_fits_what_the_model_says(pattern: str, text: str):
    from operators.corpus.functions import text_ilike, text_like

    assert text_like(pattern, text) == like(pattern, text)
    assert text_ilike(pattern, text) == like(pattern.casefold(), text.casefold())


def test_a_pattern_of_many_wildcards_takes_no_time_to_fail():
    from operators.corpus.functions import text_like

    assert not text_like("%a" * 500 + "%b%", "a" * 20_000)
    assert not text_like("%" + "a_" * 100 + "b", "a" * 20_000)


# Names and numbers that might do harm

EVIL = [
    "'; DROP TABLE documents; --",
    '"',
    '")',
    "$.a",
    "a]",
    "[#-1]",
    "\\",
    '\\"',
    "\x01",
    "*",
    "名前",
    "%",
    "a\u2028b",
]


@pytest.mark.parametrize("key", EVIL)
def test_names_and_values_are_never_sql(db, key: str):
    fill(db, [document("it", {key: {key: key}}, owner=key, collections=[key]), document("other", {"a": {"a": "a"}})])
    for raw in (
        {"metadata": {f"{key}.{key}": key}} if "." not in key else {"metadata": {"$json_contains": {key: {key: key}}}},
        {"metadata": {"$eq": {key: {key: key}}}},
        {"owner": key},
        {"collections": [key]},
        {"collections": {"$eq": [key]}},
    ):
        assert passing(db, raw) == ["it"]
    assert passing(db, {f"metadata.{key}": {"$exists": False}, "a": {"$exists": True}}) == ["other"]
    assert selected(db, visible_to(Identity(key))) == ["it"]
    assert selected(db, visible_to(Identity("", (key,)))) == ["it"]


def test_numbers_beyond_64_bits_are_compared_as_doubles(db):
    fill(db, [document("huge", {"n": 2**63}), document("least", {"n": -(2**63)}), document("next", {"n": 2**63 - 1})])
    assert passing(db, {"n": 2**63}) == ["huge"]
    assert passing(db, {"n": {"$lt": 2**63}}) == ["least", "next"]
    assert passing(db, {"n": {"$gt": -(2**70)}}) == ["huge", "least", "next"]
    assert passing(db, {"n": [10**300, -(2**63)]}) == ["least"]
    assert passing(db, {"metadata": {"$eq": {"n": 2**63 + 1}}}) == ["huge"]  # the same double
    assert passing(db, {"version": 2**63}) == []


# What SQLite takes


_LEAF_OF_TREES = Not(Compare("metadata.v", "$in", ["a", "b", 1, None, True]))


def _deep(levels: int, width: int) -> Filter:
    """AND within OR within AND ..., each level with comparisons before and after the next."""
    leaf = _LEAF_OF_TREES
    tree: Filter = leaf
    for level in range(levels):
        parts = (leaf,) * (width // 2) + (tree,) + (leaf,) * (width - width // 2)
        tree = Not(AllOf(parts)) if level % 2 else AnyOf(parts)
    return tree


def _bushy(levels: int) -> Filter:
    """A full binary tree."""
    if not levels:
        return Compare("metadata.v", "$contains", "a")
    kind = AllOf if levels % 2 else AnyOf
    return Not(kind((_bushy(levels - 1), _bushy(levels - 1))))


@pytest.mark.parametrize(
    "tree",
    [
        AnyOf((Compare('metadata.x".y', "$eq", "a"),) * (MAX_NODES - 1)),
        AllOf((Not(Compare("metadata.v", "$length", {"$gt": 1})),) * (MAX_NODES // 2 - 1)),
        AnyOf((AllOf(()), *(AnyOf((_LEAF_OF_TREES,) * 498),) * 2)),
        _deep(32, 1),
        _deep(32, 14),
        _deep(16, 28),
        _deep(10, 46),
        _bushy(8),
        AllOf((_deep(22, 10), _bushy(7), _deep(10, 10))),
    ],
    ids=["row", "row of opposites", "two rows", "deep", "deep and wide", "less deep", "wide", "bushy", "mixed"],
)
def test_the_longest_and_deepest_filters_are_taken(db, tree: Filter):
    documents = [document("a", {"v": ["a"]}), document("z")]
    fill(db, documents)
    condition = both(compile_filter(tree), in_scope("a"), visible_to(Identity("ann", ("x", "y"))))
    listing = (
        f"SELECT EXISTS (SELECT 1 FROM chunks c WHERE c.document = d.number AND ({condition.sql})) FROM documents d"
    )
    db.execute(f"EXPLAIN {listing}", condition.parameters)
    condition = compile_filter(tree)
    found = db.execute(f"SELECT d.id FROM documents d WHERE {condition.sql}", condition.parameters).fetchall()
    assert found == [(each["id"],) for each in documents if matches(tree, each)]


def test_a_list_of_any_length_is_one_parameter(db):
    fill(db, [document("a", {"v": 99_999}), document("b", {"v": "x"})])
    condition = compile_filter(parse_filter({"v": [*range(100_000)], "id": [f"{n}" for n in range(100_000)] + ["a"]}))
    assert len(condition.parameters) < 10
    assert selected(db, condition) == ["a"]


@pytest.mark.parametrize(
    ("condition", "index"),
    [
        (compile_filter(parse_filter({"id": "a"})), "sqlite_autoindex_documents_1"),
        (compile_filter(parse_filter({"id": ["a", "b"]})), "sqlite_autoindex_documents_1"),
        (compile_filter(parse_filter({"chunk_id": ["a#1", "b#2"]})), "sqlite_autoindex_documents_1"),
        (compile_filter(parse_filter({"owner": "a", "year": 1})), "documents_owner"),
        (compile_filter(parse_filter({"collections": "a"})), "USING INTEGER PRIMARY KEY"),
        (compile_filter(parse_filter({"collections": {"$contains": ["a", "b"]}})), "USING INTEGER PRIMARY KEY"),
        (compile_filter(parse_filter({"$or": [{"owner": "a"}, {"collections": "b"}]})), "documents_owner"),
        (both(visible_to(Identity("ann", ("x", "y"))), compile_filter(parse_filter({"a": 1}))), "documents_owner"),
        (visible_to(Identity("ann")), "documents_owner"),
        (in_scope("kelp:"), "sqlite_autoindex_documents_1"),
    ],
)
def test_what_an_index_can_find_is_found_by_it(db, condition: Condition, index: str):
    tables = "documents d JOIN chunks c ON c.document = d.number" if condition.of_chunks else "documents d"
    plan = db.execute(f"EXPLAIN QUERY PLAN SELECT d.number FROM {tables} WHERE {condition.sql}", condition.parameters)
    steps = [row[3] for row in plan]
    assert any("SEARCH d " in step and index in step for step in steps), steps
    assert not any("SCAN d" in step for step in steps), steps


# Scope and identity


@pytest.mark.parametrize("prefix", ["", "k", "kelp:", "kelp_", "%", "k\ud7ff", "k\U0010ffff", "\U0010ffff", "é", "K"])
def test_a_scope_is_a_prefix_code_point_by_code_point(db, prefix: str):
    ids = [
        "k",
        "K",
        "kelp",
        "kelp:",
        "kelp:1",
        "kelp_1",
        "kelpX1",
        "kf",
        "%",
        "%1",
        "é",
        "e\u0301",
        "ê",
        "k\ud7ff",
        "k\ud7ffz",
    ]
    ids += ["k\ue000", "k\U0010ffff", "k\U0010ffffz", "l", "\U0010ffff", "\U0010ffff\U0010ffff", "\U0010fffe"]
    fill(db, [document(id) for id in ids])
    assert selected(db, in_scope(prefix)) == [id for id in ids if id.startswith(prefix)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prefix=st.text(max_size=2), ids=st.sets(st.text(min_size=1, max_size=3), max_size=8))
def test_any_prefix_selects_what_begins_with_it(db, prefix: str, ids: set[str]):
    ids = {id.replace("\0", "") for id in ids | {prefix, prefix + "x", prefix[:-1] + "y"}} - {""}
    prefix = prefix.replace("\0", "")
    fill(db, [document(id) for id in ids])
    assert set(selected(db, in_scope(prefix))) == {id for id in ids if id.startswith(prefix)}


def test_an_identity_sees_its_own_documents_and_those_of_its_groups(db):
    fill(
        db,
        [
            document("own", owner="ann"),
            document("shared", owner="bob", collections=["x"]),
            document("foreign", owner="bob", collections=["y"]),
            document("nobody's"),
            document("given", collections=["x", "y"]),
        ],
    )
    assert selected(db, visible_to(None)) == ["own", "shared", "foreign", "nobody's", "given"]
    assert selected(db, visible_to(Identity("ann"))) == ["own"]
    assert selected(db, visible_to(Identity("ann", ("x",)))) == ["own", "shared", "given"]
    assert selected(db, visible_to(Identity("", ("x",)))) == ["shared", "given"]
    assert selected(db, visible_to(Identity(""))) == []


def test_conditions_are_joined_whatever_they_are(db):
    fill(db, [document("a", owner="ann"), document("b", owner="bob"), document("c", owner="bob")])
    loose = Condition("d.id = ? OR d.id = ?", ["a", "b"])
    assert selected(db, both(loose, compile_filter(parse_filter({"owner": "bob"})))) == ["b"]
    assert both() == both(visible_to(None), in_scope(""), compile_filter(EVERYTHING)) == Condition("TRUE", [])
    assert both(loose, compile_filter(parse_filter({"text": "x"}))).of_chunks
