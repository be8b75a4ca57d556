from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput
from operators.corpus.content import normalised, prepared
from operators.corpus.filter_sql import Condition
from operators.corpus.keys import chunk_key
from operators.corpus.store import Store
from operators.messages import EmbeddedDocument
from tests.changing import changing

EVERYONE = Condition("TRUE", [], of_chunks=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "store.sqlite")
    yield opened
    opened.close()


def write(store: Store, *documents: EmbeddedDocument) -> None:
    with changing(store) as changes:
        changes.write(documents, "")


def keys(*names: tuple[str, int]) -> np.ndarray:
    return np.array([chunk_key(*name) for name in names], np.int64)


def test_vectors_come_back_bit_for_bit(store: Store, make) -> None:
    document = prepared(make("a", chunks=["one", "two"]), dimension=16, measure="cosine")
    write(store, document)
    found, vectors = store.vectors(keys(("a", 1), ("a", 0), ("gone", 0)))
    rows = dict(zip(found.tolist(), vectors, strict=True))
    assert [rows[k].tolist() for k in keys(("a", 0), ("a", 1))] == document.vectors.tolist()


def test_two_connections_see_each_others_commits(tmp_path: Path, store: Store, make) -> None:
    other = Store(tmp_path / "store.sqlite")
    write(store, make("a", "x"))
    assert other.seq() == 1
    other.close()


def test_a_snapshot_stands_still(tmp_path: Path, store: Store, make) -> None:
    other = Store(tmp_path / "store.sqlite")
    with other.snapshot():
        assert other.seq() == 0
        write(store, make("a", "x"))
        assert other.seq() == 0
    assert other.seq() == 1
    other.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(InvalidInput, match=r"bad\.sqlite cannot be used as a database"):
        Store(tmp_path / "bad.sqlite")
    with pytest.raises(InvalidInput, match="cannot be opened"):
        Store(tmp_path / "absent" / "store.sqlite")


def test_only_documents_touched_since_are_looked_at_again(store: Store, make) -> None:
    write(store, make("a", "x", n=1), make("b", "y", n=2))
    seq = store.seq()
    with changing(store) as changes:
        changes.change_metadata("b", {"n": 1}, replace=False)
    condition = Condition("json_extract(d.metadata, '$.n') = ?", [1], of_chunks=False)
    touched, passing = store.touched_since(seq, condition)
    assert (touched.tolist(), passing.tolist()) == (keys(("b", 0)).tolist(), [True])


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
    refuse(make("a", "text", when="\ud83d"), "metadata must be JSON")
    refuse(make("a", "text", when=["x\0y"]), "metadata holds a NUL")
    refuse(make("a", "text", title="x\0y"), "title holds a NUL")
    prepared(make("a", "NUL \0 in a text", path="C:\\u0000"), dimension=16, measure="cosine")
    moved = msgspec.structs.replace(good.chunks[0], start=1)
    refuse(msgspec.structs.replace(good, chunks=(moved,)), "chunk 0 is not the text from 1 to 4")
    named = msgspec.structs.replace(good.document, collections=("x", "x"))
    refuse(msgspec.structs.replace(good, document=named), "each needs a name, and comes once")


def test_rows_are_made_unit_length_whatever_their_neighbours() -> None:
    rows = np.array([[3, 4], [0, 0], [1e30, 0]], np.float32)
    assert normalised(rows) == pytest.approx(np.array([[0.6, 0.8], [0, 0], [1, 0]]))
    assert normalised(rows)[0].tolist() == normalised(rows[0]).tolist()
