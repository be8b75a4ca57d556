"""Documents of our own with vectors of our own, and shards over them."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from operators.messages import Chunk, Document, EmbeddedDocument, Leg, Plan

DIMENSION = 16
Make = Callable[..., EmbeddedDocument]
Open = Callable[..., Awaitable[Shard]]


def vector_of(text: str) -> np.ndarray:
    """A vector that depends on the text only."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)


def make_document(
    id: str, text: str = "", *, title: str = "", chunks: list[str] | None = None, context: str = "", **metadata: object
) -> EmbeddedDocument:
    """A document whose chunks are `chunks` (which make up its text), or its whole text."""
    parts = chunks if chunks is not None else [text]
    whole = "".join(parts)
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    return EmbeddedDocument(
        Document(id=id, title=title, text=whole, metadata=metadata),
        tuple(
            Chunk(ordinal=n, text=part, start=start, end=start + len(part), context=context)
            for n, (part, start) in enumerate(zip(parts, starts, strict=False))
        ),
        np.stack([vector_of(part) for part in parts]) if parts else np.empty((0, DIMENSION), np.float32),
    )


@pytest.fixture(scope="session")
def make() -> Make:
    return make_document


@pytest.fixture(scope="session")
def vector() -> Callable[[str], np.ndarray]:
    return vector_of


@pytest.fixture(scope="session")
def plan() -> Callable[..., Plan]:
    def plan(question: str = "", limit: int = 10, **options: object) -> Plan:
        return Plan(
            question=question,
            strategy="hybrid",
            legs=(Leg("dense", 1.0, limit), Leg("lexical", 1.0, limit)),
            limit=limit,
            rerank_candidates=0,
            language="",
            **options,  # type: ignore[arg-type]  # filters and scope_prefix
        )

    return plan


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    directory = tmp_path / "corpus"
    create_corpus(directory, CorpusConfig(embedder="test", dimension=DIMENSION))
    return str(directory)


@pytest.fixture
async def open_shard(corpus: str) -> AsyncIterator[Open]:
    """Opens shards that are closed after the test."""
    opened: list[Shard] = []

    async def open_one(index: int = 0, *, writable: bool = True, directory: str = corpus) -> Shard:
        opened.append(Shard.open(directory, index, writable=writable))
        return opened[-1]

    yield open_one
    for shard in opened:
        await shard.aclose()


@pytest.fixture
async def shard(open_shard: Open) -> Shard:
    return await open_shard()
