from __future__ import annotations

import asyncio
import random

from engine.run import Session, run, start
from engine.scope import Scope
from engine.trace import Trace
from graphs.parts import Parts, Profile
from graphs.rag import rag
from operators.cite import NO_ANSWER
from operators.messages import Answer, Citation, Question, Settings, Text
from operators.models.llamacpp import LlamaCppConfig
from tests.until import until


async def events_of(running, question, settings=None):
    return [e async for e in await running(Question(question, settings or Settings()))]


async def test_an_answer_streams_its_text_then_ends_with_the_whole_and_its_citations(corpus):
    async with start(rag(corpus)) as ask:
        events = await events_of(ask, "Who built the Alder Mill?")
    answer = events[-1]
    assert isinstance(answer, Answer)
    assert sum(isinstance(e, Answer) for e in events) == 1
    assert "".join(e.text for e in events if isinstance(e, Text)) == answer.text
    assert "Ida Brandt" in answer.text
    assert [e for e in events if isinstance(e, Citation)] == list(answer.citations)
    cited = answer.citations[0]
    assert cited.document_id == "documents/mill.md"
    assert "Ida Brandt" in answer.text[cited.start : cited.end]
    assert answer.sources[cited.source - 1].chunk_id == cited.chunk_id
    assert answer.finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


async def test_without_sources_there_is_a_fixed_answer_and_no_model_call(corpus):
    parts = Parts(Profile(corpus, generator=LlamaCppConfig()))
    async with start(rag(parts)) as ask:
        answer = (await events_of(ask, "Who built it?", Settings(scope_prefix="nowhere/")))[-1]
        assert (answer.text, answer.finish_reason) == (NO_ANSWER["en"], "no_sources")
        streams = (await ask.statistics())["generator"][0].streams
        assert streams.opened == 0


async def test_a_language_model_streams_through_the_same_graph(corpus):
    async with start(rag(Parts(Profile(corpus, generator=LlamaCppConfig())))) as ask:
        trace = Trace()
        settings = Settings(limit=1, max_answer_tokens=12)
        stream = await ask.within(Scope(trace=trace))(Question("Who built the Alder Mill?", settings))
        events = [e async for e in stream]
        answer = events[-1]
        assert "".join(e.text for e in events if isinstance(e, Text)) == answer.text
        assert answer.finish_reason in ("stop", "length")
        assert 0 < answer.usage.completion_tokens <= 12
        assert answer.usage.prompt_tokens > 50
        assert {"generate", "cite", "count", "prompt"} <= {s.step for s in trace.spans}


async def test_two_hundred_answers_cancelled_at_random_moments_leave_nothing_behind(corpus):
    rng = random.Random(11)
    async with start(rag(Parts(Profile(corpus, generator=LlamaCppConfig(context_tokens=2048, slots=4))))) as ask:
        settings = Settings(limit=1, max_answer_tokens=400, legs={"lexical": 1.0})

        async def one() -> None:
            task = asyncio.create_task(events_of(ask, "Who built the Alder Mill?", settings))
            await asyncio.wait([task], timeout=rng.uniform(0, 0.4))
            task.cancel()
            await asyncio.wait([task])

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(20)))
        assert (ask.active, ask.outstanding) == (0, 0)

        async def nothing_left() -> bool:
            hosts = [h for hosts in (await ask.statistics()).values() for h in hosts]
            return all(h.running <= 1 and h.streams.open == 0 for h in hosts)  # 1: this very call, on a remote host

        await until(nothing_left, within_s=30)
        state = (
            ask._pools[next(s for s in ask.graph.stages if s.name == "generator")].shards[0].transports[0].host.state
        )

        async def idle() -> bool:
            return state.statistics().open_requests == 0

        await until(idle, within_s=30)
        answer = (await events_of(ask, "Who built the Alder Mill?", Settings(limit=1, max_answer_tokens=3)))[-1]
        assert answer.usage.completion_tokens > 0


async def test_two_generators_share_the_stages_of_retrieval(corpus):
    parts = Parts(Profile(corpus))
    toy = parts.answering_with(LlamaCppConfig())
    session = Session()
    try:
        plain, model = await session.start(rag(parts)), await session.start(rag(toy))
        assert {s.name for s in plain.graph.stages} == {"embedder", "shard"}
        assert [s.name for s in model.graph.stages if s not in plain.graph.stages] == ["generator"]
    finally:
        await session.aclose()


def test_the_blocking_face_of_the_readme(corpus):
    with run(rag(corpus.directory), engine="local") as ask:
        text = "".join(e.text for e in ask(Question("When was the generator replaced?")) if isinstance(e, Text))
    assert "2011" in text
