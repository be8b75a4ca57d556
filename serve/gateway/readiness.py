"""Whether a gateway can answer: its graphs have started, and each of their stages has somebody who answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from engine.pool import Pool


def readiness(served: Collection[str], started: Collection[str], pools: Iterable[Pool]) -> tuple[bool, dict[str, Any]]:
    """Whether it is ready, and what is told.

    With some of its shards a stage still gives partial answers, and says so in each, so it is ready.

    Args:
        served: Names of the graphs.
        started: Of those, the ones whose stages have been started.
        pools: The stages.
    """
    starting = sorted({*served} - {*started})
    missing: dict[str, list[int]] = {}
    nobody = False
    for pool in pools:
        without = [number for number, shard in enumerate(pool.shards) if not shard.transports]
        nobody = nobody or len(without) == len(pool.shards)
        if without:
            missing[pool.stage.name] = without
    ready = not (starting or nobody)
    return ready, {"status": "ready" if ready else "starting", "starting": starting, "missing": missing}
