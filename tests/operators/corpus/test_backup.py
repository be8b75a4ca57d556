from __future__ import annotations

import asyncio
import json
import threading

import pytest

from engine.errors import InvalidInput
from operators.corpus import backup as backing_up
from operators.corpus.backup import back_up
from operators.corpus.manifest import open_corpus
from tests.truth import change, corpus_of, document, ids_of, truth_of


def library(folder, *, shards=2):
    return corpus_of(folder / "corpus", *(document(f"d{n}", "text " * 500, str(n)) for n in range(20)), shards=shards)


def test_a_backup_is_a_corpus_that_holds_the_same(tmp_path):
    corpus = library(tmp_path)
    shares: list[float] = []
    made = back_up(corpus, tmp_path / "copy", shares.append)
    copy = open_corpus(tmp_path / "copy")
    assert truth_of(copy) == truth_of(corpus)
    assert copy.config == corpus.config
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert made.size_bytes == sum(path.stat().st_size for path in copy.directory.rglob("*") if path.is_file())
    assert not list(copy.directory.rglob("*-wal"))


def test_a_backup_is_of_one_moment_while_a_writer_works(tmp_path, monkeypatch):
    monkeypatch.setattr(backing_up, "_PAGES_AT_ONCE", 4)
    corpus = library(tmp_path, shards=1)
    before = truth_of(corpus)
    told = 0

    def write_beside(_: float) -> None:
        nonlocal told
        told += 1
        change(corpus, 0, lambda c: c.write([document(f"late{told}", "more " * 500)], ""))

    back_up(corpus, tmp_path / "copy", write_beside)
    assert truth_of(open_corpus(tmp_path / "copy")) == before
    assert 2 < told == len(ids_of(truth_of(corpus))) - 20  # the writer never waited, the backup never began anew


def test_acknowledged_documents_are_in_the_next_backup_and_none_is_half_there(tmp_path, monkeypatch):
    monkeypatch.setattr(backing_up, "_PAGES_AT_ONCE", 8)
    corpus = library(tmp_path, shards=1)
    acknowledged: list[str] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            late = document(f"late{len(acknowledged):04}", "one ", "two ", "three")
            change(corpus, 0, lambda c, late=late: c.write([late], ""))
            acknowledged.append(late.document.id)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for attempt in range(3):
            known = list(acknowledged)
            back_up(corpus, tmp_path / f"copy{attempt}")
            rows = truth_of(open_corpus(tmp_path / f"copy{attempt}"))
            assert set(known) <= set(ids_of(rows))
            assert all(sum(row[0] == name for row in rows) == 3 for name in ids_of(rows) if name.startswith("late"))
    finally:
        stop.set()
        writer.join()


def test_the_saved_dense_index_is_copied_with_its_description(tmp_path):
    corpus = library(tmp_path, shards=1)
    folder = corpus.shard_directory(0)
    (folder / "dense-3.hnsw").write_bytes(b"graph")
    (folder / "dense-2.hnsw").write_bytes(b"an old one")
    (folder / "dense.json").write_text(json.dumps({"seq": 3, "file": "dense-3.hnsw"}))
    assert back_up(corpus, tmp_path / "copy").without_index == ()
    copied = open_corpus(tmp_path / "copy").shard_directory(0)
    assert sorted(path.name for path in copied.iterdir()) == ["dense-3.hnsw", "dense.json", "store.sqlite"]


def test_an_index_that_cannot_be_copied_whole_is_left_out(tmp_path):
    corpus = library(tmp_path, shards=1)
    folder = corpus.shard_directory(0)
    (folder / "dense.json").write_text(json.dumps({"seq": 3, "file": "dense-3.hnsw"}))  # which is gone
    (folder / "lexical").mkdir()
    (folder / "lexical" / "segments_2").write_bytes(b"2")
    (folder / "lexical" / "_0.cfs").write_bytes(b"documents")
    (folder / "lexical" / "write.lock").touch()
    assert back_up(corpus, tmp_path / "copy").without_index == ("0000",)
    copied = open_corpus(tmp_path / "copy").shard_directory(0)
    assert sorted(path.name for path in copied.iterdir()) == ["lexical", "store.sqlite"]
    assert sorted(path.name for path in (copied / "lexical").iterdir()) == ["_0.cfs", "segments_2"]


def test_lucenes_files_are_left_out_when_it_commits_all_the_time(tmp_path, monkeypatch):
    corpus = library(tmp_path, shards=1)
    lexical = corpus.shard_directory(0) / "lexical"
    lexical.mkdir()
    (lexical / "segments_1").write_bytes(b"1")
    commits = commit_while_copied(lexical, monkeypatch, times=100)
    assert back_up(corpus, tmp_path / "copy").without_index == ("0000",)
    assert not (open_corpus(tmp_path / "copy").shard_directory(0) / "lexical").exists()
    assert len(commits) > 3


def test_lucenes_files_are_copied_when_it_commits_now_and_then(tmp_path, monkeypatch):
    corpus = library(tmp_path, shards=1)
    lexical = corpus.shard_directory(0) / "lexical"
    lexical.mkdir()
    for name in ("segments_1", "_0.cfs", "_1.cfs"):
        (lexical / name).write_bytes(name.encode())
    commits = commit_while_copied(lexical, monkeypatch, times=4)
    assert back_up(corpus, tmp_path / "copy").without_index == ()
    copied = open_corpus(tmp_path / "copy").shard_directory(0) / "lexical"
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == {
        path.name: path.read_bytes() for path in lexical.iterdir()
    }
    assert len(commits) == 4


def commit_while_copied(lexical, monkeypatch, *, times):
    """Lets Lucene commit after each of the first copies of a file; returns the commits that there were."""
    copyfile, commits = backing_up.shutil.copyfile, []

    def copy_while_it_commits(source, to):
        done = copyfile(source, to)
        if source.parent == lexical and len(commits) < times:
            (old,) = lexical.glob("segments_*")
            commits.append(old.rename(lexical / f"segments_{int(old.name.rpartition('_')[2]) + 1}"))
        return done

    monkeypatch.setattr(backing_up.shutil, "copyfile", copy_while_it_commits)
    return commits


def test_a_backup_never_writes_over_anything(tmp_path):
    corpus = library(tmp_path, shards=1)
    back_up(corpus, tmp_path / "copy")
    with pytest.raises(InvalidInput, match="is there already"):
        back_up(corpus, tmp_path / "copy")
    with pytest.raises(InvalidInput, match="is there already"):
        back_up(corpus, corpus.directory)


async def test_backups_of_a_shard_that_is_being_written_open_clean(shard, corpus, open_shard, make, tmp_path):
    async def write() -> None:
        for n in range(20):
            await shard.write([make(f"d{n % 5}", f"Version {n} of rye.")], "")
            await shard.delete([f"d{(n + 2) % 5}"])
            if n % 3 == 0:
                await shard.commit()

    async def copy() -> None:
        for n in range(3):
            await asyncio.to_thread(back_up, open_corpus(corpus), tmp_path / f"copy{n}")

    await asyncio.gather(write(), copy())
    for n in range(3):
        copied = await open_shard(directory=str(tmp_path / f"copy{n}"))
        (verification,) = await copied.verify(False)
        assert verification.findings == ()
