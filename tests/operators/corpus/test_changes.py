import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import AccessDenied, InvalidInput
from engine.scope import Identity
from operators.corpus import feed
from operators.corpus.content import chunk_hash, prepared
from operators.corpus.filter_sql import Condition, compile_filter, visible_to
from operators.corpus.keys import chunk_key
from operators.corpus.listing import count, list_chunks, list_documents
from operators.corpus.store import Store
from operators.filter_parse import parse_filter
from operators.messages import Deleted, Edit, EmbeddedDocument, Listing, Written
from tests.changing import changing

EVERYONE = Condition("TRUE", [], of_chunks=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def keys(*names: tuple[str, int]) -> np.ndarray:
    return np.array([chunk_key(*name) for name in names], np.int64)


def write(store: Store, *documents: EmbeddedDocument, chunking: str = "", identity: Identity | None = None) -> list:
    with changing(store, identity) as changes:
        return changes.write(documents, chunking)


def owned(document: EmbeddedDocument, owner: str = "", *collections: str) -> EmbeddedDocument:
    changed = msgspec.structs.replace(document.document, owner=owner, collections=collections)
    return msgspec.structs.replace(document, document=changed)


def sizes(store: Store) -> tuple[int, int, int]:
    counts = count(store)
    return counts.documents, counts.chunks, counts.indexed


def test_a_document_is_added_then_unchanged_then_replaced(store: Store, make) -> None:
    first = make("a", chunks=["one ", "two"], title="T", year=2020)
    assert write(store, first) == [Written("a", "added", 2)]
    seq = store.seq()
    assert write(store, first) == [Written("a", "unchanged", 0)]
    assert store.seq() == seq
    assert write(store, make("a", chunks=["one"], title="T", year=2020)) == [Written("a", "replaced", 1)]
    assert sizes(store) == (1, 1, 1)
    assert list_documents(store, Listing(), None).documents[0].version == 2


@pytest.mark.parametrize("change", [{"title": "U"}, {"year": 2021}, {"text": "other"}])
def test_title_text_and_metadata_make_the_content(store: Store, make, change: dict[str, object]) -> None:
    same = {"text": "words", "title": "T", "year": 2020}
    write(store, make("a", **same))
    documents = [make("a", **same).document, make("b", **same).document]
    assert store.unchanged(documents, "", EVERYONE) == [True, False]
    assert store.unchanged([make("a", **(same | change)).document], "", EVERYONE) == [False]


def test_source_owner_collections_and_chunking_make_the_content_too(store: Store, make) -> None:
    write(store, owned(make("a", "x"), "ann", "one", "two"), chunking="small")
    document = make("a", "x").document
    same = msgspec.structs.replace(document, owner="ann", collections=("two", "one"))
    assert store.unchanged([same], "small", EVERYONE) == [True]
    assert store.unchanged([same], "large", EVERYONE) == [False]
    for change in ({"owner": "bob"}, {"collections": ("one",)}, {"source": "x.md"}, {"media_type": "text/html"}):
        assert store.unchanged([msgspec.structs.replace(same, **change)], "small", EVERYONE) == [False]


def test_the_order_of_metadata_does_not_matter(store: Store, make) -> None:
    write(store, make("a", "x", first=1, second=2))
    assert store.unchanged([make("a", "x", second=2, first=1).document], "", EVERYONE) == [True]


def test_the_same_document_twice_in_one_write_ends_as_the_last(store: Store, make) -> None:
    assert [w.outcome for w in write(store, make("a", "old"), make("a", "new"))] == ["added", "replaced"]
    assert [c.text for c in store.chunks(keys(("a", 0)), EVERYONE).values()] == ["new"]


def test_a_write_that_fails_writes_nothing(store: Store, make) -> None:
    twice = make("b", chunks=["x", "y"])
    twice = msgspec.structs.replace(
        twice, chunks=(twice.chunks[0], msgspec.structs.replace(twice.chunks[1], ordinal=0))
    )
    with pytest.raises(InvalidInput, match=r"document 'b'.*key is taken"):
        write(store, make("a", "fine"), twice)
    assert sizes(store) == (0, 0, 0)
    assert store.seq() == 0


def test_a_replaced_document_leaves_only_the_keys_that_are_gone(store: Store, make) -> None:
    write(store, make("a", chunks=["one", "two", "three"]))
    seq = store.seq()
    write(store, make("a", chunks=["uno"]))
    assert sorted(feed.removed_keys(store, seq).tolist()) == sorted(keys(("a", 1), ("a", 2)).tolist())
    assert [c.texts for c in feed.changed_documents(store, seq)] == [["uno"]]
    write(store, make("a", chunks=["eins", "zwei", "drei"]))
    assert feed.removed_keys(store, 0).tolist() == []


def test_chunks_that_an_embedder_sees_alike_keep_their_vectors(store: Store, make) -> None:
    write(store, make("a", chunks=["same ", "old "]))
    seq = store.seq()
    second = make("a", chunks=["same ", "new ", "more"])
    second.vectors[0] = 7  # a vector that is not stored, since the text has one
    write(store, second)
    changed = np.concatenate([k for k, _ in feed.changed_vectors(store, seq)])
    assert sorted(changed.tolist()) == sorted(keys(("a", 1), ("a", 2)).tolist())
    assert store.vectors(keys(("a", 0)))[1].tolist() == [make("a", "same ").vectors[0].tolist()]


def test_known_vectors_are_found_by_content_in_any_document(store: Store, make) -> None:
    first = make("a", chunks=["same ", "own"])
    write(store, first)
    hashes = [chunk_hash(first.document, c) for c in first.chunks]
    known = store.known_vectors([hashes[1], b"unknown", hashes[1], hashes[0]], EVERYONE)
    assert known.hashes == [hashes[1], hashes[0]]
    assert known.vectors.tolist() == first.vectors[::-1].tolist()
    write(store, make("b", chunks=["same ", "other"]))
    with changing(store) as changes:
        changes.delete(["a"])
    assert store.known_vectors(hashes, EVERYONE).hashes == [hashes[0]]


def test_deleting_reports_what_is_not_there(store: Store, make) -> None:
    write(store, make("a", chunks=["x", "y"]), make("b", "y"))
    seq = store.seq()
    with changing(store) as changes:
        assert changes.delete(["zz", "a", "a"]) == Deleted(1, 2, ("zz",))
    assert feed.removed_documents(store, seq) == ["a"]
    assert feed.removed_documents(store, store.seq()) == []
    write(store, make("a", "x"))
    assert (feed.removed_documents(store, 0), sizes(store)[0]) == ([], 2)


def test_deleting_one_of_two_owners_of_a_text_leaves_the_other(store: Store, make) -> None:
    write(store, make("a", "same words", n=1), make("b", "same words", n=2))
    with changing(store) as changes:
        changes.delete(["a"])
    assert [c.metadata for c in list_chunks(store, Listing(), None).chunks] == [{"n": 2}]
    assert len(store.vectors(keys(("a", 0), ("b", 0)))[0]) == 1


def test_deleting_by_filter_takes_what_passes(store: Store, make) -> None:
    write(store, *(make(str(n), "x", n=n) for n in range(5)))
    with changing(store) as changes:
        assert changes.delete_where(compile_filter(parse_filter({"n": {"$gte": 3}}))) == Deleted(2, 2)
    assert [d.id for d in list_documents(store, Listing(), None).documents] == ["2", "1", "0"]


def test_metadata_is_patched_or_replaced_without_touching_the_indexes(store: Store, make) -> None:
    write(store, make("a", chunks=["x", "y"], year=2020, kind="old"))
    seq = store.seq()
    with changing(store) as changes:
        assert changes.change_metadata("a", {"kind": "new", "none": None}, replace=False)
        assert not changes.change_metadata("zz", {}, replace=False)
    chunks = list_chunks(store, Listing(), None).chunks
    assert [c.metadata for c in chunks] == [{"year": 2020, "kind": "new", "none": None}] * 2
    assert (list(feed.changed_documents(store, seq)), feed.removed_keys(store, seq).tolist()) == ([], [])
    with changing(store) as changes:
        changes.change_metadata("a", {"only": 1}, replace=True)
    assert list_documents(store, Listing(), None).documents[0].metadata == {"only": 1}
    assert store.unchanged([make("a", chunks=["x", "y"], year=2020, kind="old").document], "", EVERYONE) == [True]


def test_collections_are_joined_and_left(store: Store, make) -> None:
    write(store, owned(make("a", "x"), "", "red"), make("b", "y"))
    with changing(store) as changes:
        assert changes.change_collections(["a", "b", "zz"], add=["blue"], remove=["red"]) == ["zz"]
    assert [d.collections for d in list_documents(store, Listing(), None).documents] == [("blue",), ("blue",)]
    assert {name: c.documents for name, c in count(store).collections.items()} == {"blue": 2}


def test_a_chunk_gets_another_text_and_is_marked(store: Store, make) -> None:
    write(store, make("a", chunks=["one ", "two"]))
    seq = store.seq()
    with changing(store) as changes:
        assert changes.change_chunk(Edit("a#1", 1, "deux", 3), np.ones(16, np.float32))
        assert not changes.change_chunk(Edit("a#7", 1, "x"), np.ones(16, np.float32))
        assert not changes.change_chunk(Edit("zz#0", 1, "x"), np.ones(16, np.float32))
    first, second = list_chunks(store, Listing(include_vectors=True), None).chunks
    assert (first.text, first.edited, second.text, second.edited, second.tokens) == ("one ", False, "deux", True, 3)
    assert second.vector is not None
    assert second.vector.tolist() == [1.0] * 16
    assert [k.tolist() for k, _ in feed.changed_vectors(store, seq)] == [keys(("a", 1)).tolist()]
    assert write(store, make("a", chunks=["one ", "two"])) == [Written("a", "replaced", 2)]
    assert list_chunks(store, Listing(), None).chunks[1].text == "two"


def test_a_chunk_that_changed_meanwhile_is_not_overwritten(store: Store, make) -> None:
    write(store, make("a", "one"))
    write(store, make("a", "two"))
    with pytest.raises(InvalidInput, match="'a#0' has changed meanwhile"), changing(store) as changes:
        changes.change_chunk(Edit("a#0", 1, "uno"), np.ones(16, np.float32))


def test_deleting_the_last_chunk_deletes_the_document(store: Store, make) -> None:
    write(store, make("a", chunks=["one", "two"]))
    with changing(store) as changes:
        assert changes.delete_chunks(["a#0", "a#9", "nonsense"]) == Deleted(0, 1, ("a#9", "nonsense"))
    assert sizes(store) == (1, 1, 1)
    with changing(store) as changes:
        assert changes.delete_chunks(["a#1"]) == Deleted(1, 1)
    assert sizes(store) == (0, 0, 0)


def test_a_document_without_chunks_is_kept_and_indexed_as_nothing(store: Store, make) -> None:
    write(store, prepared(make("a", chunks=[]), dimension=16, measure="cosine"))
    assert [(c.id, c.keys) for c in feed.changed_documents(store, 0)] == [("a", [])]
    assert sizes(store) == (1, 0, 0)


def test_a_chunk_without_vector_is_stored_and_in_no_index(store: Store, make) -> None:
    write(store, make("a", chunks=["parent", "child"]))
    seq = store.seq()
    document = make("a", chunks=["parent", "child"], later=True)
    document.vectors[0] = np.nan
    write(store, prepared(document, dimension=16, measure="cosine"))
    assert [c.texts for c in feed.changed_documents(store, 0)] == [["child"]]
    assert [k.tolist() for k, _ in feed.changed_vectors(store, 0)] == [keys(("a", 1)).tolist()]
    assert feed.removed_keys(store, seq).tolist() == keys(("a", 0)).tolist()
    assert store.allowed(EVERYONE).tolist() == keys(("a", 1)).tolist()
    assert store.vectors(keys(("a", 0)))[0].tolist() == []
    assert len(store.chunks(keys(("a", 0)), EVERYONE)) == 1


def test_times_tell_when_a_document_came_and_last_changed(store: Store, make) -> None:
    before = time.time()
    write(store, make("a", "x"))
    write(store, make("a", "y"))
    document = list_documents(store, Listing(), None).documents[0]
    assert before <= document.created < document.updated <= count(store).updated <= time.time()
    last = count(store).updated
    with changing(store) as changes:
        changes.delete(["a"])
    assert count(store).updated > last


ANN, BOB = Identity("ann", ("team",)), Identity("bob", ("team",))


def test_whoever_writes_owns_the_document(store: Store, make) -> None:
    write(store, make("a", "x"), identity=ANN)
    assert list_documents(store, Listing(), None).documents[0].owner == "ann"
    assert store.unchanged([make("a", "x").document], "", visible_to(ANN)) == [True]
    with pytest.raises(AccessDenied, match="'ann' may write documents of their own only"):
        write(store, owned(make("b", "x"), "bob"), identity=ANN)
    with pytest.raises(AccessDenied, match="does not belong to the collection 'secret'"):
        write(store, owned(make("b", "x"), "", "secret"), identity=ANN)


def test_what_is_seen_but_not_owned_is_refused_and_what_is_not_seen_is_absent(store: Store, make) -> None:
    write(store, owned(make("shared", "x"), "", "team"), make("own", "x"), identity=ANN)
    for attempt in (
        lambda c: c.delete(["shared"]),
        lambda c: c.change_metadata("shared", {}, replace=False),
        lambda c: c.change_collections(["shared"], add=[], remove=["team"]),
        lambda c: c.change_chunk(Edit("shared#0", 1, "x"), np.ones(16, np.float32)),
        lambda c: c.delete_chunks(["shared#0"]),
        lambda c: c.write([make("shared", "mine")], ""),
        lambda c: c.write([make("own", "mine")], ""),
    ):
        with pytest.raises(AccessDenied), changing(store, BOB) as changes:
            attempt(changes)
    with changing(store, BOB) as changes:
        assert changes.delete(["own"]) == Deleted(0, 0, ("own",))
        assert not changes.change_metadata("own", {}, replace=True)
        assert changes.delete_chunks(["own#0"]).missing == ("own#0",)
        assert changes.delete_where(EVERYONE) == Deleted(0, 0)
    assert sizes(store) == (2, 2, 2)


def test_an_identity_without_a_name_owns_nothing(store: Store, make) -> None:
    write(store, owned(make("a", "x"), "", "team"))
    nobody = Identity("", ("team",))
    with pytest.raises(AccessDenied), changing(store, nobody) as changes:
        changes.delete(["a"])
    with pytest.raises(AccessDenied, match="cannot own what they write"), changing(store, nobody) as changes:
        changes.write([make("b", "x")], "")
    with changing(store, nobody) as changes:
        assert changes.delete_where(EVERYONE) == Deleted(0, 0)
