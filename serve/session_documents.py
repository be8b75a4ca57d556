"""What a person puts into a session: texts, documents and files, as the ingest graph takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from operators.corpus.content import TEXTS
from operators.messages import Document, Metadata, Skipped
from operators.read import Source, read_documents
from serve.checks import check_kind

BATCH_DOCUMENTS = 64
BATCH_CHARACTERS = 64_000  # some 100 chunks, which the embedder takes at once; a longer document is a batch of its own


class RagDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document to ingest.

    Args:
        text: What offsets of its chunks count in, in code points.
        id: What makes it the same document when it comes again; empty: made from the words of the text, so that the
            same text again is the same document, with other white space, too: then it takes the place of the first.
        metadata: JSON values, to filter by.
        title: Embedded and searched with each chunk.
        source: Path or URL.
        media_type: Tells how it is cut: "text/markdown" by its headings.
        owner: Who may change it.
        collections: Names of the groups that it is in.

    Raises:
        InvalidInput: The text is empty, or a value is of another type.
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
        for name in TEXTS:
            check_kind(f"the {name} {who}", getattr(self, name), str, "a text")
        if not self.text.strip():
            raise InvalidInput(f"the text {who} is empty; give it some, or leave the document out")
        if not isinstance(self.metadata, Mapping):
            raise InvalidInput(f"the metadata {who} are a {type(self.metadata).__name__}; expected a mapping")
        texts = isinstance(self.collections, tuple | list) and all(isinstance(name, str) for name in self.collections)
        if not texts:
            raise InvalidInput(f"the collections {who} are {self.collections!r}; expected a tuple of texts")

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
            metadata=dict(self.metadata),
            owner=self.owner,
            collections=self.collections,
        )


def as_documents(given: RagDocument | str | Iterable[RagDocument | str]) -> list[Document]:
    """The documents given, each once; a str is the text of one.

    Of documents without id whose texts differ in white space only the last stands, as it does when they come one after
    the other.

    Raises:
        InvalidInput: One is empty or something else; or two that differ have one id, or no id and one text.
    """
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    documents: dict[str, Document] = {}
    for item in several:
        if not isinstance(item, RagDocument | str):
            raise InvalidInput(
                f"cannot ingest a {type(item).__name__}; give a text, RagDocument or RagDocument.file(path)"
            )
        one = RagDocument(item) if isinstance(item, str) else item
        document = one.document()
        known = documents.get(document.id, document)
        if known != document and one.id:
            raise InvalidInput(f"two different documents have the id {document.id!r}; give each an id of its own")
        if msgspec.structs.replace(known, text=document.text) != document:
            raise InvalidInput(
                "two documents without id have the same text and differ otherwise; give each an id of its own: "
                f"{document.text[:80]!r}"
            )
        documents[document.id] = document
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
