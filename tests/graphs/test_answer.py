from __future__ import annotations

import pytest

from engine.errors import InvalidInput
from engine.run import Session
from graphs.answer import answer
from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from graphs.variants import variants
from operators.messages import Question, Settings
from operators.models.llamacpp import LlamaCppConfig


async def test_an_answer_from_given_passages_is_that_of_rag(corpus):
    parts = Parts(Profile(corpus))
    session = Session()
    try:
        question = Question("Who built the Alder Mill?", Settings(limit=3))
        found = await (await session.start(search(parts)))(question)
        events = [e async for e in await (await session.start(answer(parts)))(found.plan, found)]
        whole = [e async for e in await (await session.start(rag(parts)))(question)]
    finally:
        await session.aclose()
    assert events == whole
    assert "Ida Brandt" in events[-1].text


def test_rewording_needs_a_language_model_and_only_its_stage(corpus):
    with pytest.raises(InvalidInput, match="needs a language model"):
        variants(Parts(Profile(corpus)))
    graph = variants(Parts(Profile(corpus, generator=LlamaCppConfig())))
    assert [stage.name for stage in graph.stages] == ["generator"]
    assert [node.name for node in graph.nodes] == ["ask", "generate", "read"]
