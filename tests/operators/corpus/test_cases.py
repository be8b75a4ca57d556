"""What users of such systems complained of, as far as documents, filters, scores and language go, by report.

Tested elsewhere: R2R#2224 and #2093 (tests/operators/test_cite.py), R2R#1970 (tests/graphs/test_rag.py), R2R#2243
(tests/serve/test_session.py), haystack#11794 over HTTP (tests/serve/gateway/test_filters.py), the one rebuild of
LightRAG#2795 (test_shard.py), and once more, closer to the database, R2R#1698 (test_filter_sql.py).
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.run import Session
from engine.scope import Identity, Scope
from graphs import corpus as care
from graphs.ingest import embedder_counters, ingest
from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.filter_operators import OPERATORS
from operators.filter_parse import parse_filter
from operators.messages import Answer, Deleted, Document, Listing, Question, Settings, Written
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity

EACH_LEG = pytest.mark.parametrize(
    "legs", [{"dense": 1.0}, {"lexical": 1.0}, {"dense": 1.0, "lexical": 1.0}], ids="+".join
)


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

    def reopen(self) -> None:
        """As another process finds it: what the embedder made of late is forgotten."""
        self.close()
        self._session, self._running = Session(), {}
        self.parts = Parts(self.parts.profile, writable=True)

    def answer(self, question: str, **settings: Any) -> Answer:
        """The answer, in sentences of the sources."""

        async def events() -> list[Any]:
            if rag not in self._running:
                self._running[rag] = await self._session.start(rag(self.parts))
            return [e async for e in await self._running[rag](Question(question, Settings(**settings)))]

        *_, last = self._runner.run(events())
        assert isinstance(last, Answer)
        return last

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


def test_r2r_1878_pages_of_filtered_chunks_are_together_the_whole_list(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS, metadata={"year": 1}),
                 text("b", PARAGRAPHS.replace("entry", "memo"), metadata={"year": 2}))  # fmt: skip
    one = parse_filter({"document_id": "log", "year": 1})
    whole = corpus(care.chunks, Listing(filters=one))
    pages = [corpus(care.chunks, Listing(filters=one, offset=n, limit=2)) for n in range(0, whole.total, 2)]
    assert [c.chunk_id for page in pages for c in page.chunks] == [c.chunk_id for c in whole.chunks]
    assert {page.total for page in pages} == {whole.total}
    assert whole.total > 4


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


def test_r2r_2030_later_metadata_stays_with_its_version_and_goes_with_it(corpus) -> None:
    corpus.holds(text("log", "Vera keeps the log.", metadata={"year": 1}))
    corpus(care.change_metadata, "log", {"keeper": "Vera"}, False)
    corpus(care.change_collections, ["log"], ["sea"], [])
    for words, metadata, collections in (
        ("Vera keeps the log.", {"year": 1, "keeper": "Vera"}, ("sea",)),
        ("Vera keeps the log now.", {"year": 1}, ()),
    ):
        corpus(ingest, [text("log", words, metadata={"year": 1})])
        (stored,) = corpus(care.documents, Listing()).documents
        assert (stored.metadata, stored.collections) == (metadata, collections)


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
        ("Еще", "ru"),
        ("ΛΙΜΝΗ", "el"),
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
        text("ru", "Эта плотина ещё стоит на реке."),
        text("el", "Η λίμνη είναι βαθιά."),
        text("en", "She runs along the shore every day."),
        text("code", "Release v2.15.2 renames user_id to account."),
    )
    assert corpus.found(question, legs={"lexical": 1.0}) == [id]


@pytest.mark.parametrize("legs", [{"dense": 1.0}, {"dense": 1.0, "lexical": 1.0}], ids="+".join)
def test_ragflow_7490_7556_7877_limit_and_threshold_hold_when_documents_are_named(corpus, legs: dict) -> None:
    corpus.holds(*(text(f"d{n}", f"Beavers build dams, note {n}.") for n in range(5)),
                 text("far", "A beaver stamp of 1911: tax law."))  # fmt: skip
    asked = {"filters": {"document_id": {"$in": ["d0", "d1", "d2", "far"]}}, "legs": legs}
    near = {p.document_id: p.semantic for p in corpus(search, Question("beaver dams", Settings(**asked))).passages}
    bar = (near.pop("far") + min(near.values())) / 2
    above = corpus(search, Question("beaver dams", Settings(**asked, score_threshold=bar))).passages
    assert {p.document_id for p in above} == {"d0", "d1", "d2"}
    assert all(p.semantic >= bar for p in above)
    assert len(corpus.found("beaver dams", **asked, limit=2)) == 2
    pages = [corpus.found("beaver dams", **asked, limit=1, offset=n, score_threshold=bar) for n in range(4)]
    assert pages == [*([p.document_id] for p in above), []]
    assert corpus.found("beaver dams", filters={"document_id": "far"}, legs=legs, score_threshold=bar) == []


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
        {"$not": {}},
        {"collections": {"$overlap": []}},
    ],
    ids=str,
)
@EACH_LEG
def test_ragflow_10926_a_filter_that_nothing_passes_returns_nothing(corpus, nothing: dict, legs: dict) -> None:
    corpus.holds(text("a", "Herons wade.", metadata={"year": 2000}), text("b", "Herons fly.", metadata={"year": 2001}))
    assert corpus.found("herons", filters=nothing, legs=legs) == []
    assert corpus(care.documents, Listing(filters=parse_filter(nothing))).total == 0
    assert corpus(care.chunks, Listing(filters=parse_filter(nothing))).total == 0
    answer = corpus.answer("What do herons do?", filters=nothing, legs=legs)
    assert (answer.finish_reason, answer.sources, answer.citations) == ("no_sources", (), ())
    assert corpus(care.delete_where, nothing) == Deleted(0, 0)
    assert sorted(corpus.found("herons")) == ["a", "b"]


def test_ragflow_11533_every_passage_has_its_documents_metadata_also_of_the_31st_document(corpus) -> None:
    corpus.holds(*(text(f"d{n}", f"Ferry number {n} crosses.", metadata={"n": n}) for n in range(40)))
    found = corpus(search, Question("ferry crosses", Settings(limit=40)))
    assert len(found.passages) == 40
    assert all(p.metadata == {"n": int(p.document_id[1:])} for p in found.passages)


def test_lightrag_2653_2116_3158_openrag_2388_the_same_content_under_another_name_is_a_second_document(corpus) -> None:
    first = text("first.txt", "Eels migrate to the Sargasso Sea.")
    assert corpus.holds(first) == [Written("first.txt", "added", 1)]
    corpus.reopen()
    before = corpus.embedded()
    assert corpus(ingest, [text("second.txt", first.text)]) == [Written("second.txt", "added", 1)]
    assert corpus.embedded() == before
    assert sorted(corpus.found("eels")) == ["first.txt", "second.txt"]
    assert corpus.found("eels", scope_prefix="second") == ["second.txt"]
    corpus(care.delete, ["first.txt"])
    assert corpus.found("eels") == ["second.txt"]


def test_lightrag_2653_2116_3158_other_content_under_the_same_name_is_taken_and_the_same_is_said_so(corpus) -> None:
    assert corpus.holds(text("a.txt", "Old text.")) == [Written("a.txt", "added", 1)]
    assert corpus(ingest, [text("a.txt", "Old text.")]) == [Written("a.txt", "unchanged", 0)]
    assert corpus(ingest, [text("a.txt", "New text.")])[0].outcome == "replaced"
    assert corpus(ingest, [text("a.txt", "Old text.")])[0].outcome == "replaced"
    both = [text("b", "Old."), text("b", "New.")]
    assert [w.outcome for w in corpus(ingest, both)] == ["added", "replaced"]
    assert [w.outcome for w in corpus(ingest, both)] == ["replaced", "replaced"]
    assert corpus.found("old new", scope_prefix="b") == ["b"]
    assert [c.text for c in corpus(care.chunks, Listing(scope_prefix="b")).chunks] == ["New."]


def test_lightrag_3158_the_same_name_in_another_folder_is_another_document(corpus) -> None:
    corpus.holds(text("one/readme.md", "Install with pip.", title="Readme"),
                 text("two/readme.md", "Install with cargo.", title="Readme"))  # fmt: skip
    assert sorted(corpus.found("install")) == ["one/readme.md", "two/readme.md"]
    corpus(care.delete, ["one/readme.md"])
    assert corpus.found("install") == ["two/readme.md"]


def test_lightrag_3831_2123_4055_of_a_new_version_only_new_chunks_are_embedded(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS))
    old, changed = {c.text for c in corpus(care.chunks, Listing()).chunks}, PARAGRAPHS.replace("entry 3", "memo 3")
    corpus.reopen()
    before = corpus.embedded()
    assert corpus(ingest, [text("log", changed)])[0].outcome == "replaced"
    new = {c.text for c in corpus(care.chunks, Listing()).chunks}
    assert corpus.embedded() - before == len(new - old) < len(new)
    assert corpus(ingest, [text("copy", changed)])[0].outcome == "added"
    assert corpus.embedded() - before == len(new - old)


@EACH_LEG
def test_lightrag_3831_2123_4055_neither_leg_nor_answer_knows_the_old_version(corpus, legs: dict) -> None:
    corpus.holds(text("bridge", "The Ossian bridge was opened in 1931.\n\n" + "Its arches are of granite. " * 60))
    new = "The Ossian bridge was opened in 1933 by Maud."
    assert corpus(ingest, [text("bridge", new)]) == [Written("bridge", "replaced", 1)]
    question = "When was the Ossian bridge opened, 1931, arches of granite?"
    found = corpus(search, Question(question, Settings(limit=50, legs=legs))).passages
    assert [p.text for p in found] == [new]
    answer = corpus.answer("When was the Ossian bridge opened?", legs=legs).text
    assert ("1933" in answer, "1931" in answer) == (True, False)
    assert sum(s.chunks for s in corpus(care.stats)) == 1


@EACH_LEG
def test_lightrag_190_3835_2795_verba_214_a_deleted_document_is_gone_and_its_neighbours_are_whole(
    corpus, legs: dict
) -> None:
    shared = "The same paragraph stands in both reports about herring."
    corpus.holds(text("x/report", shared, title="Report"), text("y/report", shared, title="Report"),
                 text("x/report#1", "Another report on herring."))  # fmt: skip
    assert corpus(care.delete, ["x/report"]).documents == 1
    left = {"y/report", "x/report#1"}
    assert set(corpus.found("herring", legs=legs)) == left
    assert {c.document_id for c in corpus(care.chunks, Listing()).chunks} == left
    answer = corpus.answer("Where does the same paragraph about herring stand?", legs=legs)
    assert {s.document_id for s in answer.sources} == left
    passage = corpus(search, Question("herring", Settings(scope_prefix="y/", legs=legs))).passages[0]
    assert (passage.document_id, passage.text) == ("y/report", shared)
    deleted = corpus(care.delete, ["y/report", "x/report", "x/report#1"])
    assert (deleted.documents, deleted.missing) == (2, ("x/report",))
    assert corpus.found("herring", legs=legs) == []


@pytest.mark.parametrize("typo", [{"year": {"$gth": 3}}, {"year": {"gt": 3}}, {"$nor": []}], ids=str)
def test_haystack_11794_a_mistyped_operator_is_refused_with_those_that_there_are(corpus, typo) -> None:
    with pytest.raises(InvalidInput) as refusal:
        corpus.found("x", filters=typo)
    valid = ("$and", "$or", "$not") if "$nor" in typo else OPERATORS
    assert all(name in str(refusal.value) for name in valid)


def test_llama_index_21750_not_equal_and_not_in_hold_where_the_key_is_missing(corpus) -> None:
    corpus.holds(text("old", "Pike.", metadata={"year": 1}), text("new", "Perch.", metadata={"year": 2}),
                 text("none", "Roach."))  # fmt: skip
    for raw in ({"year": {"$ne": 1}}, {"year": {"$neq": 1}}, {"year": {"$nin": [1]}}, {"$not": {"year": 1}}):
        assert sorted(corpus.found("fish", filters=raw)) == ["new", "none"]


def test_haystack_11710_12756_llama_index_17439_offsets_are_those_of_the_source_and_no_passage_comes_twice(
    corpus,
) -> None:
    corpus.holds(text("log", PARAGRAPHS), text("猫", "猫が好き。" * 300))
    sources = {"log": PARAGRAPHS, "猫": "猫が好き。" * 300}
    found = corpus(search, Question("lighthouse keeper 猫", Settings(limit=50, candidates=100))).passages
    assert len({p.chunk_id for p in found}) == len(found) > 4
    assert all(sources[p.document_id][p.start : p.end] == p.text for p in found)
    chunks = corpus(care.chunks, Listing(scope_prefix="log")).chunks
    assert any(later.start < earlier.end for earlier, later in pairwise(chunks)), "none overlaps"


def test_llama_index_17439_an_answer_has_each_source_and_citation_once(corpus) -> None:
    corpus.holds(text("log", PARAGRAPHS), text("copy", PARAGRAPHS))
    answer = corpus.answer("Who wrote entry 2 of the log?", limit=8)
    assert len({s.chunk_id for s in answer.sources}) == len(answer.sources)
    assert len(set(answer.citations)) == len(answer.citations) > 0
    assert all(PARAGRAPHS[s.start : s.end] == s.text for s in answer.sources)
