"""What a person puts into a session: texts, documents and files, as the ingest graph takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from operators.messages import Document, Metadata, Skipped
from operators.read import Source, read_documents

BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 64_000  # some 100 chunks, which the embedder takes at once; a longer document is a batch of its own


class RagDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document to ingest.

    Args:
        text: What offsets of its chunks count in, in code points.
        id: What makes it the same document when it comes again; empty: made from the text, so that the same text again
            is the same document.
        metadata: JSON values, to filter by.
        title: Embedded and searched with each chunk.
        source: Path or URL.
        media_type: Tells how it is cut: "text/markdown" by its headings.
        owner: Who may change it.
        collections: Names of the groups that it is in.

    Raises:
        InvalidInput: The text is empty or no text, or the metadata are no mapping.
    """

    text: str
    id: str = ""
    metadata: Metadata = msgspec.field(default_factory=dict)
    title: str = ""
    source: str = ""
    media_type: str = "text/plain"
    owner: str = ""
    collections: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        who = f"of document {self.id!r}" if self.id else "of a document without id"
        if not isinstance(self.text, str):
            raise InvalidInput(f"the text {who} is a {type(self.text).__name__}; expected a str")
        if not self.text.strip():
            raise InvalidInput(f"the text {who} is empty; give it some, or leave the document out")
        if not isinstance(self.metadata, Mapping):
            raise InvalidInput(f"the metadata {who} are a {type(self.metadata).__name__}; expected a mapping")

    @classmethod
    def file(cls, path: str | Path) -> RagDocument:
        """The document in a file of any kind that headrace reads: its id is the file's name.

        Metadata gets the path as "source".

        Raises:
            InvalidInput: The file cannot be read, or holds no text.
        """
        read = next(read_documents(Source(str(path), Path(path).name)))
        if isinstance(read, Skipped):
            raise InvalidInput(f"{path}: {read.reason}")
        return cls(
            read.text,
            read.id,
            {"source": read.source},
            title=read.title,
            source=read.source,
            media_type=read.media_type,
        )

    def document(self) -> Document:
        """The same, as the graphs take it."""
        return Document(
            id=self.id or _id_of(self.text),
            title=self.title,
            text=self.text,
            source=self.source,
            media_type=self.media_type,
            metadata=self.metadata,
            owner=self.owner,
            collections=self.collections,
        )


def as_documents(given: RagDocument | str | Iterable[RagDocument | str]) -> list[Document]:
    """The documents given, each once; a str is the text of one.

    Raises:
        InvalidInput: One is empty or something else, or two that differ have one id.
    """
    several = [given] if isinstance(given, RagDocument | str) else given
    documents: dict[str, Document] = {}
    for one in several:
        if not isinstance(one, RagDocument | str):
            raise InvalidInput(
                f"cannot ingest a {type(one).__name__}; give a text, RagDocument or RagDocument.file(path)"
            )
        document = (RagDocument(one) if isinstance(one, str) else one).document()
        if documents.setdefault(document.id, document) != document:
            raise InvalidInput(f"two different documents have the id {document.id!r}; give each an id of its own")
    return list(documents.values())


def batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents in their order, in lists that are chunked, embedded and written together."""
    batch: list[Document] = []
    left = BATCH_CHARACTERS
    for document in documents:
        if batch and (len(batch) == BATCH_DOCUMENTS or len(document.text) > left):
            yield batch
            batch, left = [], BATCH_CHARACTERS
        batch.append(document)
        left -= len(document.text)
    if batch:
        yield batch


def _id_of(text: str) -> str:
    """An id that texts share which differ in white space only."""
    return f"text-{hashlib.sha256(' '.join(text.split()).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
