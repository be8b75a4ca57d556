"""Batches of documents: bounded, in order, with how far the reading is."""

from __future__ import annotations

import json
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.messages import Document, Skipped
from serve import ingest_reader
from serve.ingest_reader import (
    BATCH_CHARACTERS,
    BATCH_ITEMS,
    Batch,
    SeenIds,
    Tenancy,
    find,
    read_batches,
    without_repeats,
)


def beir(folder, texts, name="beir"):
    path = folder / name / "corpus.jsonl"
    path.parent.mkdir(parents=True)
    lines = [json.dumps({"_id": f"{name}-{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.parent


def read(found, tenancy=None):
    return list(read_batches(found.sources, tenancy or Tenancy()))


def test_found_bytes_are_those_of_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("12345")
    (tmp_path / "b.md").write_text("123")
    found = find([tmp_path])
    assert (len(found.sources), found.size_bytes, found.skipped) == (2, 8, [])


def test_a_path_that_does_not_exist_is_refused_at_once(tmp_path):
    with pytest.raises(InvalidInput, match="nowhere"):
        find([tmp_path / "nowhere"])


def test_a_batch_holds_so_many_documents_or_characters_and_no_more(tmp_path):
    short = read(find([beir(tmp_path, ["word"] * (2 * BATCH_ITEMS + 1), "short")]))
    assert [len(batch.documents) for batch in short] == [BATCH_ITEMS, BATCH_ITEMS, 1]
    long = read(find([beir(tmp_path, ["w" * (BATCH_CHARACTERS // 2)] * 5, "long")]))
    assert [len(batch.documents) for batch in long] == [2, 2, 1]


def test_bad_files_fill_batches_too_so_that_their_progress_shows(tmp_path):
    for number in range(BATCH_ITEMS + 3):
        (tmp_path / f"{number:03}.bin").write_bytes(b"\0\1\2")
    batches = read(find([tmp_path]))
    assert [len(batch.skipped) for batch in batches] == [BATCH_ITEMS, 3]
    assert sum(batch.sources for batch in batches) == BATCH_ITEMS + 3


@given(sizes=st.lists(st.integers(1, 3 * BATCH_CHARACTERS), min_size=1, max_size=12))
def test_batches_bring_the_bytes_and_files_that_were_found(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("bytes")
    for number, size in enumerate(sizes):
        (folder / f"{number:02}.txt").write_text("x" * size)
    found = find([folder])
    batches = read(found)
    assert sum(batch.size_bytes for batch in batches) == found.size_bytes == sum(sizes)
    assert sum(batch.sources for batch in batches) == len(sizes)
    assert [d.id for batch in batches for d in batch.documents] == [s.id for s in found.sources]


def test_a_long_file_of_lines_shows_how_far_it_is_inside(tmp_path):
    found = find([beir(tmp_path, ["Text of some words. " * 10] * 1000)])
    reached, shares = 0, []
    for batch in read(found):
        reached += batch.size_bytes
        shares.append(reached / found.size_bytes)
    assert shares[-1] == 1
    documents = [BATCH_ITEMS * n / 1000 for n in range(1, len(shares))]
    assert shares[:-1] == pytest.approx(documents, abs=0.01)


def test_lines_that_get_shorter_never_count_for_more_than_the_file(tmp_path):
    found = find([beir(tmp_path, ["long " * 5000] * 100 + ["short"] * 500)])
    batches = read(found)
    assert all(batch.size_bytes >= 0 for batch in batches)
    assert sum(batch.size_bytes for batch in batches) == found.size_bytes


def test_owner_and_collections_go_onto_every_document(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    batches = read(find([tmp_path]), Tenancy("ida", ("mill", "dam")))
    assert [(d.owner, d.collections) for b in batches for d in b.documents] == [("ida", ("mill", "dam"))] * 2


def test_a_file_that_vanishes_is_a_row(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    found = find([tmp_path])
    (tmp_path / "a.txt").unlink()
    (batch,) = read(found)
    assert [d.source for d in batch.documents] == [str(tmp_path / "b.txt")]
    assert batch.skipped[0].path == str(tmp_path / "a.txt")
    assert "still there" in batch.skipped[0].reason
    assert batch.sources == 2


def test_names_that_are_no_unicode_are_rows_that_can_be_printed(tmp_path):
    folder = os.fsencode(tmp_path)
    for name in (b"caf\xe9.txt", b"good.txt", b"\xff/corpus.jsonl"):
        os.makedirs(os.path.dirname(folder + b"/" + name), exist_ok=True)
        with open(folder + b"/" + name, "wb") as file:
            file.write(b'{"_id": "d", "text": "text"}')
    os.symlink(folder, folder + b"/\xe9")
    found = find([tmp_path])
    (batch,) = read(found)
    assert [d.source for d in batch.documents] == [str(tmp_path / "good.txt")]
    assert batch.sources == 3
    rows = [*found.skipped, *batch.skipped]
    assert sorted(row.path for row in rows) == [
        rf"{tmp_path}/\udce9",
        rf"{tmp_path}/\udcff/corpus.jsonl",
        rf"{tmp_path}/caf\udce9.txt",
    ]
    assert [row.reason for row in batch.skipped] == ["its name is not in UTF-8; rename it"] * 2
    assert msgspec.json.encode(rows)


def test_a_document_that_no_corpus_takes_is_a_row_before_anything_is_done_with_it(tmp_path):
    lines = [{"_id": "x" * 5000, "text": "t"}, {"_id": "nul", "text": "t", "a": "\0"}, {"_id": "good", "text": "t"}]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (batch,) = read(find([tmp_path]))
    assert [d.id for d in batch.documents] == ["good"]
    assert [row.path.rpartition("/")[2] for row in batch.skipped] == ["corpus.jsonl:1", "corpus.jsonl:2"]
    assert "expected 1 to 4096 bytes" in batch.skipped[0].reason
    assert "holds a NUL character" in batch.skipped[1].reason


def test_a_reader_that_crashes_costs_one_file(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)

    def crashing(source):
        if source.path.endswith("b.txt"):
            raise RecursionError("maximum recursion depth exceeded")
        yield from read_documents(source)

    read_documents = ingest_reader.read_documents
    monkeypatch.setattr(ingest_reader, "read_documents", crashing)
    (batch,) = read(find([tmp_path]))
    assert [d.text for d in batch.documents] == ["a", "c"]
    assert batch.skipped[0].path == str(tmp_path / "b.txt")
    assert "RecursionError: maximum recursion depth exceeded" in batch.skipped[0].reason


def test_nothing_to_read_gives_one_empty_batch():
    assert list(read_batches([], Tenancy())) == [Batch([], [], 0, 0)]


def test_of_documents_with_the_same_id_the_first_is_taken():
    seen = SeenIds()
    first, second, other = (Document(id=i, title="", text=t, source=t) for i, t in (("x", "1"), ("x", "2"), ("y", "3")))
    batch = without_repeats(Batch([first, second, other], [Skipped("p", "r")], 1, 9), seen)
    assert batch.documents == [first, other]
    assert [row.path for row in batch.skipped] == ["p", "2"]
    assert "'x' came before in this run" in batch.skipped[1].reason
    assert (batch.sources, batch.size_bytes) == (1, 9)
    assert without_repeats(Batch([other], [], 0, 0), seen).documents == []


def test_an_id_that_is_no_unicode_is_told_apart_too():
    seen = SeenIds()
    assert seen.is_new("\ud800")
    assert not seen.is_new("\ud800")
    assert seen.is_new("\ud801")
