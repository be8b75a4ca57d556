from __future__ import annotations

from pathlib import Path

import jpype
import msgspec
import pytest

from engine.errors import InvalidInput
from engine.run import start
from graphs.anserini import anserini_rag, anserini_search
from operators.corpus import jvm
from operators.messages import Answer, Question, Settings

DOCUMENTS = {
    "mill": "The mill at Ellerby was built by Ann Ross. It ground oats until 1911.",
    "dam": "The dam holds back the river above the mill. Nobody built it: it is a beaver dam.",
    "café": "Zürich has many a café.",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """An index like those that Anserini makes with -storeRaw, made without it; test_anserini of the corpus has one."""
    folder = tmp_path_factory.mktemp("anserini") / "index"
    java = jvm.start().JClass

    def lucene(name: str) -> jpype.JClass:
        return java("org.apache.lucene." + name)

    directory = lucene("store.FSDirectory").open(java("java.nio.file.Paths").get(str(folder)))
    analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    writer = lucene("index.IndexWriter")(directory, lucene("index.IndexWriterConfig")(analyzer))
    stored = lucene("document.Field$Store")
    for name, text in DOCUMENTS.items():
        document = lucene("document.Document")()
        document.add(lucene("document.StringField")("id", name, stored.YES))
        document.add(lucene("document.BinaryDocValuesField")("id", lucene("util.BytesRef")(name)))
        document.add(lucene("document.TextField")("contents", text, stored.NO))
        raw = msgspec.json.encode({"id": name, "contents": text, "title": name.title(), "year": 1911}).decode()
        document.add(lucene("document.StoredField")("raw", raw))
        writer.addDocument(document)
    writer.close()
    return folder


async def test_search_finds_documents_and_pages_through_them(index):
    async with start(anserini_search(index)) as ask:
        found = await ask(Question("Who built the mill?"))
        assert [p.document_id for p in found.passages] == ["mill", "dam"]
        first = found.passages[0]
        assert (first.chunk_id, first.title, first.text) == ("mill", "Mill", DOCUMENTS["mill"])
        assert (first.metadata, first.ranks, first.semantic) == ({"year": 1911}, {"lexical": 1}, None)
        assert found.plan.strategy == "lexical"
        bare = Settings(limit=1, offset=1, include_scores=False, include_metadata=False)
        second = (await ask(Question("Who built the mill?", bare))).passages
        assert [(p.document_id, p.score, p.metadata) for p in second] == [("dam", None, {})]
        assert [p.document_id for p in (await ask(Question("zürich", Settings(scope_prefix="ca")))).passages] == [
            "café"
        ]


async def test_what_the_index_cannot_do_is_refused_and_the_graph_lives_on(index):
    async with start(anserini_search(index)) as ask:
        for settings in (
            Settings(filters={"year": {"$gt": 1900}}),
            Settings(score_threshold=0.5),
            Settings(legs={"dense": 1.0}),
        ):
            with pytest.raises(InvalidInput, match="an index of Anserini's has no"):
                await ask(Question("mill", settings))
        assert (await ask(Question("mill"))).passages


async def test_a_folder_without_an_index_is_refused_when_the_graph_starts(tmp_path):
    with pytest.raises(InvalidInput, match="holds no Lucene index"):
        async with start(anserini_search(tmp_path)):
            pass


async def test_answers_cite_the_documents(index):
    async with start(anserini_rag(index)) as ask:
        events = [event async for event in await ask(Question("Who built the mill at Ellerby?"))]
    answer = events[-1]
    assert isinstance(answer, Answer)
    assert "Ann Ross" in answer.text
    assert answer.citations[0].document_id == "mill"
