"""Corpora in BEIR layout: `corpus.jsonl` with one document a line (Thakur et al. 2021, arXiv:2104.08663)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from operators.messages import Document, Metadata, Skipped

CORPUS = "corpus.jsonl"

_decode_line = msgspec.json.Decoder(dict[str, object])


def read_corpus(path: Path, name: str, *, max_bytes: int) -> Iterator[Document | Skipped]:
    """Documents of a corpus file, one line after the other; memory for one line only.

    `_id`, `title` and `text` are the document's; the entries of `metadata` and all other fields become its metadata.
    A line that is no document is skipped and named, `corpus.jsonl:17`.

    Args:
        path: The file.
        name: What to call it in what is skipped.
        max_bytes: The longest line.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in _lines(file, max_bytes):
            place = f"{name}:{number}"
            if line is None:
                yield Skipped(place, f"a line above the limit of {max_bytes >> 20:,} MiB; split the document")
            elif line.strip():
                yield _document(line, place)


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Each line with its number, counted from 1; None for one that is too long, which is passed over in pieces."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) <= max_bytes:
            yield number, line
            continue
        while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
            pass
        yield number, None


def _document(line: bytes, place: str) -> Document | Skipped:
    try:
        fields = _decode_line.decode(line.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Skipped(place, f"not a JSON object ({error}); write one object a line")
    identifier, title, text = (fields.pop(name, None) for name in ("_id", "title", "text"))
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    if not isinstance(identifier, str) or not identifier.strip():
        return Skipped(place, 'no "_id"; give every document one, a string that stays the same')
    title, text = title if title is not None else "", text if text is not None else ""
    if not isinstance(title, str) or not isinstance(text, str):
        return Skipped(place, '"title" and "text" must be strings; write them so')
    if not text.strip():
        return Skipped(place, "no text; nothing to search")
    return Document(id=identifier, title=title.strip(), text=text, source=place, metadata=_metadata(fields))


def _metadata(fields: dict[str, object]) -> Metadata:
    nested = fields.pop("metadata", None)
    if isinstance(nested, dict):
        return {**nested, **fields}
    return fields if nested is None else {**fields, "metadata": nested}
