"""Fusion: the rankings of several legs become one, by weighted ranks or weighted scores.

Shape legend: L = legs of the plan, U = different keys over all legs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Literal

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.messages import Leg, Plan, Ranking
from operators.select import head

FUSED = "fused"  # the leg that a fused ranking names


class FuseConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rankings are fused.

    Args:
        method: "rrf" looks at ranks only, and so needs no comparable scores; "scores" keeps how far apart hits are.
        k: How slowly RRF's reward falls with the rank, from 0; 60 is its authors' value, smaller favours first
            places: 20 was better on three collections here, most where one leg knows more than the other.

    Raises:
        InvalidInput: The method is unknown, or k is no whole number from 0.
    """

    method: Literal["rrf", "scores"] = "rrf"
    k: int = 20

    def __post_init__(self) -> None:
        if self.method not in {"rrf", "scores"}:
            raise InvalidInput(f'fuse.method is {self.method!r}; expected "rrf" or "scores"')
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 0:
            raise InvalidInput(f"fuse.k is {self.k!r}; expected a whole number from 0, such as 60")


@dataclass(frozen=True, slots=True)
class Fusion:
    """A fusing step with its configuration; call it with a plan and the rankings of its legs."""

    config: FuseConfig = field(default_factory=FuseConfig)

    def __call__(self, plan: Plan, *rankings: Ranking) -> Ranking:
        """All hits of the plan's legs in one order.

        "rrf" is reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009) with weights:
        `sum_i w_i / (k + rank_i)`, divided by `sum_i w_i / (k + 1)`. "scores" scales each leg's scores to [0, 1]
        (`(s - min) / (max - min)`; a single hit, or hits that are all equal, count 1: each is its leg's best) and takes
        their weighted mean. Either way a score is in [0, 1], 1 means first in every leg, and a leg that does not hold a
        hit, or holds none at all, adds nothing.

        Legs that fetched more than `plan.candidates` hits, for a later page, are fused to that depth first, then to
        twice that, and so on: behind what the first hits of each leg give comes what the next ones add, with no higher
        scores. Else each page would cut another order, and hits would be on two pages or on none.

        Args:
            plan: Names the legs and weights. Rankings of other legs are left out.
            rankings: One a leg, best first, in any order; a key that one repeats counts where it stands first.

        Returns:
            Ranking of leg `FUSED`, float32 scores, highest first, equal scores by ascending key unless they are of
            different depths. Its `ranks` hold one list a leg of the plan, 0 where the leg does not have the hit at
            that depth. It is not cut: whoever fetches texts cuts.

        Raises:
            InvalidInput: A leg is there twice, or, in "scores", holds a score that is not finite.
        """
        legs = [leg for leg in plan.legs if leg.weight > 0]
        pairs = _paired(legs, rankings)
        deepest = max((len(ranking.keys) for _, ranking in pairs), default=0)
        at_once = plan.candidates or deepest
        if deepest <= at_once:
            return self._fused(legs, pairs)
        depths = [at_once << doubled for doubled in range(((deepest - 1) // at_once).bit_length() + 1)]
        return reduce(
            _followed, (self._fused(legs, [(leg, head(ranking, depth)) for leg, ranking in pairs]) for depth in depths)
        )

    def _fused(self, legs: list[Leg], pairs: list[tuple[Leg, Ranking]]) -> Ranking:
        keys_U, index = np.unique(
            np.concatenate([np.empty(0, np.int64), *(ranking.keys for _, ranking in pairs)]), return_inverse=True
        )
        total_U, shards_U = np.zeros(len(keys_U)), np.zeros(len(keys_U), np.int32)
        ranks = {leg.name: np.zeros(len(keys_U), np.int64) for leg in legs}
        begin = 0
        for leg, ranking in pairs:
            index_K = index[begin : begin + len(ranking.keys)]
            begin += len(ranking.keys)
            backwards = index_K[::-1]  # of a repeated key the best place stays
            gains_U = np.zeros(len(keys_U))
            gains_U[backwards] = leg.weight * self._gains(ranking)[::-1]
            total_U += gains_U
            ranks[leg.name][backwards] = np.arange(len(index_K), 0, -1)
            shards_U[backwards] = ranking.shards[::-1]
        # Rounded before anything is ordered by it: the order must hold for the scores that are given out.
        scores_U = np.minimum(total_U / (sum([leg.weight for leg in legs]) or 1.0), 1).astype(np.float32)
        order = (-scores_U).argsort(kind="stable")  # keys_U ascends, so equal scores keep ascending keys
        ordered_ranks = {name: ranks_U[order].tolist() for name, ranks_U in ranks.items()}
        return Ranking(FUSED, keys_U[order], scores_U[order], shards_U[order], ordered_ranks)

    def _gains(self, ranking: Ranking) -> np.ndarray:
        """What each hit of a leg is worth, its best 1: float64[K]."""
        if self.config.method == "rrf":
            return _rewards(self.config.k, len(ranking.keys))
        scores_K = np.asarray(ranking.scores, np.float64)
        if not np.isfinite(scores_K).all():
            raise InvalidInput(f"leg {ranking.leg!r} gave a score that is not a finite number; fuse by ranks instead")
        if not len(scores_K) or scores_K.max() == scores_K.min():
            return np.ones(len(scores_K))
        scaled_K: np.ndarray = (scores_K - scores_K.min()) / (scores_K.max() - scores_K.min())
        return scaled_K


def _followed(first: Ranking, deeper: Ranking) -> Ranking:
    """A fused ranking, and behind it what a deeper one has more, with scores that go on falling."""
    more = np.flatnonzero(~np.isin(deeper.keys, first.keys))
    return Ranking(
        FUSED,
        np.concatenate([first.keys, deeper.keys[more]]),
        np.concatenate([first.scores, np.minimum(deeper.scores[more], first.scores[-1])]),
        np.concatenate([first.shards, deeper.shards[more]]),
        {name: [*ranks, *(deeper.ranks[name][i] for i in more)] for name, ranks in first.ranks.items()},
    )


@lru_cache(maxsize=64)
def _rewards(k: int, hits: int) -> np.ndarray:
    """Of RRF, by rank: float64[hits], not to be changed."""
    rewards: np.ndarray = (k + 1) / (k + np.arange(1, hits + 1, dtype=np.float64))
    rewards.flags.writeable = False
    return rewards


def _paired(legs: list[Leg], rankings: tuple[Ranking, ...]) -> list[tuple[Leg, Ranking]]:
    """The legs with their rankings, in the plan's order, so that sums do not depend on who answered first."""
    by_leg = {ranking.leg: ranking for ranking in rankings}
    if len(by_leg) < len(rankings):
        raise InvalidInput(f"a leg comes twice among {[r.leg for r in rankings]}; merge its shards before fusing")
    return [(leg, by_leg[leg.name]) for leg in legs if leg.name in by_leg]
