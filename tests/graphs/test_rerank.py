from __future__ import annotations

from engine.run import start
from engine.scope import Scope
from engine.trace import Trace
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.messages import Question, Settings
from operators.models.cross_encoder import CrossEncoderConfig
from tests.cross_encoders import build_cross_encoder


async def test_a_profile_with_a_cross_encoder_orders_by_it_and_explain_shows_it(corpus, tmp_path):
    config = CrossEncoderConfig(model=str(build_cross_encoder(tmp_path / "cross-encoder")))
    graph = search(Parts(Profile(corpus, reranker=config)))
    text = graph.explain()
    assert "[on reranker, may be run twice]" in text
    assert "no rerank step" not in text
    async with start(graph) as ask, start(search(corpus)) as plain:
        trace = Trace()
        question = Question("Who built the mill?", Settings(limit=2, rerank_candidates=4))
        found = await ask.within(Scope(trace=trace))(question)
        fused = await plain(Question("Who built the mill?", Settings(limit=4)))
    assert len(found.passages) == 2  # cut after sorting, not before
    assert {p.chunk_id for p in found.passages} <= {p.chunk_id for p in fused.passages}
    scores = [p.score for p in found.passages]
    assert scores == sorted(scores, reverse=True)
    assert "rerank" in {s.step for s in trace.spans}
