from __future__ import annotations

import pytest

from engine.run import start
from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import open_corpus
from operators.messages import Answer, Question, Settings, Text
from operators.models.llamacpp import LlamaCppConfig
from tests.corpora import ingested

QUESTIONS = ("Who built the Alder Mill?", "How many days of holiday do members have?", "水库由谁管理？")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray") / "corpus"
    ingested(folder, shards=2)
    return open_corpus(folder)


async def test_search_on_ray_finds_what_it_finds_locally(corpus):
    found = {}
    for engine in ("local", "ray"):
        async with start(search(corpus), engine) as ask:
            found[engine] = [
                [(p.chunk_id, round(p.score, 6)) for p in (await ask(Question(q))).passages] for q in QUESTIONS
            ]
    assert found["local"] == found["ray"]


async def test_an_answer_streams_from_actors_and_a_cancel_leaves_nothing_behind(corpus):
    parts = Parts(Profile(corpus, generator=LlamaCppConfig()))
    async with start(rag(parts), "ray") as ask:
        settings = Settings(limit=1, max_answer_tokens=6)
        events = [e async for e in await ask(Question(QUESTIONS[0], settings))]
        answer = events[-1]
        assert isinstance(answer, Answer)
        assert "".join(e.text for e in events if isinstance(e, Text)) == answer.text
        assert 0 < answer.usage.completion_tokens <= 6

        stream = await ask(Question(QUESTIONS[0], Settings(limit=1, max_answer_tokens=400)))
        await anext(stream)
        await stream.aclose()
        assert (ask.active, ask.outstanding) == (0, 0)
        generator = (await ask.statistics())["generator"][0]
        assert generator.streams.open == 0
