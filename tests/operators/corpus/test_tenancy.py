"""Attempts to see what is someone else's, through a shard and through the ready-made graphs; see tests/tenants.py."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from engine.errors import AccessDenied, InvalidInput
from engine.run import Session
from engine.scope import Identity, Scope
from graphs.ingest import ingest
from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.content import chunk_hash
from operators.corpus.keys import chunk_key
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from operators.filter_parse import parse_filter
from operators.messages import Document, Listing, Question, Ranking, Settings
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity
from tests.tenants import ANN, BOB, EVE, EVERY, OPERATOR, VISIBLE, asking, every_document, legs, owned, seen

PEOPLE = pytest.mark.parametrize("person", [ANN, BOB, EVE], ids=lambda p: p.user)


@pytest.fixture
async def full(shard: Shard, make) -> Shard:
    """A shard with every document, to be changed."""
    await shard.write(list(every_document(make).values()), "")
    return shard


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory, make) -> Iterator[Shard]:
    """The same, to be read only: one for all tests, since opening one takes longer than asking it."""
    directory = str(tmp_path_factory.mktemp("tenancy") / "corpus")
    create_corpus(directory, CorpusConfig(embedder="test", dimension=16))
    shard = Shard.open(directory, 0, writable=True)
    asyncio.run(shard.write(list(every_document(make).values()), ""))
    yield shard
    asyncio.run(shard.aclose())


# Reading


@PEOPLE
async def test_a_person_sees_their_own_and_their_groups_documents_and_no_others(still, plan, vector, person) -> None:
    with asking(person):
        assert await seen(still, plan, vector) == [VISIBLE[person.user]] * 4


async def test_whoever_runs_the_corpus_sees_everything(still, plan, vector) -> None:
    assert await seen(still, plan, vector) == [set(EVERY)] * 4


FILTERS = [
    {"owner": "bob"},
    {"owner_id": {"$ne": "ann"}},
    {"owner": {"$in": ["ann", "bob", ""]}},
    {"owner": {"$nin": ["eve"]}},
    {"owner": {"$like": "%"}},
    {"collections": {"$overlap": ["board", "team"]}},
    {"collection_id": "board"},
    {"collection_ids": {"$ne": "nowhere"}},
    {"collections": {"$length": 0}},
    {"$or": [{"owner": "bob"}, {"owner": "ann"}, {"owner": ""}]},
    {"$or": [{}, {"owner": "bob"}]},
    {"$or": [{"$and": []}]},
    {"$not": {"owner": "nobody"}},
    {"$not": {"$not": {}}},
    {"$not": {"$or": []}},
    {"id": {"$in": list(EVERY)}},
    {"id": {"$like": "%diary"}},
    {"id": "bob/diary"},
    {"chunk_id": {"$in": [f"{id}#0" for id in EVERY]}},
    {"text": {"$ilike": "%FOX%"}},
    {"n": {"$gte": 0}},
    {"kind": {"$exists": True}},
    {"nothing": None},
]


@pytest.mark.parametrize("raw", FILTERS, ids=str)
async def test_no_filter_widens_what_a_person_sees(still, plan, vector, raw) -> None:
    filters = parse_filter(raw)
    everybody = await seen(still, plan, vector, filters=filters)
    for person in (ANN, BOB, EVE):
        with asking(person):
            mine = await seen(still, plan, vector, filters=filters)
        assert mine == [there & VISIBLE[person.user] for there in everybody]


@pytest.mark.parametrize("prefix", ["b", "bob/", "bob/diary", "", "%", "_", "bob/%", "*", "B", "ann/../bob"])
async def test_no_prefix_widens_what_a_person_sees(still, plan, vector, prefix: str) -> None:
    with asking(ANN):
        mine = {id for id in VISIBLE["ann"] if id.startswith(prefix)}
        assert await seen(still, plan, vector, scope_prefix=prefix) == [mine] * 4


async def test_a_filter_that_others_used_is_not_answered_from_what_they_saw(still, plan, vector) -> None:
    filters = parse_filter({"n": {"$gte": 0}})
    for person in (OPERATOR, BOB, ANN, EVE, Identity("ann"), Identity("bob", ("board",)), ANN, BOB, OPERATOR):
        with asking(person):
            found = await seen(still, plan, vector, filters=filters)
        expected = {
            id
            for id, (owner, collections, _) in EVERY.items()
            if person is None or owner == person.user or set(collections) & set(person.groups)
        }
        assert found == [expected] * 4


@PEOPLE
async def test_keys_from_elsewhere_fetch_nothing_that_is_hidden(still, plan, vector, person) -> None:
    """Keys are hashes of ids: they can be guessed, or come out of the ranking of someone who may see more."""
    rankings = await legs(still, plan, "fox", vector)
    guessed = np.array([chunk_key(id, 0) for id in EVERY], np.int64)
    count = len(guessed)
    rankings.append(Ranking("guessed", guessed, np.ones(count, np.float32), np.zeros(count, np.int32)))
    with asking(person):
        for ranking in rankings:
            passages = await still.fetch(plan("fox"), vector("fox"), ranking)
            assert {p.document_id for p in passages} == VISIBLE[person.user]
            vectors = await still.vectors(plan("fox"), ranking)
            mine = {vector(EVERY[id][2]).tobytes() for id in VISIBLE[person.user]}
            assert len(vectors) == len(mine)


async def test_vectors_that_are_handed_out_are_those_of_visible_chunks(still, plan, vector) -> None:
    (ranking, _) = await legs(still, plan, "fox", vector)
    everything = await still.vectors(plan("fox"), ranking)
    passages = await still.fetch(plan("fox"), vector("fox"), ranking)
    visible = [row for row, p in zip(everything, passages, strict=True) if p.document_id in VISIBLE["ann"]]
    with asking(ANN):
        assert np.array_equal(await still.vectors(plan("fox"), ranking), visible)


@PEOPLE
async def test_a_word_that_only_hidden_documents_have_is_not_found(still, plan, vector, person) -> None:
    with asking(person):
        for id, (_, _, text) in EVERY.items():
            lexical = (await legs(still, plan, text.split()[1], vector))[1]
            assert len(lexical.keys) == (id in VISIBLE[person.user])


async def test_a_limit_is_filled_from_what_is_visible_and_does_not_count_what_is_not(full, make, plan, vector) -> None:
    await full.write([owned(make(f"bob/{n}", f"fox {n}"), "bob") for n in range(40)], "")
    with asking(ANN):
        for ranking in (
            await full.dense(plan("fox", limit=4), vector("fox 1")),
            await full.lexical(plan("fox", limit=4), None),
        ):
            assert len(ranking.keys) == 4


async def test_pages_of_a_listing_are_pages_of_what_is_visible(still) -> None:
    with asking(ANN):
        pages = [await still.documents(Listing(offset=n, limit=1)) for n in range(5)]
        assert [p.total for p in pages] == [4] * 5
        assert {d.id for p in pages for d in p.documents} == VISIBLE["ann"]
        assert pages[4].documents == []


async def test_statistics_are_for_whoever_runs_the_corpus(still) -> None:
    for person in (ANN, BOB, EVE):
        with asking(person):
            for ask in (still.statistics, still.each_statistics):
                with pytest.raises(AccessDenied):
                    await ask()


async def test_whether_content_is_known_is_told_of_visible_documents_only(still, make) -> None:
    documents = every_document(make)
    hashes = {id: chunk_hash(d.document, d.chunks[0]) for id, d in documents.items()}
    for person in (ANN, BOB, EVE):
        with asking(person):
            unchanged = await still.unchanged([d.document for d in documents.values()], "")
            assert {id for id, same in unchanged.items() if same} == VISIBLE[person.user]
            known = await still.known_vectors(list(hashes.values()))
            assert set(known.hashes) == {hashes[id] for id in VISIBLE[person.user]}
            assert len(known.vectors) == len(known.hashes)


async def test_the_same_content_in_a_hidden_and_a_visible_document_is_known(full, make) -> None:
    text = EVERY["bob/diary"][2]
    await full.write([owned(make("ann/copy", text), "ann")], "")
    document = make("x", text)
    digest = chunk_hash(document.document, document.chunks[0])
    for person, known in ((ANN, 1), (BOB, 1), (EVE, 0)):
        with asking(person):
            assert len((await full.known_vectors([digest])).hashes) == known


STRANGE = [
    Identity(""),
    Identity("", ("",)),
    Identity("ANN"),
    Identity("ann "),
    Identity("ann\0"),
    Identity("an"),
    Identity("ann' OR '1'='1"),
    Identity("%", ("%", "*", "te__")),
    Identity("x", ("TEAM", "tea", "team ", "team,board", '["team"]', "team' OR ''='", "team\0")),
    Identity("team", ("ann", "bob")),
]


@pytest.mark.parametrize("person", STRANGE, ids=repr)
async def test_a_strange_name_opens_nothing(still, plan, vector, person) -> None:
    """Neither does the empty one: a document without an owner is nobody's, not that of a person without a name."""
    with asking(person):
        try:
            assert await seen(still, plan, vector) == [set()] * 4
        except InvalidInput:  # refusing such a name is as good
            return


# Through graphs

FACTS = [
    Document(id="ann/mill", title="Mill", text="The wheel of the mill was built by Ida Brandt in 1890.", owner="ann"),
    Document(id="bob/mill", title="Mill", text="The wheel of the mill was built by Otto Kern in 1754.", owner="bob"),
    Document(id="team/dam", title="Dam", text="The dam was built by Rosa Lind in 1911.", collections=("team",)),
]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    identity, dimension = embedder_identity(EmbedderConfig())
    config = CorpusConfig(embedder=identity, dimension=dimension, shards=2)
    return Parts(Profile(create_corpus(tmp_path_factory.mktemp("tenancy") / "two", config)), writable=True)


async def test_the_ready_made_graphs_find_and_cite_only_what_whoever_asks_may_see(parts) -> None:
    session = Session()
    try:
        await (await session.start(ingest(parts)))(FACTS)
        searching, answering = await session.start(search(parts)), await session.start(rag(parts))
        everything = {"$or": [{"owner": "bob"}, {"id": {"$ne": "x"}}]}
        for person, mine in ((ANN, {"ann/mill", "team/dam"}), (BOB, {"bob/mill", "team/dam"}), (EVE, set())):
            for legs in ({"dense": 1.0}, {"lexical": 1.0}, {"dense": 1.0, "lexical": 1.0}):
                question = Question("Who built the wheel of the mill?", Settings(legs=legs, filters=everything))
                results = await searching.within(Scope(identity=person))(question)
                assert {p.document_id for p in results.passages} == mine
                stream = await answering.within(Scope(identity=person))(question)
                answer = [event async for event in stream][-1]
                assert {p.document_id for p in answer.sources} <= mine
                assert ("Otto" in answer.text, "Ida" in answer.text) == (person is BOB, person is ANN)
    finally:
        await session.aclose()
