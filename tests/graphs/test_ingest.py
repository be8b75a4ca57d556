from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from engine.run import Session
from graphs.ingest import embedder_counters, ingest
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.chunk import ChunkConfig
from operators.corpus.manifest import CorpusConfig, create_corpus, open_corpus
from operators.messages import Document, Question
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity
from tests.corpora import ingested

PARAGRAPHS = [
    f"The weir of {town} is {length} metres long. It was built when {town} had {length} mills on one river. " * 5
    for length, town in enumerate(("Elm", "Oak", "Ash"), start=11)
]


@asynccontextmanager
async def ingesting(corpus, size):
    """What ingests documents, and tells their outcomes, the texts that the model read for it, and its calls."""
    parts = Parts(Profile(corpus, chunks=ChunkConfig(size=size, overlap=0)), writable=True)
    session = Session()
    write, counters = await session.start(ingest(parts)), await session.start(embedder_counters(parts))

    async def ingested(*documents):
        before = await counters()
        written = await write(list(documents))
        after = await counters()
        calls = after.batcher.submitted - before.batcher.submitted
        return [w.outcome for w in written], after.texts - before.texts, calls

    yield ingested
    await session.aclose()


def document(name, *paragraphs, title="Weirs", **more):
    return Document(id=name, title=title, text="\n\n".join(paragraphs), **more)


@pytest.mark.parametrize("shards", [1, 3])
async def test_only_what_no_shard_has_yet_is_embedded(tmp_path, shards):
    identity, dimension = embedder_identity(EmbedderConfig())
    corpus = create_corpus(tmp_path / "corpus", CorpusConfig(embedder=identity, dimension=dimension, shards=shards))
    old, new = document("a", *PARAGRAPHS), document("a", *PARAGRAPHS[:2], PARAGRAPHS[2].replace("river", "brook"))
    async with ingesting(corpus, size=150) as ingested:
        assert await ingested(old) == (["added"], 3, 1)
        assert await ingested(old) == (["unchanged"], 0, 0)  # not one call
        assert await ingested(new) == (["replaced"], 1, 1)
        assert await ingested(document("b", *PARAGRAPHS[:2])) == (["added"], 0, 0)
        assert await ingested(document("b", *PARAGRAPHS[:2], metadata={"kind": "weir"})) == (["replaced"], 0, 0)
        assert await ingested(document("c", *PARAGRAPHS[:2], title="Other headings")) == (["added"], 2, 1)
        assert await ingested(document("blank", " \n ")) == (["added"], 0, 0)
        assert await ingested() == ([], 0, 0)
        several = document("b", *PARAGRAPHS[:2]), document("d", "A new text."), new
        assert await ingested(*several) == (["replaced", "added", "unchanged"], 1, 1)

    async with ingesting(corpus, size=160) as ingested:  # in another process, cut by other rules
        assert await ingested(new) == (["replaced"], 0, 0)
        assert await ingested(document("e", *PARAGRAPHS[:2], title="Other headings")) == (["added"], 0, 0)


async def test_a_new_version_replaces_the_old_and_the_same_one_costs_nothing(tmp_path):
    empty = tmp_path / "files"
    empty.mkdir()
    (empty / "a.txt").write_text("The gate opens at dawn.", encoding="utf-8")
    folder = tmp_path / "corpus"
    await asyncio.to_thread(ingested, folder, empty)
    parts = Parts(Profile(open_corpus(folder)), writable=True)
    session = Session()
    try:
        write, ask = await session.start(ingest(parts)), await session.start(search(parts))
        old = Document(id="b", title="b", text="The lamp is lit by Ida.")
        new = Document(id="b", title="b", text="The lamp is lit by Otto.")
        assert [w.outcome for w in await write([old])] == ["added"]
        assert [w.outcome for w in await write([old])] == ["unchanged"]
        assert [w.outcome for w in await write([new])] == ["replaced"]
        found = await ask(Question("Who lights the lamp?"))
        assert found.passages[0].text == "The lamp is lit by Otto."
        assert not any("Ida" in p.text for p in found.passages)
    finally:
        await session.aclose()


def test_a_second_run_finds_everything_unchanged(tmp_path):
    first = ingested(tmp_path / "corpus")
    again = ingested(tmp_path / "corpus")
    assert (first.added, first.unchanged, first.embedded, first.reused) == (3, 0, first.chunks, 0)
    assert (again.added, again.unchanged, again.replaced) == (0, 3, 0)
    assert (again.chunks, again.embedded, again.reused) == (0, 0, 0)
