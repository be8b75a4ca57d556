"""Chunks as a collection of JSON lines, the form of texts that pyserini and Anserini index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from operators.messages import ChunkInfo

CHUNKS_A_FILE = 100_000  # Anserini reads several files at once


def write_json_collection(chunks: Iterable[ChunkInfo], folder: str | Path) -> int:
    """Writes chunks as files that `python -m pyserini.index.lucene --collection JsonCollection` reads.

    Each line of docs00.jsonl, docs01.jsonl, ... has `id`, the chunk's; `title`, its document's; and `contents`, which
    is what is indexed: title, headings above the chunk, and its text, each on lines of its own.

    Args:
        chunks: In any order; read once.
        folder: Made when it is not there; must be empty, since whatever lies in it would be indexed with the rest.

    Returns:
        The number of chunks.

    Raises:
        InvalidInput: The folder is not empty, or cannot be written.
    """
    root, written = Path(folder), 0
    lines = map(_line, chunks)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if stranger := next(root.iterdir(), None):
            raise InvalidInput(f"{root} is not empty ({stranger.name} is there); choose another folder")
        for number, first in enumerate(lines):
            written += _write(root / f"docs{number:02}.jsonl", chain([first], islice(lines, CHUNKS_A_FILE - 1)))
    except OSError as error:
        raise InvalidInput(f"cannot write to {root}: {error.strerror or error}") from error
    return written


def _write(path: Path, lines: Iterator[bytes]) -> int:
    count = 0
    with path.open("xb") as file:
        for line in lines:
            file.write(line)
            count += 1
    return count


def _line(chunk: ChunkInfo) -> bytes:
    contents = "\n".join(part for part in (chunk.title, chunk.context, chunk.text) if part)
    return msgspec.json.encode({"id": chunk.chunk_id, "title": chunk.title, "contents": contents}) + b"\n"
