"""The ingest job on Ray Data does what it does in one process, and loses and repeats nothing when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray

from engine.errors import InvalidInput, StageDied
from engine.wire import encode
from graphs.parts import Parts, Profile
from operators.chunk import ChunkConfig
from operators.corpus.files import WriterLock
from operators.corpus.manifest import CorpusConfig, IndexConfig, create_corpus, open_corpus
from operators.models.embedder import EmbedderConfig
from serve.corpus_jobs import verify_corpus
from serve.ingest_job import IngestJob
from serve.ingest_reader import Batch, Tenancy
from serve.ingest_report import Progress
from serve.ray_ingest import RayIngestJob, _Arrivals, _sizes
from serve.ray_workers import Embed, Sizes
from serve.settings import Configuration
from tests.corpora import ROOT
from tests.until import until

DOCUMENTS = 576  # 9 batches: Ray Data embeds 4 at a time
TEXT = "The weir of Town{0} is {0} metres long. It was built when Town{0} had {0} mills on one river."
CONFIG = "corpus.shards = 2\nchunks.size = 60\nchunks.overlap = 0\nembedder.threads = 2\n"  # room for one embedder
CONFIGURATION = Configuration(
    corpus=IndexConfig(shards=2), chunks=ChunkConfig(size=60, overlap=0), embedder=EmbedderConfig(threads=2)
)


def lines(count: int) -> list[str]:
    return [json.dumps({"_id": f"d{n}", "title": f"Weir {n}", "text": TEXT.format(n)}) for n in range(count)]


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    (folder / "beir").mkdir(parents=True)
    odd = [
        json.dumps({"_id": "x" * 5000, "text": "An id that no corpus takes."}),
        json.dumps({"_id": "d3", "text": "An id that came before."}),
        "no json",
    ]
    (folder / "beir" / "corpus.jsonl").write_text("\n".join([*lines(DOCUMENTS), *odd]) + "\n")
    (folder / "good.md").write_text("# Good\n\nThe weir is made of granite.")
    (folder / "photo.bin").write_bytes(b"\x00\x01\x02" * 100)
    return folder


def stored(corpus: Path, sql: str) -> list[tuple]:
    rows = []
    for store in sorted(corpus.glob("shards/*/store.sqlite")):
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            rows += [(store.parent.name, *row) for row in db.execute(sql)]
    return rows


def everything(corpus: Path) -> tuple[list[tuple], np.ndarray]:
    """Documents with their collections, their chunks, and the vectors of these."""
    rows = stored(
        corpus,
        """SELECT d.id, d.owner, (SELECT group_concat(collection) FROM memberships m WHERE m.document = d.number),
           c.ordinal, c.text, v.vector FROM documents d JOIN chunks c ON c.document = d.number
           JOIN vectors v ON v.key = c.key ORDER BY d.id, c.ordinal""",
    )
    return [row[:-1] for row in rows], np.stack([np.frombuffer(row[-1], np.float32) for row in rows])


def comparable(report):
    skipped = sorted((os.path.basename(row.path), row.reason) for row in report.skipped)
    return report.added, report.replaced, report.unchanged, report.chunks, report.embedded, report.reused, skipped


def descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            yield child
            yield from descendants(child)


def kill_workers() -> set[str]:
    """Kill this cluster's actors that read or embed; their classes."""
    killed = set()
    for process in list(descendants(os.getpid())):
        title = Path(f"/proc/{process}/cmdline").read_bytes().decode()  # Ray names processes for their actors
        for kind in ("ReadAndCut", "Embed"):
            if f"({kind})" in title:
                os.kill(process, signal.SIGKILL)
                killed.add(kind)
    return killed


async def test_with_workers_that_die_it_reports_and_stores_what_it_does_in_one_process(files, tmp_path):
    tenancy = Tenancy("ida", ("mill",))
    local = await IngestJob([files], tmp_path / "local", CONFIGURATION, tenancy=tenancy).run()
    told, killed = [], set()

    def tell(progress: Progress) -> None:
        if not told:
            killed.update(kill_workers())
        told.append(progress)

    on_ray = await RayIngestJob([files], tmp_path / "ray", CONFIGURATION, tenancy=tenancy, tell=tell).run()
    assert "Embed" in killed  # readers have perhaps read everything by then
    assert comparable(on_ray) == comparable(local)
    assert (on_ray.added, on_ray.embedded, len(on_ray.skipped)) == (DOCUMENTS + 1, DOCUMENTS + 1, 4)
    assert told[-1].size_bytes == told[-1].size_bytes_found
    assert told[-1].sources == told[-1].sources_found == 3
    (local_rows, local_vectors), (rows, vectors) = everything(tmp_path / "local"), everything(tmp_path / "ray")
    assert rows == local_rows
    np.testing.assert_allclose(vectors, local_vectors, atol=1e-5)


async def test_the_command_killed_on_ray_goes_on_where_it_was(tmp_path):
    files, corpus = tmp_path / "files", tmp_path / "corpus"
    files.mkdir()
    (files / "corpus.jsonl").write_text("\n".join(lines(DOCUMENTS)) + "\n")
    (tmp_path / "config.toml").write_text(CONFIG)
    options = ["--corpus", str(corpus), "--config", str(tmp_path / "config.toml"), "--engine", "ray", "--json"]
    ingest = [sys.executable, "-c", "from serve.cli import main; main()", "ingest", str(files), *options]
    environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}

    async def some_are_stored() -> bool:
        try:
            return bool(stored(corpus, "SELECT id FROM documents"))
        except sqlite3.OperationalError:  # its tables are not made yet
            return False

    async def nobody_writes() -> bool:
        try:
            for shard in corpus.glob("shards/*"):
                WriterLock(shard).release()
        except InvalidInput:
            return False
        return True

    with subprocess.Popen(ingest, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as ingesting:
        await until(some_are_stored, within_s=240)
        ingesting.kill()
        assert ingesting.stderr.read() == b""  # what Ray says stays in its logs
    await until(nobody_writes, within_s=60)  # Ray ends the actors of a driver that is gone
    acknowledged = len(stored(corpus, "SELECT id FROM documents"))
    assert 0 < acknowledged < DOCUMENTS

    again = await asyncio.to_thread(subprocess.run, ingest, cwd=ROOT, env=environment, capture_output=True, check=True)
    report = json.loads(again.stdout)
    assert (report["added"], report["unchanged"]) == (DOCUMENTS - acknowledged, acknowledged)
    assert report["embedded"] == report["chunks"] == report["added"]  # a chunk each: none that was there, none twice
    ids = [row[1] for row in stored(corpus, "SELECT d.id FROM documents d JOIN chunks c ON c.document = d.number")]
    assert sorted(ids) == sorted(f"d{n}" for n in range(DOCUMENTS))
    verification = await verify_corpus(Parts(CONFIGURATION.profile(open_corpus(corpus))), "local")
    assert verification.clean
    assert sum(shard.chunks for shard in verification.shards) == DOCUMENTS


async def test_a_corpus_that_is_being_written_is_refused(files, tmp_path):
    corpus = tmp_path / "corpus"
    await IngestJob([files / "good.md"], corpus, CONFIGURATION).run()
    lock = WriterLock(corpus / "shards" / "0001")
    with pytest.raises(InvalidInput, match="is being written by process"):
        await RayIngestJob([files], corpus, CONFIGURATION).run()
    lock.release()


def test_an_error_at_which_the_job_ends_travels_as_a_row_and_is_raised_where_rows_arrive(tmp_path):
    corpus = create_corpus(tmp_path / "corpus", CorpusConfig(embedder="x", dimension=3))
    nowhere = Profile(corpus, embedder=EmbedderConfig(model="/nowhere/model"))
    (table,) = Embed(nowhere, ())(pa.Table.from_pylist([row(0)]))
    with pytest.raises(InvalidInput, match="/nowhere/model"):
        _Arrivals().take(table.to_pylist()[0])


def row(number, sources=0):
    read = Batch([], [], sources, 0)
    return {
        "number": number,
        "read": encode(read),
        "documents": encode([]),
        "refused": encode([]),
        "texts": 0,
        "error": b"",
    }


def test_rows_that_are_missing_end_the_job():
    arrivals = _Arrivals()
    for number, sources in ((0, 0), (1, 1), (0, 2)):  # two tasks
        arrivals.take(row(number, sources))
    arrivals.end(3)
    with pytest.raises(StageDied, match="of 4 files 3 came"):
        arrivals.end(4)
    with pytest.raises(StageDied, match="batch 2 came where 1 should"):
        arrivals.take(row(2))


def test_a_cluster_without_room_is_refused_and_the_others_are_filled():
    with pytest.raises(InvalidInput, match=r"has 1 CPUs; ingest needs 1\.5"):
        _sizes({"CPU": 1.0}, EmbedderConfig())
    assert _sizes({"CPU": 2.0}, EmbedderConfig()) == Sizes(readers=1, embedders=1, gpus=0)
    assert _sizes({"CPU": 64.0}, EmbedderConfig(threads=4)) == Sizes(readers=8, embedders=15, gpus=0)
    with_gpus = {"CPU": 64.0, "GPU": 4.0}
    assert _sizes(with_gpus, EmbedderConfig(threads=4)) == Sizes(readers=8, embedders=4, gpus=1)
    assert _sizes(with_gpus, EmbedderConfig(threads=4, device="cpu")) == Sizes(readers=8, embedders=15, gpus=0)
