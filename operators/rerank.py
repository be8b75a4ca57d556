"""Reranking: a cross-encoder reads the best passages again, together with the question."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from engine.errors import HeadraceError
from engine.scope import current_scope
from operators.messages import Passage, Plan, Results
from operators.models.cross_encoder import CrossEncoder, CrossEncoderConfig

# What torch and tokenizers raise, a GPU that is out of memory included.
_MODEL_ERRORS: Final = (RuntimeError, ValueError, TypeError, LookupError, OSError, MemoryError)
_log = logging.getLogger(__name__)


class Scorer(Protocol):
    """Whatever says how well passages fit a question."""

    async def score(self, question: str, passages: Sequence[str]) -> np.ndarray:
        """float[N] in [0, 1], higher fits better."""
        ...

    def queued_seconds(self) -> float:
        """Seconds of work that waits."""
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...


class Reranker:
    """The state of the reranking stage.

    Args:
        scorer: Scores passages; it is closed with the reranker.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    @classmethod
    def open(cls, config: CrossEncoderConfig) -> Reranker:
        """Load the cross-encoder; takes seconds.

        Raises:
            InvalidInput: As `CrossEncoder.open` says.
        """
        return cls(CrossEncoder.open(config))

    def queued_seconds(self) -> float:
        """Seconds of work that waits."""
        return self._scorer.queued_seconds()

    async def rerank(self, plan: Plan, results: Results) -> Results:
        """The plan's best passages, ordered by the cross-encoder.

        At most `plan.rerank_candidates` passages are read, the first ones; they are sorted by their new score, equal
        ones in the order in which they came. Passages behind them follow in their order, each with its old score times
        the lowest new one, so that scores fall through the whole list. Only then the list is cut to the plan's page.

        If the model fails, the passages keep their order and scores, and the trace says why: an answer from the fused
        order is better than none. A cancelled or late request is no failure and raises.

        Args:
            plan: Says how many to read and to return.
            results: Passages, best first, scores in [0, 1].

        Returns:
            Passages up to the end of the plan's page, scores in [0, 1], highest first.

        Raises:
            Cancelled, DeadlineExceeded, QueueFull: As the batcher says.
        """
        head, tail = results.passages[: plan.rerank_candidates], results.passages[plan.rerank_candidates :]
        try:
            scores = await self._scorer.score(plan.question, [readable(passage) for passage in head])
        except HeadraceError:  # the request ended or the queue is full; InvalidInput is a ValueError too
            raise
        except _MODEL_ERRORS as error:
            _report(error)
            return Results(plan, results.passages[: plan.offset + plan.limit])
        passages = [*_rescored(head, scores), *_scaled(tail, float(scores.min()) if len(head) else 1.0)]
        return Results(plan, tuple(passages[: plan.offset + plan.limit]))

    async def aclose(self) -> None:
        """Close the scorer."""
        await self._scorer.aclose()


def readable(passage: Passage) -> str:
    """What the cross-encoder reads of a passage: title, a space, text, as BEIR's rerankers do (Thakur et al., 2021)."""
    return f"{passage.title} {passage.text}" if passage.title else passage.text


def _rescored(passages: Sequence[Passage], scores: np.ndarray) -> list[Passage]:
    order = np.argsort(-scores, kind="stable")
    return [msgspec.structs.replace(passages[i], score=float(scores[i])) for i in order]


def _scaled(passages: Sequence[Passage], factor: float) -> list[Passage]:
    return [msgspec.structs.replace(passage, score=(passage.score or 0.0) * factor) for passage in passages]


def _report(error: BaseException) -> None:
    """Say in the log and in the request's trace that the fused order was kept, and why."""
    _log.warning("the reranker failed; the fused order was kept", exc_info=error)
    trace = current_scope().trace
    if trace is not None:
        trace.note(f"rerank: kept the fused order, the model failed: {type(error).__name__}: {error}")
