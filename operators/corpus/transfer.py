"""The files by which a corpus goes from one headrace to another: two Parquet tables and a description of them.

::

    export.json         format, configuration of the corpus, counts, size and digest of each file
    documents.parquet   a row a document, by ascending id
    chunks.parquet      a row a chunk, in the order of the documents and then of the chunks; vectors as they are stored

Any tool that reads Parquet reads the tables. Indexes are not in them: whoever imports makes them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidInput
from operators.corpus.manifest import MANIFEST, CorpusConfig

FORMAT = 1  # goes up when an older headrace could not read what a newer one writes
DESCRIPTION, DOCUMENTS, CHUNKS = "export.json", "documents.parquet", "chunks.parquet"


class ExportedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file must be like to be the one that was exported."""

    size_bytes: int
    blake2b: str  # of its bytes, 32 hexadecimal digits


class Export(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an exported folder holds."""

    format: int
    documents: int
    chunks: int
    config: CorpusConfig
    files: dict[str, ExportedFile]


def documents_schema() -> Any:
    """The columns of documents.parquet, a pyarrow.Schema; times are seconds since 1970, metadata is JSON."""
    import pyarrow as pa  # noqa: PLC0415 - only transfers need it

    text = pa.string()
    return pa.schema(
        [("id", text), ("title", text), ("text", text), ("source", text), ("media_type", text), ("owner", text),
         ("collections", pa.list_(text)), ("metadata", text), ("version", pa.int64()), ("created", pa.float64()),
         ("updated", pa.float64()), ("content_hash", pa.binary())]
    )  # fmt: skip


def chunks_schema(dimension: int) -> Any:
    """The columns of chunks.parquet, a pyarrow.Schema; without a vector a chunk is in no index."""
    import pyarrow as pa  # noqa: PLC0415 - only transfers need it

    text, number = pa.string(), pa.int64()
    return pa.schema(
        [("document_id", text), ("ordinal", number), ("parent", number), ("start", number), ("end", number),
         ("tokens", number), ("edited", pa.bool_()), ("context", text), ("text", text),
         ("vector", pa.list_(pa.float32(), dimension))]
    )  # fmt: skip


def file_of(path: Path) -> ExportedFile:
    """What a file is like."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    return ExportedFile(path.stat().st_size, digest.hexdigest())


def read_export(directory: Path) -> Export:
    """The description of an exported folder, whose files were compared with it.

    Raises:
        InvalidInput: The folder is no export, a newer headrace made it, or a file is missing or damaged.
    """
    described = directory / DESCRIPTION
    try:
        raw: Any = msgspec.json.decode(described.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = "it is a corpus itself: copy it" if (directory / MANIFEST).exists() else "headrace export makes one"
        raise InvalidInput(f"{directory} is no exported corpus (no {DESCRIPTION}); {hint}") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {described}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{described} is damaged: {error}; export again") from error
    made = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(made, int) and made > FORMAT:
        raise InvalidInput(
            f"{directory} has export format {made}; this headrace reads up to {FORMAT}: upgrade headrace"
        )
    try:
        export = msgspec.convert(raw, Export)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{described} is damaged: {error}; export again") from error
    for name in (DOCUMENTS, CHUNKS):
        _refuse_damaged(directory / name, export.files.get(name))
    return export


def _refuse_damaged(path: Path, expected: ExportedFile | None) -> None:
    try:
        sound = file_of(path) == expected
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}; export again") from error
    if not sound:
        raise InvalidInput(f"{path} is not the file that was exported: it was damaged or changed; export again")
