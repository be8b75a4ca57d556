"""The job behind `headrace stats`: what a corpus holds, in one object."""

from __future__ import annotations

import msgspec

from engine.run import EngineName, start
from graphs.parts import Parts
from graphs.stats import stats
from operators.corpus.manifest import CorpusConfig
from operators.corpus.shard import ShardStatistics


class CorpusStatistics(msgspec.Struct, frozen=True):
    """What a corpus holds, summed over its shards, and how it was made."""

    directory: str
    documents: int
    chunks: int
    size_bytes: int
    config: CorpusConfig
    shards: tuple[ShardStatistics, ...]


async def corpus_statistics(parts: Parts, engine: EngineName) -> CorpusStatistics:
    """Ask every shard."""
    async with start(stats(parts), engine) as running:
        shards = await running()
    corpus = parts.profile.corpus
    return CorpusStatistics(
        directory=str(corpus.directory),
        documents=sum(s.documents for s in shards),
        chunks=sum(s.chunks for s in shards),
        size_bytes=sum(sum(s.size_bytes.values()) for s in shards),
        config=corpus.config,
        shards=tuple(shards),
    )
