"""Export of a corpus: documents, chunks and vectors as Parquet, see operators/corpus/transfer.py."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from operators.corpus.files import write_whole
from operators.corpus.json_collection import write_json_collection
from operators.corpus.listing import list_chunks
from operators.corpus.manifest import Corpus
from operators.corpus.store import COLLECTIONS, Store
from operators.corpus.transfer import (
    CHUNKS,
    DESCRIPTION,
    DOCUMENTS,
    FORMAT,
    Export,
    chunks_schema,
    documents_schema,
    file_of,
)
from operators.corpus.whole_folder import whole_folder
from operators.filter_tree import Compare
from operators.messages import MAX_LISTED, ChunkInfo, Listing

_ROW_GROUP_BYTES = 16 << 20
_ROW_GROUP_ROWS = 10_000

_DOCUMENTS = (
    f"SELECT d.id, d.title, t.text, d.source, d.media_type, d.owner, {COLLECTIONS}, d.metadata, d.version, d.created,"
    " d.updated, d.content_hash, d.number FROM documents d CROSS JOIN texts t ON t.document = d.number ORDER BY d.id"
)
_CHUNKS = (
    'SELECT c.ordinal, c.parent, c.start, c."end", c.tokens, c.edited, c.context, c.text, v.vector FROM chunks c'
    " LEFT JOIN vectors v USING (key) WHERE c.document = ? ORDER BY c.ordinal"
)


def export_corpus(corpus: Corpus, directory: Path, tell: Callable[[float], None] = lambda _: None) -> Export:
    """Writes what a corpus holds, in constant memory; the same whatever the number of shards.

    Each shard is exported as it was at one moment. Other processes may go on reading and writing.

    Args:
        corpus: In today's format.
        directory: Of the export; it must not exist yet, or be empty.
        tell: Called with the share that is done, 0 to 1.

    Raises:
        InvalidInput: The directory is taken.
        StorageError: The disk refused.
    """
    with whole_folder(directory) as unfinished, snapshots(corpus) as stores:
        documents = _Table(unfinished / DOCUMENTS, documents_schema())
        chunks = _Table(unfinished / CHUNKS, chunks_schema(corpus.config.dimension))
        total = sum(store.one("SELECT count(*) FROM documents") for store in stores)
        with documents, chunks:
            for row, store in documents_of(stores):
                documents.add((*row[:6], msgspec.json.decode(row[6]), *row[7:12]), size_bytes=len(row[2]))
                for chunk in store.db.execute(_CHUNKS, (row[12],)):
                    size_bytes = len(chunk[7]) + len(chunk[8] or b"")
                    chunks.add((row[0], *chunk[:5], bool(chunk[5]), *chunk[6:]), size_bytes=size_bytes)
                tell(documents.rows / total)
        export = Export(
            format=FORMAT,
            documents=documents.rows,
            chunks=chunks.rows,
            config=corpus.config,
            files={name: file_of(unfinished / name) for name in (DOCUMENTS, CHUNKS)},
        )
        write_whole(unfinished / DESCRIPTION, msgspec.json.format(msgspec.json.encode(export), indent=2))
    return export


def export_collection(corpus: Corpus, directory: Path, tell: Callable[[float], None] = lambda _: None) -> int:
    """Writes the chunks of a corpus as a JSON collection for pyserini and Anserini, see json_collection.py.

    Args:
        corpus: In today's format.
        directory: Of the collection; it must not exist yet, or be empty.
        tell: Called with the share that is done, 0 to 1.

    Returns:
        The number of chunks.

    Raises:
        InvalidInput: The directory is taken.
        StorageError: The disk refused.
    """
    with whole_folder(directory) as unfinished, snapshots(corpus) as stores:
        homes = {id_: store for store in stores for (id_,) in store.db.execute("SELECT id FROM documents")}
        return write_json_collection(_chunks_of(homes, tell), unfinished)


def _chunks_of(homes: dict[str, Store], tell: Callable[[float], None]) -> Iterator[ChunkInfo]:
    """Chunks of documents that lie in those stores, in their order."""
    for done, (id_, store) in enumerate(sorted(homes.items(), key=itemgetter(0)), start=1):
        yield from list_chunks(store, Listing(filters=Compare("id", "$eq", id_), limit=MAX_LISTED), None).chunks
        tell(done / len(homes))


@contextmanager
def snapshots(corpus: Corpus) -> Iterator[list[Store]]:
    """The databases of all shards, each as it is now for as long as the block lasts."""
    with ExitStack() as stack:
        stores = []
        for index in range(corpus.config.shards):
            store = Store(corpus.shard_directory(index) / "store.sqlite")
            stack.callback(store.close)
            stack.enter_context(store.snapshot())
            store.seq()  # a transaction sees what there is when it first reads
            stores.append(store)
        yield stores


def documents_of(stores: list[Store]) -> Iterator[tuple[tuple[Any, ...], Store]]:
    """Rows of all documents by ascending id, each with the store that it is in."""
    rows = [zip(store.db.execute(_DOCUMENTS), repeat(store)) for store in stores]
    return heapq.merge(*rows, key=lambda found: found[0][0])


class _Table:
    """One Parquet file that is being written, row group by row group."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only transfers need it

        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)
        self._waiting: list[tuple[Any, ...]] = []
        self._waiting_bytes = 0
        self.rows = 0

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if self._waiting and failure is None:
            self._flush()
        self._writer.close()

    def add(self, row: tuple[Any, ...], *, size_bytes: int) -> None:
        """Adds a row."""
        self._waiting.append(row)
        self._waiting_bytes += size_bytes
        self.rows += 1
        if self._waiting_bytes >= _ROW_GROUP_BYTES or len(self._waiting) >= _ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - only transfers need it

        columns = [
            _vectors(values, field.type) if field.name == "vector" else pa.array(values, field.type)
            for field, values in zip(self._schema, zip(*self._waiting, strict=True), strict=True)
        ]
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._waiting, self._waiting_bytes = [], 0


def _vectors(values: tuple[bytes | None, ...], kind: Any) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - only transfers need it

    nothing = bytes(4 * kind.list_size)
    numbers = np.frombuffer(b"".join(value or nothing for value in values), np.float32)
    missing = pa.array([value is None for value in values])
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=kind, mask=missing)
