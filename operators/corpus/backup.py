"""Backups of a corpus, made while others read it and write to it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from operators.corpus.manifest import MANIFEST, Corpus
from operators.corpus.schema import connect
from operators.corpus.whole_folder import whole_folder

_PAGES_AT_ONCE = 4096  # 16 MiB between two reports of progress
_TRIES, _LEXICAL_TRIES = 3, 10


class Backup(msgspec.Struct, frozen=True):
    """What a backup holds. Indexes that could not be copied are made anew from the database by whoever opens it."""

    directory: str
    shards: int
    size_bytes: int
    without_index: tuple[str, ...]  # folders of shards whose indexes were not copied


def back_up(corpus: Corpus, directory: Path, tell: Callable[[float], None] = lambda _: None) -> Backup:
    """Copies a corpus as it is now; the copy is a corpus, and restoring it is copying the folder back.

    Each shard is copied as it was at one moment between two changes, and other processes may go on reading and writing.
    Changes that were acknowledged before the call are in the copy; of those made meanwhile, some shards may have more.
    The folder gets its name when everything is on the disk.

    Args:
        corpus: In today's format.
        directory: Of the copy; it must not exist yet, or be empty.
        tell: Called with the share that is done, 0 to 1.

    Raises:
        InvalidInput: The directory is taken.
        StorageError: The disk refused.
    """
    without_index: list[str] = []
    with whole_folder(directory) as unfinished:
        for index in range(corpus.config.shards):
            source = corpus.shard_directory(index)
            copy = unfinished / source.relative_to(corpus.directory)
            copy.mkdir(parents=True)
            # Indexes before the database: one that is behind it follows when it is opened, one ahead could not go back.
            if not (_copied_dense(source, copy) & _copied_lexical(source / "lexical", copy / "lexical")):
                without_index.append(copy.name)
            _copy_database(source, copy, _part(tell, index, corpus.config.shards))
        shutil.copyfile(corpus.directory / MANIFEST, unfinished / MANIFEST)
        size_bytes = sum(path.stat().st_size for path in unfinished.rglob("*") if path.is_file())
    return Backup(str(directory), corpus.config.shards, size_bytes, tuple(without_index))


def _part(tell: Callable[[float], None], index: int, parts: int) -> Callable[[float], None]:
    return lambda share: tell((index + share) / parts)


def _copy_database(source: Path, copy: Path, tell: Callable[[float], None]) -> None:
    """SQLite's online backup of one moment: the open transaction keeps writers from making it begin anew."""
    with closing(connect(source / "store.sqlite")) as live, closing(sqlite3.connect(copy / "store.sqlite")) as made:
        live.execute("BEGIN")
        live.execute("SELECT seq FROM state").fetchone()  # the moment
        live.backup(made, pages=_PAGES_AT_ONCE, progress=lambda _, left, total: tell(1 - left / max(1, total)))
        live.execute("ROLLBACK")


def _copied_dense(source: Path, copy: Path) -> bool:
    """Copies the saved graph, which says what its file is called and what its checksum must be."""
    for _ in range(_TRIES):
        try:
            description = (source / "dense.json").read_bytes()
            name = msgspec.json.decode(description)["file"]
            shutil.copyfile(source / name, copy / name)
        except FileNotFoundError:  # nothing saved yet, or saved anew just now
            continue
        if (source / "dense.json").read_bytes() == description:
            (copy / "dense.json").write_bytes(description)
            return True
        (copy / name).unlink()
    return not (source / "dense.json").exists()


def _copied_lexical(source: Path, copy: Path) -> bool:
    """Copies Lucene's files, which it writes once; between two commits it deletes none that the first one names.

    A commit that comes meanwhile leaves little to copy the next time.
    """
    if not _commits(source):
        return True
    copy.mkdir()
    for _ in range(_LEXICAL_TRIES):
        before, names = _commits(source), {path.name for path in source.iterdir()} - {"write.lock"}
        whole = all(_is_copied(source / name, copy / name) for name in names)
        for path in copy.iterdir():
            if path.name not in names:
                path.unlink()
        if whole and before == _commits(source) == _commits(copy):
            return True
    shutil.rmtree(copy)
    return False


def _is_copied(file: Path, to: Path) -> bool:
    """Copies a file unless that is done; False if it went meanwhile."""
    try:
        if not to.exists() or to.stat().st_size != file.stat().st_size:
            shutil.copyfile(file, to)
    except FileNotFoundError:
        return False
    return True


def _commits(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("segments_*"))
