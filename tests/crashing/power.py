"""What a disk may hold when the power goes: logged system calls played onto a model of files and folders.

The model is that of Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), at its weakest: what was not
synced may be lost, in any part and order inside a file; names in a folder are lost from the end, unless it was synced.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path, PurePosixPath

from tests.crashing.preload import Call

_BLOCK = 4096
_NOT_ON_DISK = "-shm"  # SQLite's map of its log is memory of living processes; it is made anew


class File:
    """Bytes as the system shows them, as they were last synced, and the calls between the two."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = bytes(content)
        self.pending: list[Call] = []

    def play(self, call: Call) -> None:
        """Applies a write or a change of size."""
        self.pending.append(call)
        _apply(self.content, call)

    def sync(self) -> None:
        """What is there now stays."""
        self.synced = bytes(self.content)
        self.pending.clear()

    def torn(self, chance: random.Random) -> bytes:
        """The synced bytes and some blocks of what came later."""
        content = bytearray(self.synced)
        for call in self.pending:
            for start in range(0, max(1, len(call.data)), _BLOCK):
                if chance.random() < 0.5:
                    part = call.data[start : start + _BLOCK]
                    _apply(content, call._replace(data=part, offset=call.offset + start if part else call.offset))
        return bytes(content)


def _apply(content: bytearray, call: Call) -> None:
    end = call.offset + len(call.data) if call.kind == "w" else call.offset
    if call.kind == "t" or len(content) < end:
        content[end:] = bytes(max(0, end - len(content)))
    if call.kind == "w":
        content[call.offset : end] = call.data


Names = dict[str, File]


class Disk:
    """Files below one folder, played forward call by call.

    Args:
        folder: What is there at the beginning, all of it synced.
        prefix: Only names that begin so are played; they are relative to the root of the log.
    """

    def __init__(self, folder: Path, prefix: str) -> None:
        self._prefix = prefix + "/"
        paths = [p for p in folder.rglob("*") if p.is_file()]
        self._names: Names = {p.relative_to(folder).as_posix(): File(p.read_bytes()) for p in paths}
        self._folders = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_dir()}
        self._synced = dict(self._names)
        self._pending: dict[str, list[tuple[str, File | None]]] = defaultdict(list)  # by folder: names set or removed

    def play(self, call: Call) -> None:
        """Applies one call."""
        if not call.path.startswith(self._prefix):
            return
        path, other = call.path.removeprefix(self._prefix), call.other.removeprefix(self._prefix)
        if call.kind == "m":
            self._folders.add(path)
        elif call.kind == "s" and path in self._folders:
            self._sync_folder(path)
        elif call.kind == "r":
            self._name(other, self._names[path])
            self._name(path, None)
        elif call.kind == "u":
            self._name(path, None)
        elif call.kind == "o" and path not in self._names:
            self._name(path, File())
        elif call.kind == "o" and call.offset:
            self._names[path].play(call._replace(kind="t", offset=0))
        elif call.kind == "s":
            self._file(path).sync()
        elif call.kind in "wt":
            self._file(path).play(call)

    def _file(self, path: str) -> File:
        """The file of that name; one that was deleted while open is nobody's."""
        return self._names.get(path) or File()

    def _name(self, path: str, file: File | None) -> None:
        self._pending[str(PurePosixPath(path).parent)].append((path, file))
        _set(self._names, path, file)

    def _sync_folder(self, path: str) -> None:
        for name, file in self._pending.pop(path, []):
            _set(self._synced, name, file)

    def all(self) -> dict[str, bytes]:
        """Everything: as when the process dies and the machine lives."""
        return {name: bytes(file.content) for name, file in self._names.items()}

    def least(self) -> dict[str, bytes]:
        """What was synced."""
        return {name: file.synced for name, file in self._synced.items()}

    def mixed(self, chance: random.Random) -> dict[str, bytes]:
        """That, and some of the rest."""
        names = dict(self._synced)
        for pending in self._pending.values():
            for name, file in pending[: chance.randint(0, len(pending))]:
                _set(names, name, file)
        return {name: file.torn(chance) for name, file in names.items()}

    def write(self, state: dict[str, bytes], folder: Path) -> None:
        """Puts one of those states into a new folder."""
        folder.mkdir()
        for name in sorted(self._folders):
            (folder / name).mkdir(parents=True)
        for name, content in state.items():
            if not name.endswith(_NOT_ON_DISK):
                (folder / name).write_bytes(content)


def _set(names: Names, path: str, file: File | None) -> None:
    if file is None:
        names.pop(path, None)
    else:
        names[path] = file
