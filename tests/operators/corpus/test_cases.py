"""What users of such systems complained of, as far as documents, filters, scores and language go, by report.

Tested elsewhere: R2R#2224 and #2093 (tests/operators/test_cite.py), R2R#1970 (tests/graphs/test_rag.py), and once more,
closer to the database, R2R#1698 (test_filter_sql.py).
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.run import Session
from engine.scope import Identity, Scope
from graphs import corpus as care
from graphs.ingest import embedder_counters, ingest
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.filter_parse import parse_filter
from operators.messages import Document, Listing, Question, Settings, Written
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity


class Corpus:
    """One corpus of two shards, with the packaged models, and the session that all tests share."""

    def __init__(self, parts: Parts, runner: asyncio.Runner) -> None:
        self.parts = parts
        self._session = Session()
        self._runner = runner
        self._running: dict[Callable[..., Any], Any] = {}

    def __call__(
        self, graph: Callable[[Parts], Graph[..., Any]], *inputs: Any, identity: Identity | None = None
    ) -> Any:
        """What a graph answers."""

        async def answer() -> Any:
            if graph not in self._running:
                self._running[graph] = await self._session.start(graph(self.parts))
            return await self._running[graph].within(Scope(identity=identity))(*inputs)

        return self._runner.run(answer())

    def close(self) -> None:
        self._runner.run(self._session.aclose())

    def holds(self, *documents: Document) -> list[Written]:
        """Ingests documents, and nothing else is there."""
        there = self(care.documents, Listing(limit=1_000)).documents
        if there:
            self(care.delete, [d.id for d in there])
        return self(ingest, list(documents))

    def found(self, question: str, identity: Identity | None = None, **settings: Any) -> list[str]:
        """Ids of the documents that a search finds, best first."""
        results = self(search, Question(question, Settings(**settings)), identity=identity)
        return [p.document_id for p in results.passages]

    def embedded(self) -> int:
        """Texts that the embedder has read so far."""
        return int(self(embedder_counters).texts)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    identity, dimension = embedder_identity(EmbedderConfig())
    config = CorpusConfig(embedder=identity, dimension=dimension, shards=2)
    parts = Parts(Profile(create_corpus(tmp_path_factory.mktemp("cases") / "corpus", config)), writable=True)
    with asyncio.Runner() as runner:
        opened = Corpus(parts, runner)
        yield opened
        opened.close()


def text(id: str, words: str, **fields: Any) -> Document:
    return Document(id=id, title=fields.pop("title", ""), text=words, **fields)


@pytest.mark.parametrize("field", ["collection_id", "collection_ids", "collections"])
@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("c1", ["a", "both"]),
        ({"$eq": "c1"}, ["a", "both"]),
        ({"$in": ["c1"]}, ["a", "both"]),
        ({"$in": ["c1", "c2"]}, ["a", "b", "both"]),
        ({"$in": ["c3"]}, []),
        ({"$overlap": ["c2", "c3"]}, ["b", "both"]),
        ({"$contains": ["c1", "c2"]}, ["both"]),
        ({"$array_contains": ["c1"]}, ["a", "both"]),
        ({"$ne": "c1"}, ["b"]),
        ({"$nin": ["c1", "c3"]}, ["b"]),
    ],
    ids=str,
)
def test_r2r_1698_collections_filter_for_ordinary_users(corpus, field: str, value: Any, ids: list[str]) -> None:
    corpus.holds(
        text("a", "Otters swim.", collections=("c1",)),
        text("b", "Otters dive.", collections=("c2",)),
        text("both", "Otters sleep.", collections=("c1", "c2")),
        text("hidden", "Otters hide.", collections=("c1", "c2", "c3")),
    )
    corpus(care.change_collections, ["hidden"], [], ["c1", "c2"])
    somebody = Identity("somebody", ("c1", "c2"))
    assert sorted(corpus.found("otters", somebody, filters={field: value})) == ids
    listed = corpus(care.documents, Listing(filters=parse_filter({field: value})), identity=somebody)
    assert sorted(d.id for d in listed.documents) == ids


def test_r2r_1878_lists_of_chunks_keep_to_filters_together_with_a_document(corpus) -> None:
    corpus.holds(text("a", "One.", metadata={"year": 1}), text("b", "Two.", metadata={"year": 1}),
                 text("c", "Three.", metadata={"year": 2}))  # fmt: skip
    for raw, ids in (
        ({"year": 1}, ["a#0", "b#0"]),
        ({"year": 1, "document_id": "b"}, ["b#0"]),
        ({"year": 2, "document_id": "b"}, []),
        ({"document_id": {"$in": ["a", "c"]}, "year": {"$gte": 2}}, ["c#0"]),
    ):
        page = corpus(care.chunks, Listing(filters=parse_filter(raw)))
        assert [c.chunk_id for c in page.chunks] == ids
        assert page.total == len(ids)


PARAGRAPHS = "\n\n".join(
    f"Paragraph {n}: " + f"the lighthouse keeper wrote entry {n} of the log. " * 25 for n in range(4)
)


def test_r2r_2030_ragflow_16310_later_metadata_is_on_every_chunk_and_costs_no_embedding(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS), text("other", "The lighthouse is red."))
    before = corpus.embedded()
    assert corpus(care.change_metadata, "log", {"keeper": "Vera"}, False)
    found = corpus(search, Question("lighthouse keeper", Settings(filters={"keeper": "Vera"})))
    chunks = corpus(care.chunks, Listing(filters=parse_filter({"keeper": "Vera"}))).chunks
    assert len(chunks) > 2
    assert {c.document_id for c in chunks} == {"log"}
    assert all(c.metadata == {"keeper": "Vera"} for c in (*chunks, *found.passages))
    assert len(found.passages) == len(chunks)
    assert corpus.embedded() == before + 1  # the question


@pytest.mark.parametrize(
    ("question", "id"),
    [
        ("水库", "zh"),
        ("ダム", "ja"),
        ("저수지", "ko"),
        ("Größe", "de"),
        ("JARVELLA", "fi"),
        ("grosse", "de"),
        ("cafe", "fr"),
        ("CAFÉ", "fr"),
        ("naïve", "fr"),
        ("плотина", "ru"),
        ("running", "en"),
        ("v2.15.2", "code"),
        ("user_id", "code"),
    ],
)
def test_r2r_full_text_finds_words_of_every_script(corpus, question: str, id: str) -> None:
    """ardge-timwu/rag-experiments#2: R2R's full text knows English only."""
    corpus.holds(
        text("zh", "这座水库建于一九五八年。"),
        text("ja", "このダムは川の上流にあります。"),
        text("ko", "이 저수지는 아주 오래되었다."),
        text("de", "Die Größe des Sees ist unbekannt."),
        text("fi", "Kanu lipui järvellä."),
        text("fr", "Un café naïve au bord du lac."),
        text("ru", "Эта плотина стоит на реке."),
        text("en", "She runs along the shore every day."),
        text("code", "Release v2.15.2 renames user_id to account."),
    )
    assert corpus.found(question, legs={"lexical": 1.0}) == [id]


def test_ragflow_7490_7556_7877_limit_and_threshold_hold_when_documents_are_named(corpus) -> None:
    corpus.holds(*(text(f"d{n}", f"Beavers build dams, note {n}.") for n in range(5)), text("far", "Tax law of 1911."))
    named = {"document_id": {"$in": ["d0", "d1", "d2", "far"]}}
    assert len(corpus.found("beaver dams", filters=named, limit=2)) == 2
    everything = corpus(search, Question("beaver dams", Settings(filters=named)))
    assert {p.document_id for p in everything.passages} == {"d0", "d1", "d2", "far"}
    assert sorted(corpus.found("beaver dams", filters=named, score_threshold=0.4)) == ["d0", "d1", "d2"]
    assert len(corpus.found("beaver dams", filters=named, score_threshold=0.4, limit=2)) == 2
    assert corpus.found("beaver dams", filters={"document_id": "far"}, score_threshold=0.4) == []


@pytest.mark.parametrize(
    "nothing",
    [
        {"year": 1999},
        {"missing": "x"},
        {"id": {"$in": []}},
        {"$or": []},
        {"year": {"$gt": 3000}},
        {"collection_id": "no such"},
        {"$and": [{"id": "a"}, {"id": "b"}]},
    ],
    ids=str,
)
@pytest.mark.parametrize("legs", [{"dense": 1.0}, {"lexical": 1.0}, {"dense": 1.0, "lexical": 1.0}], ids="+".join)
def test_ragflow_10926_a_filter_that_nothing_passes_returns_nothing(corpus, nothing: dict, legs: dict) -> None:
    corpus.holds(text("a", "Herons wade.", metadata={"year": 2000}), text("b", "Herons fly.", metadata={"year": 2001}))
    assert corpus.found("herons", filters=nothing, legs=legs) == []
    assert corpus(care.documents, Listing(filters=parse_filter(nothing))).total == 0


def test_ragflow_11533_every_passage_has_its_documents_metadata_also_of_the_31st_document(corpus) -> None:
    corpus.holds(*(text(f"d{n}", f"Ferry number {n} crosses.", metadata={"n": n}) for n in range(40)))
    found = corpus(search, Question("ferry crosses", Settings(limit=40)))
    assert len(found.passages) == 40
    assert all(p.metadata == {"n": int(p.document_id[1:])} for p in found.passages)


def test_lightrag_2653_2116_3158_openrag_2388_the_same_content_under_another_name_is_a_second_document(corpus) -> None:
    first = text("first.txt", "Eels migrate to the Sargasso Sea.")
    assert corpus.holds(first) == [Written("first.txt", "added", 1)]
    before = corpus.embedded()
    assert corpus(ingest, [text("second.txt", first.text)]) == [Written("second.txt", "added", 1)]
    assert corpus.embedded() == before
    assert sorted(corpus.found("eels")) == ["first.txt", "second.txt"]
    assert corpus.found("eels", scope_prefix="second") == ["second.txt"]
    corpus(care.delete, ["first.txt"])
    assert corpus.found("eels") == ["second.txt"]


def test_lightrag_2653_2116_3158_other_content_under_the_same_name_is_taken_and_the_same_is_said_so(corpus) -> None:
    assert corpus.holds(text("a.txt", "Old text."))[0].outcome == "added"
    assert corpus(ingest, [text("a.txt", "Old text.")])[0].outcome == "unchanged"
    assert corpus(ingest, [text("a.txt", "New text.")])[0].outcome == "replaced"
    assert corpus(ingest, [text("a.txt", "Old text.")])[0].outcome == "replaced"


def test_lightrag_3831_2123_4055_a_new_version_replaces_the_old_and_embeds_only_what_is_new(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS))
    before = corpus.embedded()
    chunks = len(corpus(care.chunks, Listing()).chunks)
    changed = PARAGRAPHS.replace("entry 3", "memo 3")
    assert corpus(ingest, [text("log", changed)])[0].outcome == "replaced"
    embedded = corpus.embedded() - before
    assert 0 < embedded < chunks
    texts = [c.text for c in corpus(care.chunks, Listing()).chunks]
    assert not any("entry 3" in t for t in texts)
    found = corpus(search, Question("entry 3", Settings(legs={"lexical": 1.0}))).passages
    assert not any("entry 3" in p.text for p in found)
    assert any("memo 3" in t for t in texts)


def test_lightrag_190_3835_2795_verba_214_a_deleted_document_is_gone_and_its_neighbours_are_whole(corpus) -> None:
    shared = "The same paragraph stands in both reports about herring."
    corpus.holds(text("x/report", shared), text("y/report", shared), text("x/report#1", "Another report on herring."))
    assert corpus(care.delete, ["x/report"]).documents == 1
    assert sorted(corpus.found("herring")) == ["x/report#1", "y/report"]
    passage = corpus(search, Question("herring", Settings(scope_prefix="y/"))).passages[0]
    assert (passage.document_id, passage.text) == ("y/report", shared)
    deleted = corpus(care.delete, ["y/report", "x/report", "x/report#1"])
    assert (deleted.documents, deleted.missing) == (2, ("x/report",))
    assert corpus.found("herring") == []


@pytest.mark.parametrize("typo", [{"year": {"$gth": 3}}, {"$nor": []}, {"year": {"$gte": 1, "$lessthan": 2}}], ids=str)
def test_haystack_11794_11710_12756_a_mistyped_operator_is_refused_with_those_that_there_are(corpus, typo) -> None:
    with pytest.raises(InvalidInput) as refusal:
        corpus.found("x", filters=typo)
    valid = ("$and", "$or", "$not") if "$nor" in typo else ("$eq", "$gt", "$gte", "$in", "$nin", "$contains")
    assert all(name in str(refusal.value) for name in valid)


def test_llama_index_21750_not_equal_and_not_in_hold_where_the_key_is_missing(corpus) -> None:
    corpus.holds(text("old", "Pike.", metadata={"year": 1}), text("new", "Perch.", metadata={"year": 2}),
                 text("none", "Roach."))  # fmt: skip
    for raw in ({"year": {"$ne": 1}}, {"year": {"$neq": 1}}, {"year": {"$nin": [1]}}, {"$not": {"year": 1}}):
        assert sorted(corpus.found("fish", filters=raw)) == ["new", "none"]


def test_llama_index_17439_offsets_are_those_of_the_source_and_no_passage_comes_twice(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS), text("猫", "猫が好き。" * 300))
    sources = {"log": PARAGRAPHS, "猫": "猫が好き。" * 300}
    found = corpus(search, Question("lighthouse keeper 猫", Settings(limit=50, candidates=100))).passages
    assert len({p.chunk_id for p in found}) == len(found) > 4
    assert all(sources[p.document_id][p.start : p.end] == p.text for p in found)
