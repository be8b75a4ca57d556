import numpy as np
import pytest

from operators.messages import Passage, Plan, Question, Ranking, Results, Settings
from operators.plan_question import plan_question
from operators.select import cut_to_candidates, cut_to_limit, page, results


def planned(**settings: object) -> Plan:
    return plan_question(Question("mill", Settings(**settings)))  # type: ignore[arg-type]  # whatever a test says


def ranking(hits: int) -> Ranking:
    return Ranking("fused", np.arange(hits), np.ones(hits, np.float32), np.zeros(hits, np.int32), {"dense": [1] * hits})


def passages(*semantic: float | None) -> list[Passage]:
    return [
        Passage(chunk_id=f"d#{n}", document_id="d", title="", text="t", start=0, end=1, score=1.0, semantic=s,
                ranks={"dense": n + 1}, metadata={"n": n})
        for n, s in enumerate(semantic)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "limited", "reranked"),
    [
        ({}, 10, 50),
        ({"limit": 3, "offset": 4}, 7, 50),
        ({"limit": 60, "offset": 10}, 70, 70),
        ({"score_threshold": 0.1}, 100, 100),
    ],
)
def test_texts_are_fetched_up_to_the_end_of_the_page(settings, limited, reranked) -> None:
    plan = planned(**settings)
    assert len(cut_to_limit(plan, ranking(100)).keys) == limited
    assert len(cut_to_candidates(plan, ranking(100)).keys) == reranked
    assert len(cut_to_limit(plan, ranking(2)).keys) == len(cut_to_limit(plan, ranking(2)).ranks["dense"]) == 2


def test_a_threshold_holds_whichever_leg_found_a_passage() -> None:
    found = results(planned(score_threshold=0.5), passages(0.49, 0.5, None, 0.9))
    assert [p.semantic for p in found.passages] == [0.5, 0.9]
    assert len(results(planned(), passages(0.49, None)).passages) == 2


def test_pages_follow_each_other_and_end() -> None:
    every = passages(*[0.5] * 5)
    shown = [page(Results(planned(limit=2, offset=o), tuple(every))).passages for o in (0, 2, 4, 6)]
    assert [[p.chunk_id for p in each] for each in shown] == [["d#0", "d#1"], ["d#2", "d#3"], ["d#4"], []]


def test_scores_and_metadata_are_left_out_when_not_asked_for() -> None:
    bare = page(Results(planned(include_scores=False, include_metadata=False), tuple(passages(0.5)))).passages[0]
    assert (bare.score, bare.semantic, bare.ranks, bare.metadata) == (None, None, {}, {})
    whole = page(Results(planned(), tuple(passages(0.5)))).passages[0]
    assert (whole.score, whole.semantic, whole.ranks, whole.metadata) == (1.0, 0.5, {"dense": 1}, {"n": 0})
