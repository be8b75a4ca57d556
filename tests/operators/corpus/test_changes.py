from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput
from operators.corpus.content import normalised, prepared
from operators.corpus.keys import chunk_key
from operators.corpus.store import Store
from operators.messages import EmbeddedDocument


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def keys(*names: tuple[str, int]) -> np.ndarray:
    return np.array([chunk_key(*name) for name in names], np.int64)


def test_a_document_is_added_then_unchanged_then_replaced(store: Store, make) -> None:
    first = make("a", chunks=["one ", "two"], title="T", year=2020)
    assert [w.outcome for w in store.write([first])] == ["added"]
    again = store.write([first])[0]
    assert (again.outcome, again.chunks, store.seq()) == ("unchanged", 2, 1)
    assert [w.outcome for w in store.write([make("a", chunks=["one"], title="T", year=2020)])] == ["replaced"]
    assert store.counts()[:3] == (1, 1, 1)


@pytest.mark.parametrize("change", [{"title": "U"}, {"year": 2021}, {"text": "other"}])
def test_title_text_and_metadata_make_the_content(store: Store, make, change: dict[str, object]) -> None:
    same = {"text": "words", "title": "T", "year": 2020}
    store.write([make("a", **same)])
    assert store.unchanged([make("a", **same).document, make("b", **same).document]) == [True, False]
    assert store.unchanged([make("a", **(same | change)).document]) == [False]


def test_the_order_of_metadata_does_not_matter(store: Store, make) -> None:
    store.write([make("a", "x", first=1, second=2)])
    assert store.unchanged([make("a", "x", second=2, first=1).document]) == [True]


def test_the_same_document_twice_in_one_write_ends_as_the_last(store: Store, make) -> None:
    assert [w.outcome for w in store.write([make("a", "old"), make("a", "new")])] == ["added", "replaced"]
    assert [c.text for c in store.chunks(keys(("a", 0))).values()] == ["new"]


def test_a_write_that_fails_writes_nothing(store: Store, make) -> None:
    twice = make("b", chunks=["x", "y"])
    twice = msgspec.structs.replace(
        twice, chunks=(twice.chunks[0], msgspec.structs.replace(twice.chunks[1], ordinal=0))
    )
    with pytest.raises(InvalidInput, match=r"document 'b'.*key is taken"):
        store.write([make("a", "fine"), twice])
    assert store.counts()[:3] == (0, 0, 0)
    assert store.seq() == 0


def test_a_replaced_document_leaves_only_the_keys_that_are_gone(store: Store, make) -> None:
    store.write([make("a", chunks=["one", "two", "three"])])
    store.write([make("a", chunks=["uno"])])
    assert sorted(store.removed_keys(1).tolist()) == sorted(keys(("a", 1), ("a", 2)).tolist())
    assert [c.texts for c in store.changed_documents(1)] == [["uno"]]
    store.write([make("a", chunks=["eins", "zwei", "drei"])])
    assert store.removed_keys(0).tolist() == []


def test_deleting_reports_what_is_not_there(store: Store, make) -> None:
    store.write([make("a", "x"), make("b", "y")])
    assert store.delete(["zz", "a", "a"]) == ["zz", "a"]
    assert store.removed_documents(2) == ["a"]
    assert store.removed_documents(3) == []
    store.write([make("a", "x")])
    assert (store.removed_documents(0), store.counts().documents) == ([], 2)


def test_a_document_without_chunks_is_kept_and_indexed_as_nothing(store: Store, make) -> None:
    store.write([prepared(make("a", chunks=[]), dimension=16, measure="cosine")])
    assert [(c.id, c.keys) for c in store.changed_documents(0)] == [("a", [])]
    assert store.counts()[:3] == (1, 0, 0)


def test_a_chunk_without_vector_is_stored_and_in_no_index(store: Store, make) -> None:
    document = make("a", chunks=["parent", "child"])
    document.vectors[0] = np.nan
    store.write([prepared(document, dimension=16, measure="cosine")])
    assert [c.texts for c in store.changed_documents(0)] == [["child"]]
    assert [k.tolist() for k, _ in store.changed_vectors(0)] == [keys(("a", 1)).tolist()]
    assert store.removed_keys(0).tolist() == keys(("a", 0)).tolist()
    assert store.allowed({}, "").tolist() == keys(("a", 1)).tolist()
    assert len(store.chunks(keys(("a", 0)))) == 1


def test_vectors_come_back_bit_for_bit(store: Store, make) -> None:
    document = prepared(make("a", chunks=["one", "two"]), dimension=16, measure="cosine")
    store.write([document])
    found, vectors = store.vectors(keys(("a", 1), ("a", 0), ("gone", 0)))
    rows = dict(zip(found.tolist(), vectors, strict=True))
    assert [rows[k].tolist() for k in keys(("a", 0), ("a", 1))] == document.vectors.tolist()


def test_two_connections_see_each_others_commits(tmp_path: Path, store: Store, make) -> None:
    other = Store(tmp_path / "store.sqlite")
    store.write([make("a", "x")])
    assert other.seq() == 1
    other.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InvalidInput, match=r"bad\.sqlite cannot be used as a database"):
        Store(tmp_path / "bad.sqlite")
    with pytest.raises(InvalidInput, match="cannot be opened"):
        Store(tmp_path / "absent" / "store.sqlite")


ALL = {
    "1": {"kind": "a", "n": 1},
    "2": {"kind": "b", "n": 2.5},
    "3": {"n": "1", "ok": True},
    "x/4": {"ok": None, 'q"': "é"},
}


@pytest.mark.parametrize(
    ("filters", "prefix", "found"),
    [
        ({}, "", "1 2 3 x/4"),
        ({"kind": "a"}, "", "1"),
        ({"kind": ["a", "b", "z"]}, "", "1 2"),
        ({"kind": ["a", "b"], "n": 2.5}, "", "2"),
        ({"n": 1}, "", "1"),
        ({"n": 1.0}, "", "1"),
        ({"n": "1"}, "", "3"),
        ({"n": True}, "", ""),
        ({"ok": True}, "", "3"),
        ({"ok": 1}, "", ""),
        ({"ok": None}, "", "x/4"),
        ({"kind": []}, "", ""),
        ({"absent": "a"}, "", ""),
        ({'q"': "é"}, "", "x/4"),
        ({"n": 10**30}, "", ""),
        ({}, "x/", "x/4"),
        ({}, "x/5", ""),
        ({"kind": "a"}, "x", ""),
        ({"kind": "a' OR 1=1 --"}, "", ""),
    ],
)
def test_filters_let_through_what_they_say(store: Store, make, filters: dict, prefix: str, found: str) -> None:
    store.write([make(id, "text", **metadata) for id, metadata in ALL.items()])
    assert store.allowed(filters, prefix).tolist() == sorted(chunk_key(id, 0) for id in found.split())


@pytest.mark.parametrize("value", [{"$gt": 3}, [["a"]], [{"a": 1}]])
def test_a_filter_of_another_form_is_refused(store: Store, value: object) -> None:
    with pytest.raises(InvalidInput, match=r"filter on 'n'.*expected text, a number"):
        store.allowed({"n": value}, "")


def test_a_document_that_does_not_fit_the_corpus_is_refused(make) -> None:
    def refuse(document: EmbeddedDocument, words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            prepared(document, dimension=16, measure="cosine")

    good = make("a", "text")
    refuse(msgspec.structs.replace(good, vectors=np.ones((1, 3), np.float32)), "1 chunks of 16 dimensions")
    refuse(msgspec.structs.replace(good, vectors=np.full((1, 16), np.inf, np.float32)), "chunk 0 is not finite")
    refuse(make("", "text"), "expected 1 to 4096 bytes")
    refuse(make("a", "half a pair \ud83d"), "lone surrogate")
    refuse(make("a", "text", when=object()), "metadata must be JSON")
    moved = msgspec.structs.replace(good.chunks[0], start=1)
    refuse(msgspec.structs.replace(good, chunks=(moved,)), "chunk 0 is not the text from 1 to 4")


def test_rows_are_made_unit_length_whatever_their_neighbours() -> None:
    rows = np.array([[3, 4], [0, 0], [1e30, 0]], np.float32)
    assert normalised(rows) == pytest.approx(np.array([[0.6, 0.8], [0, 0], [1, 0]]))
    assert normalised(rows)[0].tolist() == normalised(rows[0]).tolist()
