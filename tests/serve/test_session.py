from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from engine.errors import AccessDenied, Incomplete, InvalidInput
from engine.scope import Identity
from operators.cite import NO_ANSWER
from operators.corpus.keys import shard_of
from operators.corpus.manifest import IndexConfig
from operators.messages import Partial
from operators.models.cross_encoder import CrossEncoderConfig
from operators.models.llamacpp import LlamaCppConfig
from serve.session import (
    CompletedEvent,
    EmptyCorpus,
    ErrorEvent,
    RagConfig,
    RagDocument,
    RagRetrievalOptions,
    TokenEvent,
    headrace_open,
)
from tests.cross_encoders import build_cross_encoder

OSPREY = """# The Osprey Protocol

The Osprey Protocol moves blocks of data between lighthouse stations over slow radio links.

## Avoiding repeated transmission

Each station keeps a ledger of the digests of all blocks that it holds. Before a sender transmits a block, it offers
the digest of the block. The receiver looks the digest up in its ledger and answers "have" or "want". Only wanted
blocks are transmitted, so the same data never crosses a link twice.

## Timing

A station waits 40 seconds for an answer to an offer. After three unanswered offers it marks the link as down.
"""
KELP = """# The kelp nursery

The nursery at Kelp Bay raises young plants on ropes. Divers lower the ropes in March and lift them in October.
Each rope carries about nine hundred plants. The boat that tends them runs on batteries.
"""
QUESTION = "How does the Osprey Protocol avoid transmitting the same data twice?"
CORPUS = [
    RagDocument(OSPREY, id="osprey:doc", metadata={"year": 2031, "kind": "protocol"}, media_type="text/markdown"),
    RagDocument(KELP, id="kelp:doc", metadata={"year": 2019}, media_type="text/markdown", collections=("sea",)),
]
TEXTS = {document.id: document.text for document in CORPUS}
SMALL = {"chunk_size": 64, "chunk_overlap": 8}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a corpus of both documents, what its session said of it in the end, and that session, closed."""
    path = tmp_path_factory.mktemp("session") / "corpus"
    with headrace_open(path, RagConfig(**SMALL)) as session:
        assert session.stats().last_updated is None
        with pytest.raises(EmptyCorpus, match="ingest one first"):
            session.search(QUESTION)
        assert [w.outcome for w in session.ingest(CORPUS)] == ["added", "added"]
        return path, session.stats(), session


@pytest.fixture(scope="module")
def folder(made):
    return made[0]


@pytest.fixture(scope="module")
def session(folder):
    """Answers with sentences of the sources; a test that writes to it takes away what it put there."""
    with headrace_open(folder, RagConfig(generator="extractive", **SMALL)) as opened:
        yield opened


@pytest.fixture(scope="module")
def toy(folder):
    """Answers with SmolLM2."""
    model = LlamaCppConfig(context_tokens=1024, slots=2)
    config = RagConfig(generator=model, top_k=1, max_context_tokens=100, max_output_tokens=16, **SMALL)
    with headrace_open(folder, config, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def strict(folder, tmp_path_factory):
    """Reranks, lets few passages through, and shows the generator little."""
    reranker = CrossEncoderConfig(model=str(build_cross_encoder(tmp_path_factory.mktemp("model") / "cross-encoder")))
    config = RagConfig(
        generator="extractive",
        rerank_results=True,
        reranker=reranker,
        score_threshold=0.95,
        max_context_tokens=70,
        **SMALL,
    )
    with headrace_open(folder, config, read_only=True) as opened:
        yield opened


def embedded(session):
    """How many texts the session's embedder has embedded."""
    ingest = session._graphs.ingest
    stage = next(s for s in ingest.graph.stages if s.name == "embedder")
    return ingest._pools[stage].shards[0].transports[0].host.state.statistics().texts


def generations(session):
    """How many streams of the session's model were opened."""
    statistics = session._bridge.wait(session._graphs.answer.statistics())
    return statistics["generator"][0].streams.opened


def test_what_comes_in_is_cut_and_embedded_and_read_by_no_language_model(tmp_path):
    """SciPhi-AI/R2R#2243."""
    with headrace_open(tmp_path / "corpus", RagConfig(generator=LlamaCppConfig(context_tokens=1024))) as session:
        session.ingest([RagDocument("The gate opens at dawn. " * 60, id="gate")])
        session.change_metadata("gate", {"a": 1})
        assert session.search("gate")
        assert generations(session) == 0
        assert {stage.name for stage in session._graphs.ingest.graph.stages} == {"shard", "chunker", "embedder"}


# What is found


def test_a_passage_says_where_it_stands_and_what_it_is(session):
    found = session.search(QUESTION)
    assert 1 <= len(found) <= 5
    first = found[0]
    assert first.document_id == "osprey:doc"
    assert "digest" in first.text
    assert first.metadata == {"year": 2031, "kind": "protocol"}
    for passage in found:
        assert TEXTS[passage.document_id][passage.start_offset : passage.end_offset] == passage.text
        assert 0 < passage.score <= 1
        assert -1 <= passage.semantic_score <= 1
        assert 0 < passage.token_count <= 64
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)


def test_top_k_of_the_question_wins_over_the_sessions(session):
    assert len(session.search(QUESTION, RagRetrievalOptions(top_k=2))) == 2
    assert len(session.search(QUESTION, RagRetrievalOptions(top_k=0))) == len(session.search(QUESTION))


def test_a_scope_prefix_leaves_other_documents_out(session):
    found = session.search("Summarize the document.", RagRetrievalOptions(scope_prefix="kelp:"))
    assert any("Kelp" in passage.text for passage in found)
    assert not any("Osprey" in passage.text for passage in found)


def test_filters_look_at_metadata(session):
    found = session.search("Summarize the document.", RagRetrievalOptions(filters={"year": {"$gt": 2020}}))
    assert {passage.document_id for passage in found} == {"osprey:doc"}
    with pytest.raises(InvalidInput, match="nope"):
        session.search("Summarize", RagRetrievalOptions(filters={"year": {"$nope": 1}}))


def test_an_explicit_threshold_of_zero_overrides_the_sessions(strict):
    assert strict.search("xylophone") == []
    assert strict.search("xylophone", RagRetrievalOptions(score_threshold=0.0)) != []
    assert strict.query("xylophone").finish_reason == "no_sources"


def test_a_cross_encoder_orders_when_it_is_configured(strict, session):
    reranked = strict.search(QUESTION, RagRetrievalOptions(score_threshold=0.0))
    assert [p.score for p in reranked] == sorted((p.score for p in reranked), reverse=True)
    assert {p.chunk_id: p.score for p in reranked} != {p.chunk_id: p.score for p in session.search(QUESTION)}


# Answers


def test_an_answer_is_grounded_and_says_what_it_cost(session):
    result = session.query(QUESTION)
    assert "the same data never crosses a link twice" in result.answer
    cited = result.citations[0]
    assert result.sources[cited.source - 1].chunk_id == cited.chunk_id
    assert result.context_used == "\n\n".join(source.text for source in result.sources)
    assert result.queries == (QUESTION,)
    assert result.finish_reason == "stop"
    assert result.usage.completion_tokens > 0
    assert result.retrieval_time_ms > 0
    assert result.generation_time_ms > 0
    assert result.request_id != session.query(QUESTION).request_id


def test_a_stream_is_tokens_and_then_one_completed_event_with_their_sum(session):
    *tokens, last = session.query_stream(QUESTION)
    assert isinstance(last, CompletedEvent)
    assert all(isinstance(token, TokenEvent) for token in tokens)
    assert "".join(token.token for token in tokens) == last.result.answer == session.query(QUESTION).answer


def test_events_keep_their_form_as_json(session):
    first, *_, last = (json.loads(msgspec.json.encode(event)) for event in session.query_stream(QUESTION))
    assert first.keys() == {"type", "token", "timestamp_us"}
    assert (first["type"], last["type"]) == ("token", "completed")
    assert last.keys() == {"type", "result", "timestamp_us"}
    assert first["timestamp_us"] <= last["timestamp_us"]
    *_, late = session.query_stream(QUESTION, RagRetrievalOptions(timeout_s=1e-9))
    told = json.loads(msgspec.json.encode(late))
    assert (told["type"], told["error"].keys()) == ("error", {"kind", "message", "step", "request_id"})


def test_without_context_there_is_a_fixed_answer_without_tokens_or_model(toy):
    before = generations(toy)
    [only] = toy.query_stream(QUESTION, RagRetrievalOptions(scope_prefix="nowhere:"))
    assert isinstance(only, CompletedEvent)
    assert (only.result.answer, only.result.sources) == (NO_ANSWER["en"], ())
    assert generations(toy) == before


def test_sources_are_whole_and_within_the_context(strict):
    everything = RagRetrievalOptions(score_threshold=0.0)
    found, result = strict.search(QUESTION, everything), strict.query(QUESTION, everything)
    assert result.answer
    assert 0 < sum(source.token_count for source in result.sources) <= 70
    assert sum(passage.token_count for passage in found) > 70
    assert {source.text for source in result.sources} < {passage.text for passage in found}


def test_a_question_whose_time_is_spent_ends_in_one_error_event(session):
    *_, last = session.query_stream(QUESTION, RagRetrievalOptions(timeout_s=1e-9))
    assert isinstance(last, ErrorEvent)
    assert last.error.kind == "DeadlineExceeded"


def test_many_questions_at_once_get_their_own_answers(session):
    questions = [QUESTION, "When do divers lower the ropes?", "How long does a station wait for an answer?"] * 4
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(session.query, questions))
    assert len({answer.request_id for answer in answers}) == len(questions)
    for answer, expected in zip(answers, ["never crosses", "March", "40 seconds"] * 4, strict=True):
        assert expected in answer.answer


def test_an_empty_question_is_refused_at_once(session):
    for ask in (session.search, session.query, session.query_stream):
        with pytest.raises(InvalidInput, match="the question is empty"):
            ask(" \n")


def test_what_is_no_option_is_refused_at_once(session):
    for ask in (session.search, session.query, session.query_stream):
        with pytest.raises(InvalidInput, match="options is None; expected RagRetrievalOptions"):
            ask(QUESTION, None)


def test_without_a_shard_a_search_fails_and_an_answer_says_what_is_missing(tmp_path):
    documents = {shard_of(f"d{n}", 5): f"d{n}" for n in range(40)}  # one in each shard
    config = RagConfig(generator="extractive", index=IndexConfig(shards=5), **SMALL)
    with headrace_open(tmp_path / "corpus", config) as session:
        session.ingest([RagDocument(f"Gate {name} opens at dawn.", id=name) for name in documents.values()])
        assert len(session.search("When does the gate open?")) == 5
        assert session.query("When does the gate open?").partial is None
        search = session._graphs.search
        pool = search._pools[next(stage for stage in search.graph.stages if stage.name == "shard")]
        os.kill(pool.shards[2].transports[0].pid, signal.SIGKILL)
        with pytest.raises(Incomplete, match="shards 2 did not answer, and the others hold 80%") as told:
            session.search("When does the gate open?")
        assert told.value.shards == (2,)
        lacking = Partial((2,), pytest.approx(0.8))
        assert session.query("When does the gate open?").partial == lacking
        *_, last = session.query_stream("When does the gate open?")
        assert last.result.partial == lacking
        assert documents[2] not in {source.document_id for source in last.result.sources}


def test_a_session_without_a_language_model_only_retrieves(made, session):
    *_, retrieving = made
    for ask in (retrieving.query, retrieving.query_stream):
        with pytest.raises(InvalidInput, match="no language model"):
            ask(QUESTION)
    with pytest.raises(InvalidInput, match="enable_multi_query needs a language model"):
        session.query(QUESTION, RagRetrievalOptions(enable_multi_query=True))


# A language model


def test_several_wordings_are_searched_for_and_their_cost_is_counted(toy):
    options = RagRetrievalOptions(enable_multi_query=True, multi_query_count=1, top_k=6)
    result = toy.query(QUESTION, options)
    assert result.answer
    assert result.sources
    assert result.queries[0] == QUESTION
    assert len(result.queries) <= 2
    assert result.model.startswith("SmolLM2")
    assert result.usage.prompt_tokens > 200  # of both prompts
    assert result.retrieval_time_ms > 100  # it has waited for the other wordings


def test_leaving_a_stream_stops_the_model_and_the_next_question_works(toy):
    options = RagRetrievalOptions(max_output_tokens=400)
    toy.cancel()  # nothing is on its way: harmless
    for event in toy.query_stream(QUESTION, options):
        assert isinstance(event, TokenEvent)
        break
    assert not toy._asked
    for event in (events := toy.query_stream(QUESTION, options)):
        toy.cancel()
        last = event
    assert isinstance(last, ErrorEvent)
    assert last.error.kind == "Cancelled"
    events.close()
    assert toy.query(QUESTION, RagRetrievalOptions(max_output_tokens=2)).usage.completion_tokens == 2


# What is in the corpus


def test_a_folder_that_is_opened_again_is_as_it_was_left(made, session):
    _, left, _ = made
    assert (left.indexed_documents, left.searches, left.queries) == (2, 1, 0)
    assert left.indexed_chunks > 2
    assert 100 < left.total_tokens < 400
    assert left.size_bytes > 0
    assert [w.outcome for w in session.ingest(CORPUS)] == ["unchanged"] * 2
    again = session.stats()
    assert (again.indexed_chunks, again.total_tokens) == (left.indexed_chunks, left.total_tokens)
    assert again.last_updated == left.last_updated
    assert session.search(QUESTION)[0].document_id == "osprey:doc"


def test_the_same_content_under_another_id_is_a_second_document_without_embedding(session):
    before, chunks = embedded(session), session.stats().indexed_chunks
    again = RagDocument(OSPREY, id="osprey:again", metadata={"copy": True}, media_type="text/markdown")
    assert [w.outcome for w in session.ingest([CORPUS[0], again])] == ["unchanged", "added"]
    assert embedded(session) == before
    assert session.stats().indexed_chunks > chunks
    for document in ("osprey:doc", "osprey:again"):
        [*_, found] = session.search(QUESTION, RagRetrievalOptions(scope_prefix=document))
        assert (found.document_id, found.metadata.get("copy", False)) == (document, document == "osprey:again")
    assert session.delete("osprey:again").missing == ()
    assert session.stats().indexed_chunks == chunks
    assert session.search(QUESTION)[0].document_id == "osprey:doc"


def test_new_content_replaces_the_old(session):
    session.ingest([RagDocument("The lamp is lit by Ida.", id="lamp"), "The weir is old."])
    assert [w.outcome for w in session.ingest(RagDocument("The lamp is lit by Otto.", id="lamp"))] == ["replaced"]
    found = [passage.text for passage in session.search("Who lights the lamp?")]
    assert found[0] == "The lamp is lit by Otto."
    assert not any("Ida" in text for text in found)
    listed = session.documents()
    assert (listed.total, {d.id: d.version for d in listed.documents}["lamp"]) == (4, 2)
    assert session.documents(scope_prefix="lamp").total == 1
    session.delete(d.id for d in listed.documents if not d.id.endswith(":doc"))
    assert session.documents().total == 2


def test_texts_that_differ_in_white_space_only_are_one_document_in_one_call_and_in_two(session):
    [one] = session.ingest(["The gate  opens.", "The gate opens."])
    assert one.outcome == "added"
    assert [w.outcome for w in session.ingest("The gate opens.")] == ["unchanged"]
    [other] = session.ingest("The gate\nopens.")
    assert (other.document_id, other.outcome) == (one.document_id, "replaced")
    [found] = session.search("gate", RagRetrievalOptions(scope_prefix=one.document_id))
    assert found.text == "The gate\nopens."
    session.delete(one.document_id)


def test_a_chunk_gets_another_text_that_is_found_at_once(session):
    session.ingest(RagDocument("The gate opens at dawn.", id="gate"))
    gate = RagRetrievalOptions(scope_prefix="gate")
    [before] = session.search("gate", gate)
    assert not before.edited
    session.change_chunk("gate#0", "The sluice is shut at night, and someone keeps watch.")
    [after] = session.search("Who watches the sluice?", gate)
    assert (after.chunk_id, after.text) == ("gate#0", "The sluice is shut at night, and someone keeps watch.")
    assert after.edited
    assert (after.start_offset, after.end_offset) == (before.start_offset, before.end_offset)
    assert after.token_count > before.token_count
    for wrong in ("gate#1", "door#0", "gate"):
        with pytest.raises(InvalidInput, match=wrong):
            session.change_chunk(wrong, "Text.")
    with pytest.raises(InvalidInput, match="blank"):
        session.change_chunk("gate#0", " ")
    session.ingest(RagDocument("The gate opens at dawn.", id="gate"))  # undoes it
    [undone] = session.search("gate", gate)
    assert (undone.text, undone.edited) == ("The gate opens at dawn.", False)
    session.delete("gate")


def test_documents_are_deleted_by_a_filter(session):
    session.ingest([RagDocument(f"Gate {n}.", id=f"gate{n}", metadata={"n": n}) for n in range(3)])
    deleted = session.delete_where({"n": {"$gte": 1}})
    assert (deleted.documents, deleted.chunks, deleted.missing) == (2, 2, ())
    assert session.documents(scope_prefix="gate").total == 1
    with pytest.raises(InvalidInput, match="does not let everything through"):
        session.delete_where({})
    with pytest.raises(InvalidInput, match="there is no operator"):
        session.delete_where({"n": {"$nope": 1}})
    session.delete("gate0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.delete(None), "ids is None; expected a document's id, or several"),
        (lambda s: s.delete([5]), "an id is 5; expected a text"),
        (lambda s: s.delete("gate\udcff"), "half a character"),
        (lambda s: s.change_metadata(None, {}), "document_id is None; expected a text"),
        (lambda s: s.change_metadata("gate", None), "metadata is None; expected a mapping"),
        (lambda s: s.change_chunk(None, "Text."), "chunk_id is None; expected a text"),
        (lambda s: s.change_chunk("osprey:doc#0", None), "text is None; expected a text"),
        (lambda s: s.delete_where(None), "filters is None; expected a mapping"),
        (lambda s: s.documents(scope_prefix=None), "scope_prefix is None"),
        (lambda s: s.documents(limit="1"), "limit is '1'; expected a whole number"),
    ],
)
def test_what_is_no_id_text_or_mapping_is_refused_at_the_call(session, change, said):
    with pytest.raises(InvalidInput, match=said):
        change(session)


def test_metadata_changes_are_seen_at_once_without_embedding(session):
    session.ingest([RagDocument("The gate opens at dawn.", id="gate", metadata={"year": 1999, "kind": "note"})])
    before = embedded(session)
    session.change_metadata("gate", {"year": 2026})
    [found] = session.search("When does the gate open?", RagRetrievalOptions(filters={"year": 2026}))
    assert found.metadata == {"year": 2026, "kind": "note"}
    assert embedded(session) == before + 1  # the question
    with pytest.raises(InvalidInput, match="no document 'door'"):
        session.change_metadata("door", {})
    session.delete("gate")


def test_deleting_reports_what_is_not_there_and_refuses_nothing(session):
    session.ingest([RagDocument("The gate opens at dawn.", id="gate")])
    deleted = session.delete(["gate", "door", "gate"])
    assert (deleted.documents, deleted.missing) == (1, ("door",))
    with pytest.raises(InvalidInput):
        session.delete([])
    session.ingest([RagDocument("The gate opens at dawn.", id="gate")])
    assert session.search("gate")[0].document_id == "gate"
    session.delete("gate")


def test_a_person_sees_and_changes_only_what_is_theirs(session):
    ann, eve = session.acting_for(Identity("ann", ("sea",))), session.acting_for(Identity("eve"))
    assert {passage.document_id for passage in ann.search("protocol plants")} == {"kelp:doc"}
    assert [d.id for d in ann.documents().documents] == ["kelp:doc"]
    with pytest.raises(AccessDenied):
        ann.stats()
    with pytest.raises(EmptyCorpus):
        eve.search("protocol")
    assert eve.delete("kelp:doc").missing == ("kelp:doc",)
    assert ann.delete_where({"year": 2019}).documents == 0
    with pytest.raises(AccessDenied):
        ann.change_chunk("kelp:doc#0", "Mine.")
    assert session.documents().total == 2


# Opening and closing


def test_what_does_not_fit_the_corpus_is_refused_when_it_is_opened(folder, tmp_path):
    with pytest.raises(InvalidInput, match="embedding_dimension is 768"):
        headrace_open(tmp_path / "new", RagConfig(embedding_dimension=768))
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidInput, match="does not exist"):
        headrace_open(tmp_path / "new", RagConfig(embedding_model_id="./nowhere"))
    with pytest.raises(InvalidInput, match="not a corpus"):
        headrace_open(tmp_path / "new", read_only=True)
    with pytest.raises(InvalidInput, match="nowhere.gguf"):
        headrace_open(folder, RagConfig(llm_model_id="/nowhere.gguf"))


def test_a_session_for_reading_changes_nothing(strict):
    for change in (
        lambda: strict.ingest("More."),
        lambda: strict.delete("kelp:doc"),
        lambda: strict.delete_where({"year": 2019}),
        lambda: strict.change_chunk("kelp:doc#0", "More."),
    ):
        with pytest.raises(InvalidInput, match="for reading"):
            change()
    assert strict.documents().total == 2


def test_a_closed_session_says_so(made):
    *_, session = made
    session.close()
    for closed in (session, session.acting_for(Identity("ann"))):
        with pytest.raises(InvalidInput, match="closed"):
            closed.search(QUESTION)


def test_the_example_runs(tmp_path, capsys):
    from examples.session import main as example

    example(tmp_path / "corpus")
    printed = capsys.readouterr().out
    for said in ("mill.md: added", "The fish pass at the weir is closed", "Ida Brandt", "('notice:unknown',)"):
        assert said in printed
