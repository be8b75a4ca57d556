"""Files that are there wholly or not at all, and the lock that keeps a second writer out."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from engine.errors import InvalidInput


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file at once: a crash at any moment leaves the old bytes or the new ones."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(data)
    publish(unfinished, path)


def publish(unfinished: Path, path: Path) -> None:
    """Gives a finished file its name; it and its name are on the disk when this returns."""
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class WriterLock:
    """Says that this open shard is the one that writes; it is gone with the process, however that ends.

    Args:
        folder: The shard's.

    Raises:
        InvalidInput: Someone else writes there.
        OSError: The disk refused; the lock is not held.
    """

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.write(self._file, str(os.getpid()).encode())
        except BlockingIOError as error:
            holder = os.pread(self._file, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise InvalidInput(
                f"{folder} is being written by process {holder}, and a shard has one writer: "
                "wait until it ends, or open the shard for reading"
            ) from error
        except OSError:
            os.close(self._file)
            raise

    def release(self) -> None:
        """Lets others write."""
        os.close(self._file)
