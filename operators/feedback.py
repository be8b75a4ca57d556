"""Pseudo-relevance feedback: the question's vector moves towards the passages that were found first.

Rocchio's method (1971) on dense vectors, as in Li et al., "Pseudo Relevance Feedback with Deep Language Models and
Dense Retrievers: Successes and Pitfalls" (TOIS 2023), with the difference that all legs decide what is found first.

Shape legend: N = passages fed back, D = dimension of the vectors.
"""

from __future__ import annotations

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.messages import Plan, Ranking
from operators.select import head


class FeedbackConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the question's vector moves.

    Args:
        passages: Passages that are taken to be relevant, 1 to 10; 0 leaves feedback out of the graph.
        weight: Weight of their mean vector against the question's, above 0. Passages' vectors and the question's all
            have length 1.

    Two passages at 0.8 were chosen on three collections. On the two English ones 1 or 2 passages at 0.4 to 0.8 were all
    better than none at recall@10 (docs/design.md). It helps where an answer needs a second document, and costs two more
    hops and no model call.
    """

    passages: int = 2
    weight: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.passages <= 10:
            raise InvalidInput(f"feedback.passages is {self.passages}; expected 0 (off) to 10")
        if not 0 < self.weight <= 10:
            raise InvalidInput(f"feedback.weight is {self.weight}; expected above 0, at most 10")


def seeds(plan: Plan, ranking: Ranking, *, config: FeedbackConfig) -> Ranking:
    """The hits that are taken to be relevant.

    None where whoever asks wants what is nearest to the question itself: by the dense leg alone, or by a measure that
    is exact.
    """
    return head(ranking, 0 if len(plan.legs) == 1 or plan.measure else config.passages)


def refine(vector: np.ndarray, relevant: np.ndarray, *, config: FeedbackConfig) -> np.ndarray:
    """The question's vector moved towards the mean of the relevant ones.

    Args:
        vector: The question's, float32[D].
        relevant: Vectors of the passages fed back, float32[N, D]; none leave the question's as it is.
        config: How far it moves.

    Returns:
        float32[D], of length 1 if it moved.
    """
    if not len(relevant):
        return vector
    mean = relevant.mean(axis=0)
    moved = vector + config.weight * mean / max(float(np.linalg.norm(mean)), 1e-12)
    refined: np.ndarray = (moved / max(float(np.linalg.norm(moved)), 1e-12)).astype(np.float32)
    return refined
