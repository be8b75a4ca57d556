"""The chunking stage: documents in, chunks out, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from operators.chunk import ChunkConfig, chunk_document
from operators.measure import CharacterMeasure, Measure
from operators.messages import ChunkedDocument, Document
from operators.models.embedder import EmbedderConfig, token_measure


class Chunker:
    """The state of the chunking stage: a tokenizer to measure with, and one worker thread.

    Args:
        config: How to cut.
        measure: Gives the lengths that the configuration's sizes are in.
    """

    def __init__(self, config: ChunkConfig, measure: Measure) -> None:
        self._config = config
        self._measure = measure
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="chunker")

    @classmethod
    def open(cls, config: ChunkConfig, embedder: EmbedderConfig) -> Chunker:
        """Load the embedder's tokenizer, when sizes are in tokens; never its weights.

        Raises:
            InvalidInput: The embedder's files cannot be found.
        """
        return cls(config, CharacterMeasure() if config.unit == "characters" else token_measure(embedder))

    async def chunk(self, documents: list[Document]) -> list[ChunkedDocument]:
        """Each document with its chunks, in the given order; see `chunk_document`."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._cut, documents)

    def _cut(self, documents: list[Document]) -> list[ChunkedDocument]:
        return [chunk_document(d, self._config, self._measure) for d in documents]

    async def aclose(self) -> None:
        """Stop the worker."""
        await asyncio.to_thread(self._worker.shutdown)
