"""The chunking stage: documents in, chunks out, off the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from operators.chunk import ChunkConfig, chunk_document
from operators.measure import CharacterMeasure, Measure
from operators.messages import Chunk, ChunkedDocument, Document
from operators.models.embedder import EmbedderConfig, token_measure
from operators.models.model_files import model_folder
from operators.models.token_measure import TokenMeasure


class Chunker:
    """The state of the chunking stage: a tokenizer to measure with, and one worker thread.

    Args:
        config: How to cut.
        measure: Gives the lengths that the configuration's sizes are in.
        tokens: Counts tokens when `measure` does not; see `chunk_document`.
    """

    def __init__(self, config: ChunkConfig, measure: Measure, *, tokens: Measure | None = None) -> None:
        self._config = config
        self._measure = measure
        self._tokens = tokens
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="chunker")

    @classmethod
    def open(cls, config: ChunkConfig, embedder: EmbedderConfig) -> Chunker:
        """Load the embedder's tokenizer, to measure or at least to count with; never its weights.

        Raises:
            InvalidInput: The embedder's files cannot be found; or sizes are in tokens, and it has no fast tokenizer.
        """
        if config.unit == "tokens":
            return cls(config, token_measure(embedder))
        folder = model_folder(embedder.model)
        counted = (folder / "tokenizer.json").is_file()  # a model without one can be used, its tokens are not counted
        return cls(config, CharacterMeasure(), tokens=TokenMeasure.open(folder) if counted else None)

    async def chunk(self, documents: list[Document]) -> list[ChunkedDocument]:
        """Each document with its chunks, in the given order; see `chunk_document`."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._cut, documents)

    def _cut(self, documents: list[Document]) -> list[ChunkedDocument]:
        return [chunk_document(d, self._config, self._measure, tokens=self._tokens) for d in documents]

    async def count(self, documents: list[ChunkedDocument]) -> list[ChunkedDocument]:
        """The documents with the tokens of each chunk, counted in its own text; as they are if nothing can count."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._counted, documents)

    def _counted(self, documents: list[ChunkedDocument]) -> list[ChunkedDocument]:
        counter = self._measure if self._measure.unit == "tokens" else self._tokens
        if counter is None:
            return documents
        return [ChunkedDocument(d.document, tuple(_counted(chunk, counter) for chunk in d.chunks)) for d in documents]

    async def aclose(self) -> None:
        """Stop the worker."""
        await asyncio.to_thread(self._worker.shutdown)


def _counted(chunk: Chunk, counter: Measure) -> Chunk:
    return msgspec.structs.replace(chunk, tokens=counter.ruler(chunk.text).length(0, len(chunk.text)))
