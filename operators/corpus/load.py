"""Import of an exported corpus, see operators/corpus/transfer.py: a new corpus that holds the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.corpus.changes import Changes
from operators.corpus.content import normalised, prepared
from operators.corpus.keys import chunk_key
from operators.corpus.manifest import Corpus, CorpusConfig, IndexConfig, create_corpus, open_corpus
from operators.corpus.store import Store
from operators.corpus.transfer import CHUNKS, DOCUMENTS, Export, chunks_schema, documents_schema, read_export
from operators.corpus.whole_folder import refuse_taken, whole_folder
from operators.messages import Chunk, Document, EmbeddedDocument

_ROWS_AT_ONCE = 1_000
_TRANSACTION_BYTES = 16 << 20


class _Stored(NamedTuple):
    """A document as an export has it: with what a corpus otherwise says itself."""

    embedded: EmbeddedDocument
    version: int
    created: float
    updated: float
    content_hash: bytes
    edited: list[int]  # keys of chunks that were changed by themselves

    @property
    def size_bytes(self) -> int:
        return 2 * len(self.embedded.document.text) + self.embedded.vectors.nbytes


def load_corpus(
    export: Path, directory: Path, changes: Mapping[str, Any], tell: Callable[[float], None] = lambda _: None
) -> Corpus:
    """Makes a new corpus of an export, in constant memory; its indexes are made when its shards are opened.

    Ids, texts, offsets, vectors, metadata, owners, collections, versions and times are those of the exported corpus, so
    that ingesting the same files again is a no-op there, too.

    Args:
        export: The exported folder.
        directory: Of the corpus; it must not exist yet, or be empty. It gets its name when all of it is on the disk.
        changes: Fields of IndexConfig that shall be other than in the exported corpus.
        tell: Called with the share that is done, 0 to 1.

    Raises:
        InvalidInput: The directory is taken; the export is damaged, or none; there is no such setting.
        StorageError: The disk refused.
    """
    refuse_taken(directory)
    found = read_export(export)
    config = changed_config(found.config, changes)
    normalise = config.measure == "cosine" != found.config.measure
    with whole_folder(directory) as unfinished:
        corpus = create_corpus(unfinished, config)
        with _Loader(corpus) as loader:
            for document in _documents(export, found):
                loader.add(_fitting(document, config, normalise=normalise))
                tell(loader.documents / found.documents)
    return open_corpus(directory)


def changed_config(config: CorpusConfig, changes: Mapping[str, Any]) -> CorpusConfig:
    """A configuration with some settings of its indexes changed.

    Raises:
        InvalidInput: There is no such setting, or no such value of it.
    """
    known = IndexConfig.__struct_fields__
    for name in changes:
        if name not in known:
            raise InvalidInput(f"there is no index setting {name!r}; expected one of {', '.join(known)}")
    try:
        return msgspec.convert({**msgspec.structs.asdict(config), **changes}, CorpusConfig)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        raise InvalidInput(str(cause if isinstance(cause, InvalidInput) else error)) from error


def _fitting(stored: _Stored, config: CorpusConfig, *, normalise: bool) -> _Stored:
    """The document, if it may be stored; its vectors stay as they are to the last bit, unless the measure has changed.

    Raises:
        InvalidInput: It may not.
    """
    document, chunks, vectors = stored.embedded.document, stored.embedded.chunks, stored.embedded.vectors
    as_cut = tuple(
        msgspec.structs.replace(c, text=document.text[c.start : c.end])
        if chunk_key(document.id, c.ordinal) in stored.edited
        else c
        for c in chunks
    )
    prepared(EmbeddedDocument(document, as_cut, vectors), dimension=config.dimension, measure=config.measure)
    if not normalise:
        return stored
    return stored._replace(embedded=EmbeddedDocument(document, chunks, normalised(vectors)))


class _Loader:
    """Writes documents to the shards that hold them, a few megabytes a transaction."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._stores = [Store(corpus.shard_directory(i) / "store.sqlite") for i in range(corpus.config.shards)]
        for store in self._stores:
            store.db.execute("PRAGMA synchronous = OFF")  # the folder is synced as a whole before it gets its name
        self._waiting: dict[int, list[_Stored]] = {}
        self._waiting_bytes = 0
        self.documents = 0

    def __enter__(self) -> _Loader:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if failure is None:
                self._flush()
        finally:
            for store in self._stores:
                store.close()

    def add(self, stored: _Stored) -> None:
        """Writes a document, now or with the next ones."""
        self._waiting.setdefault(self._corpus.shard_of(stored.embedded.document.id), []).append(stored)
        self._waiting_bytes += stored.size_bytes
        self.documents += 1
        if self._waiting_bytes >= _TRANSACTION_BYTES:
            self._flush()

    def _flush(self) -> None:
        for shard, batch in self._waiting.items():
            store = self._stores[shard]
            store.db.execute("BEGIN IMMEDIATE")
            _write(store, batch)
            store.db.execute("COMMIT")
        self._waiting, self._waiting_bytes = {}, 0


def _write(store: Store, batch: list[_Stored]) -> None:
    for written, stored in zip(Changes(store, None).write([s.embedded for s in batch], ""), batch, strict=True):
        if written.outcome != "added":
            raise InvalidInput(f"the export holds the document {written.document_id!r} twice; export again")
        store.db.execute(
            "UPDATE documents SET version = ?, created = ?, updated = ?, content_hash = ? WHERE id = ?",
            (stored.version, stored.created, stored.updated, stored.content_hash, written.document_id),
        )
        store.db.executemany("UPDATE chunks SET edited = 1 WHERE key = ?", ((key,) for key in stored.edited))


def _documents(export: Path, found: Export) -> Iterator[_Stored]:
    """The documents of an export with their chunks, in its order.

    Raises:
        InvalidInput: The tables do not fit each other, or have other columns.
    """
    counts = [0, 0]
    groups = groupby(_chunks(export / CHUNKS, found.config.dimension), key=lambda chunk: chunk[0])
    following = next(groups, None)
    for row in _rows(export / DOCUMENTS, documents_schema()):
        chunks: list[_ChunkRow] = []
        if following is not None and following[0] == row["id"]:
            chunks = list(following[1])
            following = next(groups, None)
        counts = [counts[0] + 1, counts[1] + len(chunks)]
        yield _stored(row, chunks, found.config.dimension)
    if following is not None or counts != [found.documents, found.chunks]:
        raise InvalidInput(f"the tables in {export} do not fit each other; export again")


class _ChunkRow(NamedTuple):
    document_id: str
    chunk: Chunk
    edited: bool
    vector: np.ndarray  # float32[D]; NaN for none


def _stored(row: dict[str, Any], chunks: list[_ChunkRow], dimension: int) -> _Stored:
    document = Document(
        id=row["id"], title=row["title"], text=row["text"], source=row["source"], media_type=row["media_type"],
        metadata=msgspec.json.decode(row["metadata"]), owner=row["owner"], collections=tuple(row["collections"]),
    )  # fmt: skip
    vectors = np.array([c.vector for c in chunks], np.float32).reshape(len(chunks), dimension)
    return _Stored(
        EmbeddedDocument(document, tuple(c.chunk for c in chunks), vectors),
        version=row["version"],
        created=row["created"],
        updated=row["updated"],
        content_hash=row["content_hash"],
        edited=[chunk_key(document.id, c.chunk.ordinal) for c in chunks if c.edited],
    )


def _chunks(path: Path, dimension: int) -> Iterator[_ChunkRow]:
    for row in _rows(path, chunks_schema(dimension)):
        document_id, edited, vector = row.pop("document_id"), row.pop("edited"), row.pop("vector")
        yield _ChunkRow(document_id, Chunk(**row), edited, vector)


def _rows(path: Path, schema: Any) -> Iterator[dict[str, Any]]:
    """Rows of a table, some at a time.

    Raises:
        InvalidInput: It is no Parquet, or has other columns.
    """
    import pyarrow as pa  # noqa: PLC0415 - only transfers need it
    import pyarrow.parquet as pq  # noqa: PLC0415 - likewise

    try:
        with pq.ParquetFile(path) as file:
            if not file.schema_arrow.equals(schema):
                raise InvalidInput(f"{path} has other columns than an export; export again")
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                columns = {name: _column(batch.column(name)) for name in schema.names}
                for values in zip(*columns.values(), strict=True):
                    yield dict(zip(columns, values, strict=True))
    except pa.ArrowException as error:
        raise InvalidInput(f"{path} cannot be read: {error}; export again") from error


def _column(column: Any) -> Any:
    """Values as a list, or vectors as float32[N, D], a row of NaN for one that is missing."""
    import pyarrow as pa  # noqa: PLC0415 - only transfers need it

    if not pa.types.is_fixed_size_list(column.type):
        return column.to_pylist()
    vectors = np.full((len(column), column.type.list_size), np.nan, np.float32)
    vectors[column.is_valid().to_numpy(zero_copy_only=False)] = (
        column.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
    )
    return vectors
