"""Statistics: what the shards of a corpus hold."""

from __future__ import annotations

from engine.graph import Graph, graph
from graphs.parts import Parts
from operators.corpus.shard import Shard, ShardStatistics


def stats(parts: Parts) -> Graph[[], list[ShardStatistics]]:
    """The statistics graph: one entry a shard, in shard order."""
    each = parts.shards.gather(Shard.each_statistics, lambda shards: [s for shard in shards for s in shard])

    @graph
    def stats() -> list[ShardStatistics]:
        """Asks every shard what it holds."""
        return each()

    return stats
