"""What a document and its chunks must be like to be stored, and the hashes that tell two contents apart."""

from __future__ import annotations

import hashlib
import math
import re
import reprlib
from typing import Any

import msgspec
import numpy as np

from engine.errors import InvalidInput
from operators.messages import Chunk, Document, EmbeddedDocument, Metadata

MAX_ID_BYTES = 4096
MAX_NESTING = 100  # of metadata: whoever reads a deeper one may run out of stack
MAX_LENGTH = 1e18  # of a vector: sums of squares of two, and of their difference, are far from where float32 ends
_INT64, _UINT64 = -(2**63), 2**64
TEXTS = ("id", "title", "text", "source", "media_type", "owner")  # fields of a document
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # in JSON, and not a backslash followed by u0000


def content_hash(document: Document, chunking: str = "") -> bytes:
    """16 bytes over everything that a person gave, and how it is cut: documents that agree need no work at all."""
    return _hash(
        document.title.encode(),
        document.text.encode(),
        _metadata(document),
        document.source.encode(),
        document.media_type.encode(),
        document.owner.encode(),
        msgspec.json.encode(sorted(document.collections)),
        chunking.encode(),
    )


def chunk_hash(document: Document, chunk: Chunk) -> bytes:
    """16 bytes over all that an embedder may see of a chunk, by which its vector can be found again."""
    return passage_hash(document.title, chunk.context, chunk.text)


def passage_hash(title: str, context: str, text: str) -> bytes:
    """As `chunk_hash`, from the three texts."""
    return _hash(title.encode(), context.encode(), text.encode())


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def _metadata(document: Document) -> bytes:
    return msgspec.json.encode(document.metadata, order="sorted")


def check(document: Document) -> None:
    """Refuses a document that cannot be stored.

    Raises:
        InvalidInput: Its id is empty or too long, its metadata is not JSON, or a text is none, or not Unicode.
    """
    for name in TEXTS:
        if not isinstance(getattr(document, name), str):
            value = getattr(document, name)
            raise InvalidInput(f"document {document.id!r}: its {name} is {reprlib.repr(value)}; expected a text")
    if not all(isinstance(name, str) for name in document.collections):
        raise InvalidInput(f"document {document.id!r}: its collections are {document.collections!r}; expected texts")
    if not 0 < len(document.id.encode(errors="replace")) <= MAX_ID_BYTES:
        raise InvalidInput(f"document id {document.id[:80]!r}: expected 1 to {MAX_ID_BYTES} bytes")
    names = "".join((document.id, document.title, document.source, document.media_type, document.owner))
    names += "".join(document.collections)
    if "\0" in names:
        raise InvalidInput(f"document {document.id!r}: a name or the title holds a NUL character; remove it")
    try:
        names.encode()
        document.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"document {document.id!r} holds a lone surrogate: {error}; decode its bytes anew"
        ) from error
    check_metadata(document.id, document.metadata)
    if "" in document.collections or len(set(document.collections)) < len(document.collections):
        raise InvalidInput(
            f"document {document.id!r} is in the collections {document.collections}: each needs a name, and comes once"
        )


def check_metadata(document_id: str, metadata: Metadata) -> None:
    """Refuses metadata that cannot be stored.

    Raises:
        InvalidInput: It is not JSON, is nested too deeply, or holds a number that is not finite or a whole one beyond
            64 bits; or a text in it is not Unicode, or holds a NUL, at which the database would end it.
    """
    if not isinstance(metadata, dict):
        raise InvalidInput(
            f"document {document_id!r}: metadata are {reprlib.repr(metadata)}; expected an object of keys and values"
        )
    try:
        _check_json(metadata)
        encoded = msgspec.json.encode(metadata)
        _check_values(msgspec.json.decode(encoded), MAX_NESTING)
    except (TypeError, ValueError, RecursionError) as error:  # a ValueError: no Unicode, or thousands of digits
        raise InvalidInput(f"document {document_id!r}: metadata must be JSON values: {error}") from error
    if holds_nul(encoded):
        raise InvalidInput(f"document {document_id!r}: a text in the metadata holds a NUL character; remove it")


def holds_nul(encoded: bytes) -> bool:
    """Whether a text in encoded JSON holds a NUL."""
    return _NUL.search(encoded) is not None


def _check_json(value: Any) -> None:
    """Refuses what would become something else as JSON.

    Raises:
        ValueError: A key is no text, or a number is not finite.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"a number is {value}; leave the key out")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is no text")  # noqa: TRY004 - a bad value of the caller's
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _check_json(part)


def _check_values(value: Any, levels: int) -> None:
    """Refuses what every filter that looks at it later would fail on.

    Raises:
        ValueError: The value is a number that no message can carry, or has more levels than these.
    """
    if isinstance(value, int) and not _INT64 <= value < _UINT64:
        raise ValueError(f"the number {value:,} is beyond 64 bits; give it as a text")
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"they are nested in more than {MAX_NESTING} levels")
        for part in value.values() if isinstance(value, dict) else value:
            _check_values(part, levels - 1)


def prepared(embedded: EmbeddedDocument, *, dimension: int, measure: str) -> EmbeddedDocument:
    """The document with its vectors as they are stored: float32[N, D], unit length when the measure is "cosine".

    A row of NaN says that the chunk has no vector.

    Raises:
        InvalidInput: The document cannot be stored, its vectors do not fit the corpus, or its chunks not its text.
    """
    document, chunks = embedded.document, embedded.chunks
    check(document)
    vectors = np.ascontiguousarray(embedded.vectors, np.float32)
    if vectors.size == 0 and not chunks:
        vectors = vectors.reshape(0, dimension)
    if vectors.shape != (len(chunks), dimension):
        raise InvalidInput(
            f"document {document.id!r}: vectors have shape {embedded.vectors.shape}; "
            f"{len(chunks)} chunks of {dimension} dimensions were expected"
        )
    fit = comparable(vectors, measure) | np.isnan(vectors).all(axis=1)
    if not fit.all():
        misfit = int(fit.argmin())
        fault = f"longer than {MAX_LENGTH:g}" if np.isfinite(vectors[misfit]).all() else "not finite"
        raise InvalidInput(f"document {document.id!r}: the vector of chunk {misfit} is {fault}")
    for chunk in chunks:
        if document.text[chunk.start : chunk.end] != chunk.text:
            raise InvalidInput(
                f"document {document.id!r}: chunk {chunk.ordinal} is not the text from {chunk.start} to {chunk.end}"
            )
    return EmbeddedDocument(document, chunks, normalised(vectors) if measure == "cosine" else vectors)


def comparable(vectors: np.ndarray[Any, Any], measure: str) -> np.ndarray[Any, Any]:
    """Which rows can be compared by a measure, so that each score is a number: bool[N], or one for a single vector.

    They are finite, and not longer than `MAX_LENGTH` unless the measure makes them unit length.
    """
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1)
    return np.asarray(lengths < (np.inf if measure == "cosine" else MAX_LENGTH))


def query_vector(vector: np.ndarray[Any, Any], dimension: int, measure: str) -> np.ndarray[Any, Any] | None:
    """A question's vector as it is compared, float32[D], of unit length for "cosine"; None if it cannot be compared."""
    query = np.asarray(vector, np.float32).reshape(-1)
    precise = query.astype(np.float64)
    length = math.sqrt(float(precise @ precise))
    if query.size != dimension or not length < (math.inf if measure == "cosine" else MAX_LENGTH):
        return None
    return (precise / length).astype(np.float32) if measure == "cosine" and length else query


def normalised(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of unit length, float32; a row of zeros stays."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)  # float32 would overflow at 1e19
    return np.asarray(vectors / np.where(lengths == 0, 1, lengths), np.float32)
