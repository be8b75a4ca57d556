from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.errors import AccessDenied, InvalidInput
from engine.run import Session
from engine.scope import Identity, Scope
from graphs import corpus as care
from graphs.ingest import ingest
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.filter_parse import parse_filter
from operators.messages import MAX_LISTED, Deleted, Document, Listing, Question, Settings
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity

DOCUMENTS = [
    Document(id="mill", title="Mill", text="The mill stands on the river Ach. Its wheel was built by Anna Vogt.",
             metadata={"year": 1890}),
    Document(id="kelp", title="Kelp", text="Kelp grows in cold water. It is cut by boat in spring.",
             metadata={"year": 2001}, collections=("sea",)),
    Document(id="kelp/prices", title="Prices", text="A ton of dried kelp costs nine hundred crowns.",
             metadata={"year": 2002}, owner="otto"),
]  # fmt: skip


class Corpus:
    """A writable corpus of two shards that holds DOCUMENTS."""

    def __init__(self, parts: Parts, session: Session) -> None:
        self.parts = parts
        self.session = session

    async def __call__(self, graph, *inputs, identity: Identity | None = None):
        running = await self.session.start(graph(self.parts))
        return await running.within(Scope(identity=identity))(*inputs)

    async def found(self, question: str, **settings) -> list[str]:
        results = await self(search, Question(question, Settings(**settings)))
        return [p.document_id for p in results.passages]


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Parts:
    embedder = EmbedderConfig()
    identity, dimension = embedder_identity(embedder)
    config = CorpusConfig(embedder=identity, dimension=dimension, shards=2)
    return Parts(Profile(create_corpus(tmp_path_factory.mktemp("corpora") / "two", config)), writable=True)


@pytest.fixture
async def corpus(parts) -> AsyncIterator[Corpus]:
    session = Session()
    corpus = Corpus(parts, session)
    try:
        await corpus(ingest, DOCUMENTS)
        yield corpus
    finally:
        await session.aclose()


async def test_documents_and_chunks_are_listed_page_by_page(corpus):
    whole = await corpus(care.documents, Listing())
    assert {d.id for d in whole.documents} == {d.id for d in DOCUMENTS}
    assert whole.total == 3
    pages = [(await corpus(care.documents, Listing(offset=n, limit=1))) for n in range(4)]
    assert [[d.id for d in p.documents] for p in pages] == [*([d.id] for d in whole.documents), []]
    assert {p.total for p in pages} == {3}
    chunks = (await corpus(care.chunks, Listing(scope_prefix="kelp"))).chunks
    assert [c.chunk_id for c in chunks] == ["kelp#0", "kelp/prices#0"]
    assert all(DOCUMENTS[n].text[c.start : c.end] == c.text for n, c in enumerate(chunks, 1))
    assert all(c.tokens > 5 for c in chunks)


async def test_metadata_changes_are_seen_by_filters_at_once(corpus):
    assert await corpus(care.change_metadata, "mill", {"town": "Ulm"}, False)
    assert not await corpus(care.change_metadata, "mile", {"town": "Ulm"}, False)
    assert await corpus.found("water", filters={"town": "Ulm", "year": {"$lt": 1900}}) == ["mill"]
    assert await corpus(care.change_metadata, "mill", {"year": 1890}, True)
    assert await corpus.found("water", filters={"town": "Ulm"}) == []


async def test_collections_scope_and_filters_restrict_a_search(corpus):
    assert await corpus(care.change_collections, ["mill", "nobody"], ["land"], []) == ["nobody"]
    assert await corpus.found("water", filters={"collection_id": "land"}) == ["mill"]
    assert await corpus.found("water", filters={"collection_ids": {"$overlap": ["sea", "air"]}}) == ["kelp"]
    assert sorted(await corpus.found("water", scope_prefix="kelp")) == ["kelp", "kelp/prices"]
    await corpus(care.change_collections, ["mill"], [], ["land"])
    assert await corpus.found("water", filters={"collection_id": "land"}) == []


async def test_a_chunk_changes_and_its_document_can_be_brought_back(corpus):
    assert await corpus(care.change_chunk, "mill#0", "Its owner is Zacharias Quast.")
    results = await corpus(search, Question("Zacharias Quast"))
    assert (results.passages[0].document_id, results.passages[0].edited) == ("mill", True)
    (chunk,) = (await corpus(care.chunks, Listing(scope_prefix="mill"))).chunks
    (whole,) = (await corpus(care.documents, Listing(scope_prefix="mill"))).documents
    twin = Document(id="twin", title="", text="Its owner is Zacharias Quast.")
    await corpus(ingest, [twin])
    (same,) = (await corpus(care.chunks, Listing(scope_prefix="twin"))).chunks
    assert (chunk.text, chunk.tokens, whole.tokens) == (same.text, same.tokens, same.tokens)
    await corpus(care.delete, ["twin"])
    assert not await corpus(care.change_chunk, "mill#9", "x")
    for wrong, text in (("mill", "x"), ("mill#0", "  ")):
        with pytest.raises(InvalidInput):
            await corpus(care.change_chunk, wrong, text)
    assert [w.outcome for w in await corpus(ingest, DOCUMENTS[:1])] == ["replaced"]
    assert (await corpus(search, Question("Who built the wheel?"))).passages[0].text == DOCUMENTS[0].text


async def test_documents_are_deleted_by_id_by_filter_and_by_chunk(corpus):
    assert await corpus(care.delete, ["zz", "mill", "aa"]) == Deleted(1, 1, ("zz", "aa"))
    assert await corpus(care.delete_where, {"year": {"$gt": 2001}}) == Deleted(1, 1)
    assert await corpus(care.delete_chunks, ["kelp#0", "kelp#5"]) == Deleted(1, 1, ("kelp#5",))
    assert await corpus.found("kelp") == []
    assert [s.documents for s in await corpus(care.stats)] == [0, 0]
    for nothing in (care.delete, care.delete_chunks):
        with pytest.raises(InvalidInput, match="give at least one id"):
            await corpus(nothing, [])
    with pytest.raises(InvalidInput, match="does not let everything through"):
        await corpus(care.delete_where, {})


async def test_no_passage_below_the_threshold_comes_back_whichever_leg_found_it(corpus):
    question = "When is kelp cut?"
    whole = await corpus(search, Question(question))
    scores = sorted(p.semantic for p in whole.passages)
    bar = (scores[0] + scores[1]) / 2
    above = await corpus(search, Question(question, Settings(score_threshold=bar)))
    assert [p.chunk_id for p in above.passages] == [p.chunk_id for p in whole.passages if p.semantic > bar]
    assert await corpus.found("xylophone", score_threshold=0.95) == []
    assert len(await corpus.found("xylophone", score_threshold=-1.0)) == 3
    assert len(await corpus.found(question, score_threshold=bar, limit=1)) == 1


async def test_offset_and_limit_page_through_the_hits(corpus):
    whole = await corpus.found("kelp water")
    assert [await corpus.found("kelp water", limit=1, offset=n) for n in range(4)] == [*([d] for d in whole), []]


async def test_pages_far_behind_the_candidates_hold_each_hit_once(corpus):
    notes = [Document(id=f"note/{n:02}", title="", text=f"Note {n}: the {w} of the boat {'and net ' * (n % 5)}.")
             for n in range(24) for w in [("mast", "keel", "rudder")[n % 3]]]  # fmt: skip
    await corpus(ingest, notes)
    asked = {"scope_prefix": "note/", "candidates": 5}
    pages = [await corpus.found("the keel of a boat", limit=5, offset=n, **asked) for n in range(0, 30, 5)]
    assert [len(page) for page in pages] == [5, 5, 5, 5, 4, 0]
    assert {id for page in pages for id in page} == {note.id for note in notes}
    await corpus(care.delete, [note.id for note in notes])


async def test_lists_end_where_numbers_do(corpus):
    for listing in (Listing(offset=1, limit=MAX_LISTED), Listing(offset=MAX_LISTED)):
        page = await corpus(care.documents, listing)
        assert (len(page.documents), page.total) == (max(0, 3 - listing.offset), 3)


@pytest.mark.parametrize(
    "wrong", [{"limit": -1}, {"offset": -1}, {"limit": 10**20}, {"limit": True}, {"scope_prefix": "\ud800"}], ids=str
)
def test_a_listing_that_asks_for_what_there_is_not_is_refused(wrong: dict):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Listing(**wrong)


async def test_what_cannot_be_stored_is_refused_before_it_reaches_a_shard(corpus):
    for metadata in ({"hash": 2**70}, {"share": float("nan")}, {1: 2}):
        with pytest.raises(InvalidInput, match="document 'odd': metadata must be JSON values"):
            await corpus(ingest, [Document(id="odd", title="", text="x", metadata=metadata)])
        with pytest.raises(InvalidInput, match="document 'mill': metadata must be JSON values"):
            await corpus(care.change_metadata, "mill", metadata, False)


@pytest.mark.parametrize("measure", ["l2", "ip", "l1", "hamming", "jaccard"])
async def test_any_measure_can_be_asked_for(corpus, measure: str):
    found = await corpus(search, Question("When is kelp cut?", Settings(measure=measure, legs={"dense": 1.0})))
    assert found.passages[0].document_id == "kelp"
    scores = [p.semantic for p in found.passages]
    assert scores == sorted(scores, reverse=True)


async def test_who_asks_sees_their_own_and_their_groups_documents_only(corpus):
    for identity, seen in (
        (Identity("otto"), {"kelp/prices"}),
        (Identity("nora", ("sea",)), {"kelp"}),
        (Identity("eve"), set()),
    ):
        results = await corpus(search, Question("kelp water"), identity=identity)
        assert {p.document_id for p in results.passages} == seen
        assert {d.id for d in (await corpus(care.documents, Listing(), identity=identity)).documents} == seen
    mine = await corpus(
        care.chunks,
        Listing(filters=parse_filter({"$or": [{"owner": "otto"}, {"year": 1890}]})),
        identity=Identity("eve"),
    )
    assert mine.total == 0


async def test_a_change_that_one_shard_refuses_is_made_by_none(corpus):
    ann = Identity("ann", ("team",))
    names = [f"ann/{n}" for n in range(6)]
    hers = [Document(id=name, title="", text=f"Ann's note {name}.", owner="ann") for name in names]
    theirs = Document(id="bob/shared", title="", text="Bob's note.", owner="bob", collections=("team",))
    await corpus(ingest, [*hers, theirs])
    before = (await corpus(care.documents, Listing(), identity=ann)).documents
    for change in (
        (care.delete, [*names, "bob/shared"]),
        (care.delete_chunks, [f"{name}#0" for name in (*names, "bob/shared")]),
        (care.change_collections, [*names, "bob/shared"], ["team"], []),
    ):
        with pytest.raises(AccessDenied, match="'bob/shared' belongs to someone else"):
            await corpus(*change, identity=ann)
        assert (await corpus(care.documents, Listing(), identity=ann)).documents == before
    assert (await corpus(care.delete, [*names, "no such"], identity=ann)).missing == ("no such",)
    await corpus(care.delete, ["bob/shared"])


async def test_writers_of_two_sessions_do_not_meet(corpus, parts):
    with pytest.raises(InvalidInput, match="is being written by process"):
        await Session().start(ingest(Parts(parts.profile, writable=True)))
