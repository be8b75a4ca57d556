"""The Python side of preload.c: builds it, tells it when to strike, reads what it logged."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("preload.c")
_CONTROL = struct.Struct("<QQIIII")
_RECORD = struct.Struct("<IIIIQ")

ROOT = "CRASH_ROOT"
KILL, TEAR, FAIL = 1, 2, 3
NEEDS_ROOM = "owm"  # kinds of calls that a full disk refuses: open (of a new file), write, mkdir
CHANGES = "owtrumd"  # kinds that a read-only one refuses; "s" is fsync


def build(folder: Path) -> Path | None:
    """Compiles the library into `folder`; None when there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "preload.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE)]
    subprocess.run([*command, "-ldl"], check=True)
    return library


class Control:
    """The page that is shared with the library; in a process without it orders go nowhere.

    Args:
        path: The file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_CONTROL.size))
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _CONTROL.size)

    @property
    def count(self) -> int:
        """Calls so far since the last order."""
        return int(_CONTROL.unpack(self._page[:])[0])

    def order(self, at: int = 0, action: int = 0, *, error: int = 0, calls: str = "", log: bool = False) -> None:
        """Counts from 0 again, and acts at call `at`, counted from 1; 0: never.

        Args:
            at: The call.
            action: KILL before it is made, TEAR it in the middle, or let it and all later ones FAIL.
            error: With FAIL, the errno.
            calls: With FAIL, the kinds that fail; a string of the letters of preload.c.
            log: Whether calls are logged.
        """
        mask = sum(1 << (ord(kind) - ord("a")) for kind in calls)
        self._page[:] = _CONTROL.pack(0, at, action, error, mask, log)


def environment(library: Path, *, root: Path, control: Path, log: Path | None = None) -> dict[str, str]:
    """The environment of a process in which the library watches `root`."""
    watched = {"LD_PRELOAD": str(library), ROOT: str(root), "CRASH_CONTROL": str(control)}
    return {**os.environ, **watched, **({"CRASH_LOG": str(log)} if log else {})}


class Call(NamedTuple):
    """One logged call, in the order in which they took effect; paths are relative to the root."""

    kind: str
    path: str
    other: str
    data: bytes
    offset: int


def read_log(path: Path) -> Iterator[Call]:
    """What the library logged."""
    raw = path.read_bytes()
    at = 0
    while at < len(raw):
        kind, *sizes, offset = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        parts = []
        for size in sizes:
            parts.append(raw[at : at + size])
            at += size
        yield Call(chr(kind), parts[0].decode(), parts[1].decode(), parts[2], offset)
