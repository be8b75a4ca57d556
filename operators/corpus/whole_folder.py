"""Folders that are there wholly or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import InvalidInput
from operators.corpus.commit import storage_errors
from operators.corpus.files import WriterLock


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to fill inside the block; when the block ends well, all of it is on the disk under its name.

    It is filled in `.NAME.unfinished` beside its place, which is gone afterwards, whatever happens; what a killed
    process left there is removed by the next one.

    Args:
        target: Its name: free, or that of an empty folder.

    Raises:
        InvalidInput: The name is taken, or another process is filling the folder.
        StorageError: The disk refused.
    """
    refuse_taken(target)
    with storage_errors(f"{target} is not made"):
        workplace = target.parent / f".{target.name}.unfinished"
        workplace.mkdir(parents=True, exist_ok=True)
        lock = _lock(workplace, target)
        unfinished = workplace / target.name
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            yield unfinished
            _sync(unfinished)
            unfinished.replace(target)
            _sync_one(target.parent)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
            lock.release()


def refuse_taken(target: Path) -> None:
    """Refuses a name under which there is something.

    Raises:
        InvalidInput: It is taken.
    """
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise InvalidInput(f"{target} is there already; name a folder that does not exist yet, or is empty")


def _lock(workplace: Path, target: Path) -> WriterLock:
    try:
        return WriterLock(workplace)
    except InvalidInput as error:
        raise InvalidInput(f"another process is making {target} now; wait until it ends, or name another") from error


def _sync(folder: Path) -> None:
    for here, _, files in os.walk(folder):
        for name in files:
            _sync_one(Path(here) / name)
        _sync_one(Path(here))


def _sync_one(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
