"""Documents from files and folders, and what was left out and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from engine.errors import InvalidInput
from operators.beir import CORPUS, read_corpus
from operators.chunk_structure import first_heading
from operators.convert import convert
from operators.decode import NotText, binary_reason, decode, is_binary
from operators.file_types import KINDS, is_converted, is_source, media_type
from operators.messages import Document, Skipped

_PASSED_OVER = frozenset({"__pycache__", "node_modules", "venv", "env", "site-packages", "CVS"})
_SNIFFED = 8192  # bytes in which a NUL shows a binary file before all of it is read


class ReadConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of reading.

    Args:
        max_bytes: The largest text of one document; also the longest line of a corpus.jsonl. PDF and office files,
            which are larger than their text, may have four times that.

    Raises:
        InvalidInput: The limit is below 1 KiB.
    """

    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.max_bytes < 1024:
            raise InvalidInput(f"read.max_bytes is {self.max_bytes}; expected at least 1,024, usually {64 << 20:,}")


class Source(msgspec.Struct, frozen=True):
    """A file to read.

    The id of a file's document is its path from the folder that holds what was named: `headrace ingest /home/me/docs`
    gives "docs/guide/start.md", whoever runs it and from wherever, so that reading it again replaces it. Documents of
    a BEIR corpus have ids of their own.
    """

    path: str
    id: str
    kind: Literal["file", "beir"] = "file"


def find_sources(paths: Sequence[Path]) -> Iterator[Source | Skipped]:
    """The files to read under `paths`, in order of the arguments, then by name, files before folders.

    Hidden files and folders, version control, caches, `node_modules` and virtual environments are passed over, unless
    named themselves. In a folder with a `corpus.jsonl` (BEIR layout) only that is read.

    Args:
        paths: Files and folders. What is reached twice is read once.

    Yields:
        Sources, and what cannot be read: links to folders, folders without permission, files whose id is taken.

    Raises:
        InvalidInput: At once, before anything is yielded: a path does not exist, or a folder holds nothing to read.
    """
    roots = [Path(os.path.abspath(Path(path).expanduser())) for path in paths]
    if not roots:
        raise InvalidInput("nothing to read: give files or folders")
    for root, path in zip(roots, paths, strict=True):
        if not root.exists():
            raise InvalidInput(f"{str(path)!r} does not exist; give a file or a folder that does")
        if next(_walk(root), None) is None:
            raise InvalidInput(f"the folder {str(path)!r} holds nothing to read; put files in it: {KINDS}")
    return _without_repeats(roots)


def read_documents(source: Source, config: ReadConfig | None = None) -> Iterator[Document | Skipped]:
    r"""The documents of a source: one of a file, one a line of a BEIR corpus.

    Text is kept as it is, but for line endings, which become `\n`; HTML, PDF and office files become Markdown. The
    title is that of the file, its first heading, or its name. What cannot be read is yielded as `Skipped`, with a
    reason that says what to do; it never raises for what a file holds.
    """
    config = config or ReadConfig()
    path = Path(source.path)
    try:
        if source.kind == "beir":
            yield from read_corpus(path, source.id, max_bytes=config.max_bytes)
        else:
            yield _document(source, path, config.max_bytes)
    except NotText as error:
        yield Skipped(source.path, str(error))
    except PermissionError:
        yield Skipped(source.path, "no permission to read it; change that, or run as a user who may")
    except OSError as error:
        yield Skipped(source.path, f"cannot be read ({error.strerror or error}); see whether it is still there")


def _document(source: Source, path: Path, max_bytes: int) -> Document:
    """The file's document.

    Raises:
        NotText: It holds no text that can be read.
    """
    converted = is_converted(path.name)
    _check_file(path, 4 * max_bytes if converted else max_bytes, sniff=not converted)
    text, title = convert(path, max_bytes=max_bytes) if converted else (decode(path.read_bytes(), path.name), "")
    if not text.strip():
        hint = "; a scan has to be made readable by text recognition (OCR) first" if path.suffix == ".pdf" else ""
        raise NotText(f"no text in it{hint}")
    if len(text) > max_bytes:
        raise NotText(_too_large(len(text), max_bytes))
    if is_source(path.name):
        title = path.name
    elif not title and media_type(path.name) not in {"text/csv", "text/tab-separated-values"}:
        title = first_heading(text)
    return Document(
        id=source.id, title=title or path.stem, text=text, source=source.path, media_type=media_type(path.name)
    )


def _check_file(path: Path, limit: int, *, sniff: bool) -> None:
    """Refuse what should not be read into memory.

    Raises:
        NotText: It is no ordinary file, too large, or binary.
    """
    if not path.is_file():
        path.stat()  # a file that is gone raises what is the case
        raise NotText("not an ordinary file; give one")
    if sniff:
        with path.open("rb") as file:
            if is_binary(file.read(_SNIFFED)):
                raise NotText(binary_reason(path.name))
    size = path.stat().st_size
    if size > limit:
        raise NotText(_too_large(size, limit))


def _too_large(size: int, limit: int) -> str:
    mebi = 1 << 20
    return f"{size / mebi:,.1f} MiB, above the limit of {limit / mebi:,.1f} MiB; split it, or raise read.max_bytes"


def _without_repeats(roots: Sequence[Path]) -> Iterator[Source | Skipped]:
    """What the roots hold; a file that two of them reach is read once, two files never share an id."""
    seen: dict[str, str] = {}  # id to path
    paths: set[str] = set()
    for root in roots:
        for source in _walk(root):
            if isinstance(source, Skipped):
                yield source
            elif source.path not in paths:
                paths.add(source.path)
                taken = seen.setdefault(source.id, source.path)
                yield (
                    source
                    if taken == source.path
                    else Skipped(
                        source.path,
                        f"its document id {source.id!r} is that of {taken}, read before; name a folder that holds both",
                    )
                )


def _walk(root: Path) -> Iterator[Source | Skipped]:
    """Sources under one file or folder."""
    if not root.is_dir():
        yield _source(root, root.parent)
        return
    unreadable: list[OSError] = []
    for folder, folders, files in os.walk(root, onerror=unreadable.append):
        here = Path(folder)
        while unreadable:
            yield _unreadable(unreadable.pop())
        if CORPUS in files:
            folders.clear()
            yield _source(here / CORPUS, root.parent)
            continue
        for name in sorted(files):
            if not name.startswith("."):
                yield _source(here / name, root.parent)
        links = sorted(name for name in folders if _is_wanted(here / name) and (here / name).is_symlink())
        for name in links:
            yield Skipped(
                str(here / name), "a link to a folder, which may lead in a circle; name its target to read it"
            )
        folders[:] = sorted(name for name in folders if _is_wanted(here / name) and name not in links)
    while unreadable:
        yield _unreadable(unreadable.pop())


def _source(path: Path, base: Path) -> Source:
    kind: Literal["file", "beir"] = "beir" if path.name == CORPUS else "file"
    return Source(str(path), path.relative_to(base).as_posix(), kind)


def _is_wanted(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _PASSED_OVER
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _unreadable(error: OSError) -> Skipped:
    return Skipped(str(error.filename), f"a folder that cannot be listed ({error.strerror}); change its permissions")
