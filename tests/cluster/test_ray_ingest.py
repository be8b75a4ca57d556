"""The ingest job on Ray Data does what it does in one process."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest

from engine.errors import InvalidInput
from engine.run import start
from engine.wire import encode
from graphs.parts import Profile
from graphs.search import search
from operators.chunk import ChunkConfig
from operators.corpus.manifest import CorpusConfig, IndexConfig, create_corpus, open_corpus
from operators.messages import Question
from operators.models.embedder import EmbedderConfig
from serve.ingest_job import IngestJob
from serve.ingest_reader import SeenIds, Tenancy
from serve.ray_ingest import RayIngestJob, _arrived, _pool_sizes
from serve.ray_workers import Embed
from serve.settings import Configuration

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray Data sets what Ray Data deprecates

TEXT = "The weir of Town{0} is {0} metres long. It was built when Town{0} had {0} mills on one river."
CONFIGURATION = Configuration(corpus=IndexConfig(shards=2), chunks=ChunkConfig(size=60, overlap=0))


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    (folder / "beir").mkdir(parents=True)
    lines = [json.dumps({"_id": f"d{n}", "title": f"Weir {n}", "text": TEXT.format(n)}) for n in range(100)]
    lines += [json.dumps({"_id": "x" * 5000, "text": "An id that no corpus takes."})]
    lines += [json.dumps({"_id": "d3", "text": "An id that came before."}), "no json"]
    (folder / "beir" / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "good.md").write_text("# Good\n\nThe weir is made of granite.")
    (folder / "photo.bin").write_bytes(b"\x00\x01\x02" * 100)
    return folder


def comparable(report):
    skipped = sorted((os.path.basename(row.path), row.reason) for row in report.skipped)
    return report.added, report.replaced, report.unchanged, report.chunks, report.embedded, report.reused, skipped


async def test_a_ray_ingest_reports_and_stores_what_a_local_one_does(files, tmp_path):
    told = []
    tenancy = Tenancy("ida", ("mill",))
    local = await IngestJob([files], tmp_path / "local", CONFIGURATION, tenancy=tenancy).run()
    job = RayIngestJob([files], tmp_path / "ray", CONFIGURATION, tenancy=tenancy, tell=told.append)
    on_ray = await job.run()
    assert comparable(on_ray) == comparable(local)
    assert (on_ray.added, len(on_ray.skipped), on_ray.embedded) == (101, 4, 101)
    assert told[-1].size_bytes == told[-1].size_bytes_found
    assert told[-1].sources == told[-1].sources_found == 3

    found = {}
    for name in ("local", "ray"):
        async with start(search(open_corpus(tmp_path / name))) as ask:
            answers = [await ask(Question(q)) for q in ("Who built the granite weir?", "Town42 mills")]
            found[name] = [[(p.chunk_id, p.owner, p.collections) for p in a.passages] for a in answers]
    assert found["ray"] == found["local"]
    assert found["ray"][1][0] == ("d42#0", "ida", ("mill",))

    again = await RayIngestJob([files], tmp_path / "ray", CONFIGURATION, tenancy=tenancy).run()
    assert (again.added, again.replaced, again.unchanged, again.embedded) == (0, 0, 101, 0)
    assert len(again.skipped) == 4


async def test_a_corpus_that_is_being_written_is_refused(files, tmp_path):
    corpus = tmp_path / "corpus"
    await IngestJob([files / "good.md"], corpus, CONFIGURATION).run()
    job = RayIngestJob([files], corpus, CONFIGURATION)
    with _writing(corpus), pytest.raises(InvalidInput, match="is being written by process"):
        await job.run()


def _writing(corpus):
    from contextlib import closing

    from operators.corpus.files import WriterLock

    class Lock(WriterLock):
        close = WriterLock.release

    return closing(Lock(corpus / "shards" / "0001"))


def test_an_error_at_which_the_job_ends_travels_as_a_row_and_is_raised_where_rows_arrive(tmp_path):
    corpus = create_corpus(tmp_path / "corpus", CorpusConfig(embedder="x", dimension=3))
    nowhere = Profile(corpus, embedder=EmbedderConfig(model="/nowhere/model"))
    first = {"read": b"", "documents": encode([]), "refused": encode([]), "texts": 0, "error": b""}
    (table,) = Embed(nowhere, ())(pa.Table.from_pylist([first]))
    with pytest.raises(InvalidInput, match="/nowhere/model"):
        _arrived(table.to_pylist()[0], SeenIds())


def test_a_cluster_without_room_is_refused_and_the_others_are_filled():
    with pytest.raises(InvalidInput, match=r"has 1 CPUs; ingest needs 1\.5"):
        _pool_sizes({"CPU": 1.0}, threads=1)
    assert _pool_sizes({"CPU": 2.0}, threads=1) == (1, 1)
    assert _pool_sizes({"CPU": 64.0}, threads=4) == (8, 15)
    assert _pool_sizes({"CPU": 64.0, "GPU": 4.0}, threads=4) == (8, 4)
