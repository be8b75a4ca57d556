"""What an ingest reads: the files that were found, as batches of documents of bounded size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from engine.errors import InvalidInput
from operators.corpus.content import check
from operators.messages import Document, Skipped
from operators.read import Source, find_sources, read_documents

BATCH_ITEMS = 64  # documents, and files or lines that could not be read
BATCH_CHARACTERS = 64_000
"""A batch is acknowledged as a whole; some 100 chunks, a second's work for a CPU, are little to lose in a crash."""

_SAMPLE_BYTES = 1 << 20


class Found(msgspec.Struct, frozen=True):
    """What there is to read, and what cannot be."""

    sources: list[Source]
    skipped: list[Skipped]
    size_bytes: int


class Batch(msgspec.Struct, frozen=True):
    """Documents that are ingested together, and how much of what was found has been read with them."""

    documents: list[Document]
    skipped: list[Skipped]
    sources: int  # read to their ends
    size_bytes: int


class Tenancy(msgspec.Struct, frozen=True):
    """Whose the documents are, and the collections that they go into."""

    owner: str = ""
    collections: tuple[str, ...] = ()


class SeenIds:
    """Which document ids came before; about 100 bytes each, for it keeps 8 bytes of a hash.

    Of a million ids two share a hash with a probability of one in 37 million: the second would not be ingested, and the
    report would say so.
    """

    def __init__(self) -> None:
        self._hashes: set[bytes] = set()

    def is_new(self, document_id: str) -> bool:
        """Whether it comes for the first time."""
        digest = hashlib.blake2b(document_id.encode(errors="surrogatepass"), digest_size=8).digest()
        known = len(self._hashes)
        self._hashes.add(digest)
        return len(self._hashes) > known


def find(paths: Sequence[Path]) -> Found:
    """All files under the paths; takes about half a KiB of memory a file.

    Raises:
        InvalidInput: A path does not exist, or a folder holds nothing to read.
    """
    found = list(find_sources(paths))
    sources = [one for one in found if isinstance(one, Source)]
    skipped = [Skipped(_printable(one.path), one.reason) for one in found if isinstance(one, Skipped)]
    return Found(sources, skipped, sum(map(_size_bytes, sources)))


def read_batches(sources: Iterable[Source], tenancy: Tenancy) -> Iterator[Batch]:
    """The documents of the sources in order, in batches of bounded size; only one document may be larger than that."""
    filling = _Filling(tenancy)
    for source in sources:
        position = _Position(source)
        for read in _read(source):
            filling.take(read, position.advance(read))
            if filling.is_full:
                yield filling.emptied()
        filling.end_source(position.rest())
    yield filling.emptied()


def without_repeats(batch: Batch, seen: SeenIds) -> Batch:
    """The batch without documents whose ids came before in this run: of those the first is taken."""
    repeated = [d for d in batch.documents if not seen.is_new(d.id)]
    if not repeated:
        return batch
    gone = set(map(id, repeated))
    reasons = [
        Skipped(d.source or d.id, f"its id {d.id!r} came before in this run; give the two different names")
        for d in repeated
    ]
    documents = [d for d in batch.documents if id(d) not in gone]
    return msgspec.structs.replace(batch, documents=documents, skipped=batch.skipped + reasons)


class _Filling:
    """The batch that is being read."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._begin()

    def _begin(self) -> None:
        self._documents: list[Document] = []
        self._skipped: list[Skipped] = []
        self._characters = self._sources = self._size_bytes = 0

    def take(self, read: Document | Skipped, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if isinstance(read, Skipped):
            self._skipped.append(read)
            return
        owner, collections = self._tenancy.owner, self._tenancy.collections
        self._documents.append(msgspec.structs.replace(read, owner=owner, collections=collections))
        self._characters += len(read.text)

    def end_source(self, size_bytes: int) -> None:
        self._sources += 1
        self._size_bytes += size_bytes

    @property
    def is_full(self) -> bool:
        items = len(self._documents) + len(self._skipped)
        return items >= BATCH_ITEMS or self._characters >= BATCH_CHARACTERS

    def emptied(self) -> Batch:
        batch = Batch(self._documents, self._skipped, self._sources, self._size_bytes)
        self._begin()
        return batch


class _Position:
    """How far a source has been read; in a BEIR file by the number of the line, and how long lines are at its start."""

    def __init__(self, source: Source) -> None:
        self._left = _size_bytes(source)
        self._line_bytes = _line_bytes(source) if source.kind == "beir" else 0.0
        self._line = 0

    def advance(self, read: Document | Skipped) -> int:
        """Bytes on the way to what was read just now."""
        line = _line(read.path if isinstance(read, Skipped) else read.source) if self._line_bytes else 0
        size_bytes = min(self._left, int(self._line_bytes * max(0, line - self._line)))
        self._line, self._left = max(line, self._line), self._left - size_bytes
        return size_bytes

    def rest(self) -> int:
        """Bytes on the way to the end."""
        return self._left


def _read(source: Source) -> Iterator[Document | Skipped]:
    """What is in a source and can be stored; a defect in reading it is told like any other reason why it cannot be."""
    if (path := _printable(source.path)) != source.path:
        yield Skipped(path, "its name is not in UTF-8; rename it")
        return
    try:
        yield from map(_storable, read_documents(source))
    except Exception as error:  # noqa: BLE001 - the supervisor boundary: recorded as this file's row in the report
        reason = f"reading it failed ({type(error).__name__}: {error}); save it in another format, and report this"
        yield Skipped(source.path, reason)


def _storable(read: Document | Skipped) -> Document | Skipped:
    """What was read; a document that the corpus would refuse, and with it the others of its batch, as such."""
    if isinstance(read, Document):
        try:
            check(read)
        except InvalidInput as error:
            return Skipped(read.source or read.id, f"it was refused: {error.message}")
    return read


def _printable(path: str) -> str:
    """The path with the bytes of its name that are no UTF-8, which Python keeps as lone surrogates, written out."""
    return path.encode(errors="backslashreplace").decode()


def _size_bytes(source: Source) -> int:
    try:
        return Path(source.path).stat().st_size
    except OSError:  # it has gone: reading it will tell
        return 0


def _line_bytes(source: Source) -> float:
    """How long a line of a BEIR file is, by its first MiB; 0 when it cannot be read."""
    try:
        with Path(source.path).open("rb") as file:
            head = file.read(_SAMPLE_BYTES)
    except OSError:  # as above
        return 0.0
    return len(head) / max(1, head.count(b"\n"))


def _line(place: str) -> int:
    """The line of `corpus.jsonl:17`; 0 for a place without one."""
    number = place.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0
