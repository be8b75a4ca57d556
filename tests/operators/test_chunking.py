import pytest

from operators.chunk import ChunkConfig
from operators.chunking import Chunker
from operators.messages import Chunk, ChunkedDocument, Document
from operators.models.embedder import EmbedderConfig

TEXT = "The mill stands on the river."


@pytest.mark.parametrize("unit", ["tokens", "characters"])
async def test_a_chunk_that_was_not_cut_is_counted_like_one_that_was(unit: str) -> None:
    chunker = Chunker.open(ChunkConfig(unit=unit), EmbedderConfig())
    (cut,) = await chunker.chunk([Document(id="d", title="", text=TEXT)])
    given = ChunkedDocument(cut.document, (Chunk(ordinal=7, text=TEXT, start=0, end=len(TEXT)),))
    (counted,) = await chunker.count([given])
    assert [chunk.tokens for chunk in counted.chunks] == [chunk.tokens for chunk in cut.chunks]
    assert counted.chunks[0].tokens > 5
    assert await chunker.count([]) == []
    await chunker.aclose()
