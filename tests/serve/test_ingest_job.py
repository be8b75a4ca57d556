"""The ingest job on real stages: what it embeds, what it survives, and where it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import HeadraceError, InvalidInput, QueueFull, StageDied, StepFailed
from serve import ingest_job, ingest_reader
from serve.ingest_job import BATCHES_IN_FLIGHT, IngestJob, divided
from serve.settings import Configuration
from tests.corpora import ROOT
from tests.until import until

TEXT = "The weir of {0} is {1} metres long. It was built when {0} had {1} mills on one river."


def run(paths, corpus, **options):
    configuration = options.pop("configuration", Configuration())
    return asyncio.run(IngestJob([paths], corpus, configuration, **options).run())


def stored(corpus, sql="SELECT id FROM documents ORDER BY id"):
    with sqlite3.connect(f"file:{corpus}/shards/0000/store.sqlite?mode=ro", uri=True) as db:
        rows = db.execute(sql).fetchall()
    db.close()
    return rows


def beir(folder, count, first=0):
    folder.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps({"_id": f"d{n}", "title": f"Weir {n}", "text": TEXT.format(f"Town{n}", n)})
        for n in range(first, first + count)
    )
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_command_stores_owner_and_collections_and_tells_what_was_embedded(headrace, tmp_path):
    files, corpus = beir(tmp_path / "files", 2), tmp_path / "corpus"
    options = ("--owner", "ida", "--collection", "mill", "--collection", "dam", "--collection", "mill")
    result = headrace("ingest", files, "--corpus", corpus, *options)
    assert "2 added, 0 replaced, 0 unchanged, 0 skipped: 2 chunks (2 embedded, 0 reused) in " in result.stdout
    assert stored(corpus, "SELECT owner, count(*) FROM documents GROUP BY owner") == [("ida", 2)]
    members = "SELECT collection, count(*) FROM memberships GROUP BY collection ORDER BY collection"
    assert stored(corpus, members) == [("dam", 2), ("mill", 2)]


def test_a_document_that_is_refused_is_a_row_and_the_others_of_its_batch_are_ingested(tmp_path):
    files = beir(tmp_path / "files", 5)
    with (files / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "x" * 5000, "text": "An id that no corpus takes."}) + "\n")
        file.write(json.dumps({"_id": "d3", "text": "An id that came before."}) + "\n")
        file.write(json.dumps({"_id": "last", "text": "A good document after bad ones."}) + "\n")
    report = run(files, tmp_path / "corpus")
    assert report.added == 6
    assert [row.path.rpartition(":")[2] for row in report.skipped] == ["6", "7"]
    reasons = {row.path.rpartition(":")[2]: row.reason for row in report.skipped}
    assert "'d3' came before" in reasons["7"]
    assert "expected 1 to 4096 bytes" in reasons["6"]
    assert ("last",) in stored(tmp_path / "corpus")


async def test_no_more_is_read_than_is_in_flight_and_one_batch_ahead(tmp_path, monkeypatch):
    batches = 3 * BATCHES_IN_FLIGHT
    monkeypatch.setattr(ingest_reader, "BATCH_ITEMS", 2)
    files = beir(tmp_path / "files", 2 * batches)
    read = done = most = 0

    def counting(*args):
        nonlocal read, most
        for batch in read_batches(*args):
            read += 1
            most = max(most, read - done)
            yield batch

    def tell(progress):
        nonlocal done
        done += 1

    read_batches = ingest_job.read_batches
    monkeypatch.setattr(ingest_job, "read_batches", counting)
    report = await IngestJob([files], tmp_path / "corpus", Configuration(), tell=tell).run()
    assert report.added == 2 * batches == 2 * (read - 1)  # and an empty one at the end
    assert most <= BATCHES_IN_FLIGHT + 1


def test_progress_reaches_what_was_found_and_the_indexes_are_saved_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest_reader, "BATCH_ITEMS", 2)
    told = []

    def tell(progress):
        told.append((progress, len(list((tmp_path / "corpus").glob("shards/0000/dense*")))))

    report = run(beir(tmp_path / "files", 24), tmp_path / "corpus", tell=tell, commit_every_s=0.0)
    last, saved = told[-1]
    assert last.documents == report.added == 24
    assert last.size_bytes == last.size_bytes_found == (tmp_path / "files" / "corpus.jsonl").stat().st_size
    assert (last.sources, last.sources_found, last.seconds_left) == (1, 1, 0)
    assert saved


async def test_a_batch_is_halved_down_to_those_at_fault():
    calls = []

    async def work(items):
        calls.append(len(items))
        if 5 in items:
            raise InvalidInput("five")
        if 6 in items:
            raise StepFailed("chunk", kind="K", text="six")
        return [str(item) for item in items]

    results, refused = await divided(work, list(range(8)))
    assert results == ["0", "1", "2", "3", "4", "7"]
    assert [(item, type(error)) for item, error in refused] == [(5, InvalidInput), (6, StepFailed)]
    assert calls == [8, 4, 4, 2, 1, 1, 2, 1, 1]
    assert await divided(work, []) == ([], [])


async def test_what_no_document_is_to_blame_for_is_raised():
    async def work(items: list[int]) -> list[int]:
        raise StageDied("gone")

    with pytest.raises(HeadraceError, match="gone"):
        await divided(work, [1, 2])


async def test_a_full_queue_is_waited_for():
    full = [QueueFull("full", retry_after_s=0.001)] * 2

    async def work(items: list[int]) -> list[int]:
        if full:
            raise full.pop()
        return items

    assert await divided(work, [1, 2]) == ([1, 2], [])


DOCUMENTS = 120
SMALL_BATCHES = "import serve.ingest_reader as r; r.BATCH_ITEMS = 4; from serve.cli import main; main()"


def killable(files, corpus):
    command = [sys.executable, "-c", SMALL_BATCHES, "ingest", str(files), "--corpus", str(corpus), "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def children(pid):
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


async def test_killed_at_any_moment_it_goes_on_where_it_was(tmp_path):
    files, corpus = beir(tmp_path / "files", DOCUMENTS), tmp_path / "corpus"
    acknowledged = 0
    for moment in (0, 1, DOCUMENTS // 2):  # documents that are on the disk; 0: while it is loading

        async def reached(moment=moment):
            if not (corpus / "shards" / "0000" / "store.sqlite").exists():
                return False
            try:
                return len(stored(corpus)) >= moment
            except sqlite3.OperationalError:  # its tables are not made yet
                return moment == 0

        with killable(files, corpus) as ingesting:
            await until(reached, within_s=240)
            for pid in [*children(ingesting.pid), ingesting.pid]:  # the shard's process, too: nothing is tidied up
                os.kill(pid, signal.SIGKILL)
        ids = [row[0] for row in stored(corpus)] if moment else []
        assert len(ids) == len(set(ids)) >= acknowledged
        acknowledged = len(ids)
    with killable(files, corpus) as ingesting:
        report = json.loads(await asyncio.to_thread(ingesting.stdout.read))
    assert (report["added"], report["unchanged"]) == (DOCUMENTS - acknowledged, acknowledged)
    assert report["embedded"] == report["chunks"] == report["added"]  # a chunk each: none that was there, none twice
    assert {row[0] for row in stored(corpus)} == {f"d{n}" for n in range(DOCUMENTS)}
