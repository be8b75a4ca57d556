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


async def test_pages_of_what_reaches_a_threshold_are_cut_from_one_reranked_order(corpus, tmp_path):
    config = CrossEncoderConfig(model=str(build_cross_encoder(tmp_path / "cross-encoder")))
    async with start(search(Parts(Profile(corpus, reranker=config)))) as ask:

        async def found(limit: int, offset: int = 0, bar: float = -1.0) -> list[str]:
            settings = Settings(limit=limit, offset=offset, rerank_candidates=1, score_threshold=bar)
            return [p.chunk_id for p in (await ask(Question("Who built the mill?", settings))).passages]

        everything = (await ask(Question("Who built the mill?", Settings(limit=50)))).passages
        bar = sorted(p.semantic for p in everything)[len(everything) // 2]
        whole = await found(50, bar=bar)
        assert 2 <= len(whole) < len(everything)
        assert [await found(1, n, bar) for n in range(len(whole) + 1)] == [*([chunk] for chunk in whole), []]
