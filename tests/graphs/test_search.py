from __future__ import annotations

import os
import signal
from contextlib import aclosing

import pytest

from engine.errors import InvalidInput
from engine.policy import Policy
from engine.run import start
from engine.scope import Scope
from engine.trace import Trace
from graphs.parts import Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.keys import shard_of
from operators.corpus.manifest import open_corpus
from operators.messages import Partial, Question, Settings
from tests.corpora import DOCUMENTS, ingested

MILL, HANDBOOK, DAM = "documents/mill.md", "documents/handbook.txt", "documents/大坝.md"


async def test_each_question_finds_its_document_first(corpus):
    async with start(search(corpus)) as ask:
        for question, document in (
            ("Who built the mill?", MILL),
            ("How many days of holiday do members have?", HANDBOOK),
            ("水库由谁管理？", DAM),
        ):
            found = await ask(Question(question))
            assert found.passages[0].document_id == document
            assert all(0 <= p.score <= 1 for p in found.passages)


async def test_offsets_point_into_the_document(corpus):
    async with start(search(corpus)) as ask:
        found = await ask(Question("fish pass eel"))
    passage = found.passages[0]
    source = (DOCUMENTS / "mill.md").read_text(encoding="utf-8")
    assert source[passage.start : passage.end] == passage.text


async def test_a_leg_of_weight_zero_is_left_out_and_the_trace_says_so(corpus):
    async with start(search(corpus)) as ask:
        trace = Trace()
        legs = {"dense": 0.0, "lexical": 1.0}
        found = await ask.within(Scope(trace=trace))(Question("spillway", Settings(legs=legs)))
        assert found.plan.strategy == "lexical"
        assert set(found.passages[0].ranks) == {"lexical"}
        skipped = {s.step for s in trace.spans if "skipped" in s.note}
        assert skipped == {"embed", "dense", "vectors", "dense_2"}


async def test_limit_holds_and_a_filter_that_matches_nothing_finds_nothing(corpus):
    async with start(search(corpus)) as ask:
        assert len((await ask(Question("water", Settings(limit=1)))).passages) == 1
        assert (await ask(Question("water", Settings(scope_prefix="nowhere/")))).passages == ()
        only = await ask(Question("water", Settings(scope_prefix="documents/大")))
        assert {p.document_id for p in only.passages} == {DAM}


async def test_a_wrong_question_is_refused_and_the_graph_lives_on(corpus):
    async with start(search(corpus)) as ask:
        for question in (
            Question("  "),
            Question("x", Settings(legs={"telepathy": 1.0})),
            Question("x", Settings(limit=0)),
        ):
            with pytest.raises(InvalidInput):
                await ask(question)
        assert (await ask(Question("water"))).passages


async def test_any_number_of_shards_gives_the_same_passages_and_scores(tmp_path, corpus):
    found = {}
    questions = [Question(q) for q in ("Who built the mill?", "kelp boat wind", "水库 供水", "generator 2011")]
    for shards in (1, 2, 5):
        folder = tmp_path / str(shards)
        report = await _in_thread(folder, shards)
        assert report.added == 3
        async with start(search(open_corpus(folder))) as ask:
            found[shards] = [
                [(p.chunk_id, p.score, p.ranks) for p in (await ask(question)).passages] for question in questions
            ]
            assert (await ask(Question("mill", Settings(scope_prefix="nowhere/")))).passages == ()
    assert found[1] == found[2] == found[5]


async def _in_thread(folder, shards):
    import asyncio

    return await asyncio.to_thread(ingested, folder, shards=shards)


def test_explain_says_that_there_is_no_reranker(corpus):
    text = search(corpus).explain()
    assert "no rerank step" in text
    assert "rerank   " not in text


async def test_when_a_shards_process_dies_the_others_answer_and_say_what_is_missing(tmp_path):
    folder = tmp_path / "corpus"
    await _in_thread(folder, 5)
    question = Question("Who built the mill?")
    profile = Profile(open_corpus(folder), retrieval=Policy(coverage=0.5))
    async with start(rag(profile)) as answer:
        pool = next(p for stage, p in answer._pools.items() if stage.name == "shard")
        async with aclosing(await answer(question)) as events:
            whole = [event async for event in events][-1]
        assert whole.partial is None
        documents = [shard.weight for shard in pool.shards]
        assert sum(documents) == 3
        held = whole.sources[0].document_id
        dead = shard_of(held, 5)
        os.kill(pool.shards[dead].transports[0].pid, signal.SIGKILL)
        async with aclosing(await answer(question)) as events:
            less = [event async for event in events][-1]
        assert less.partial == Partial((dead,), pytest.approx(1 - documents[dead] / 3))
        assert held not in {passage.document_id for passage in less.sources}
    asks_for_more = search(Profile(open_corpus(folder)))
    assert "75% will do, else fail" in asks_for_more.explain()
