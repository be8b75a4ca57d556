"""The jobs behind the commands that look after a corpus."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from engine.errors import HeadraceError
from engine.run import EngineName, Running, Session, start
from graphs.corpus import stats
from graphs.parts import Parts
from graphs.verify import verified_share, verify
from operators.corpus.listing import CollectionStatistics
from operators.corpus.manifest import Corpus, CorpusConfig
from operators.corpus.reader import ShardStatistics
from operators.corpus.verify import ShardVerification, verify_file

_ASK_EVERY_S = 0.5


class CorpusStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a corpus holds, summed over its shards, and how it was made.

    Sizes are bytes: "texts" as they were read, in UTF-8; the others are files: "store" (texts, chunks, vectors and
    metadata), "dense" and "lexical" (the indexes, which can be made anew from the store).
    """

    directory: str
    documents: int
    chunks: int
    indexed_chunks: int  # those with a vector, which searches find
    tokens: int  # of the chunks, as the embedder counts them
    size_bytes: dict[str, int]
    updated: float  # seconds since 1970 of the last change; 0 for none
    collections: dict[str, CollectionStatistics]
    config: CorpusConfig
    shards: tuple[ShardStatistics, ...]


async def corpus_statistics(parts: Parts, engine: EngineName) -> CorpusStatistics:
    """What every shard says, and the sum of it."""
    async with start(stats(parts), engine) as running:
        shards = await running()
    size_bytes = Counter({"texts": sum(s.text_bytes for s in shards)})
    for shard in shards:
        size_bytes.update(shard.size_bytes)
    return CorpusStatistics(
        directory=str(parts.profile.corpus.directory),
        documents=sum(s.documents for s in shards),
        chunks=sum(s.chunks for s in shards),
        indexed_chunks=sum(s.indexed_chunks for s in shards),
        tokens=sum(s.tokens for s in shards),
        size_bytes=dict(size_bytes),
        updated=max(s.updated for s in shards),
        collections=_collections(shards),
        config=parts.profile.corpus.config,
        shards=tuple(shards),
    )


def _collections(shards: list[ShardStatistics]) -> dict[str, CollectionStatistics]:
    names = sorted({name for shard in shards for name in shard.collections})
    held = {name: [s.collections[name] for s in shards if name in s.collections] for name in names}
    return {
        name: CollectionStatistics(
            sum(h.documents for h in parts), sum(h.chunks for h in parts), sum(h.tokens for h in parts)
        )
        for name, parts in held.items()
    }


class CorpusVerification(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found. A corpus is clean when nothing is left that is wrong."""

    directory: str
    clean: bool
    shards: tuple[ShardVerification, ...]


async def verify_corpus(
    parts: Parts, engine: EngineName, *, repair: bool = False, tell: Callable[[float], None] = lambda _: None
) -> CorpusVerification:
    """Checks every shard; a shard whose database is so damaged that it cannot be opened is a finding, too.

    Args:
        parts: Writable ones for a repair.
        engine: Where the shards run.
        repair: Repair what can be repaired without anything from outside.
        tell: Called now and then with the share that is done, 0 to 1.

    Raises:
        InvalidInput: `repair`, and another process writes to the corpus.
    """
    session = Session(engine)
    try:
        found = await _verified(await session.start(verify(parts)), session, parts, repair=repair, tell=tell)
    except HeadraceError:
        found = await asyncio.to_thread(_damaged, parts.profile.corpus)
        if not any(shard.findings for shard in found):
            raise
    finally:
        await session.aclose()
    clean = not any(shard.findings for shard in found)
    return CorpusVerification(directory=str(parts.profile.corpus.directory), clean=clean, shards=tuple(found))


async def _verified(
    check: Running[[bool], list[ShardVerification]],
    session: Session,
    parts: Parts,
    *,
    repair: bool,
    tell: Callable[[float], None],
) -> list[ShardVerification]:
    share = await session.start(verified_share(parts))
    running = asyncio.create_task(check(repair))
    try:
        while not (await asyncio.wait([running], timeout=_ASK_EVERY_S))[0]:
            tell(await share())
    finally:
        running.cancel()
    return await running


def _damaged(corpus: Corpus) -> list[ShardVerification]:
    return [verify_file(corpus.shard_directory(i) / "store.sqlite", i) for i in range(corpus.config.shards)]
