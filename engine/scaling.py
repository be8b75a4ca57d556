"""How many replicas a stage should have: as many as keep the seconds of queued work below what it allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def replicas_for(queued: Mapping[Any, float], busy: Mapping[Any, float], *, queued_s: float) -> int:
    """The number of replicas wanted.

    Args:
        queued: By replica, the seconds of work that wait there.
        busy: By replica, the share of its slots that are at work, 0 to 1.
        queued_s: Seconds that may wait at each.

    >>> replicas_for({"a": 7.0, "b": 2.0}, {"a": 1.0, "b": 1.0}, queued_s=2.0)  # 9 s of work, 2 s for each
    5
    >>> replicas_for({"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 0.5, "b": 0.4, "c": 0.0}, queued_s=2.0)  # one would do
    1
    """
    return max(math.ceil(sum(queued.values()) / queued_s), math.ceil(round(sum(busy.values()), 3)))


class ByQueuedSeconds:
    """A policy for Ray Serve's autoscaler, which bounds what it says and waits before it follows.

    Args:
        queued_s: See `replicas_for`.
    """

    def __init__(self, queued_s: float) -> None:
        self._queued_s = queued_s

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted, and no state to be kept."""
        metrics = context.aggregated_metrics or {}
        queued, busy = metrics.get("queued_seconds"), metrics.get("busy")
        if not queued:
            return context.target_num_replicas, {}  # nobody has told yet
        return replicas_for(queued, busy or {}, queued_s=self._queued_s), {}
