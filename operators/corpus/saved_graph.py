"""How a dense index lies on the disk: the graph in a file of hnswlib's, the rest in a description written after it."""

from __future__ import annotations

import errno
import os
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from operators.corpus.files import publish, write_whole
from operators.corpus.graph import Graph
from operators.corpus.manifest import CorpusConfig

_DESCRIPTION = "dense.json"


class _Saved(msgspec.Struct, frozen=True):
    """What must be true of the graph's file; written last, so a description always has its graph."""

    seq: int
    file: str
    size_bytes: int
    crc32: int  # of the file, then of the keys
    keys: bytes  # int64[R], little-endian, -1 for dead rows


def save_graph(folder: Path, graph: Graph, seq: int) -> None:
    """Puts a graph on the disk in the place of the one that is there; a crash at any moment leaves one of them whole.

    The graph must not be changed meanwhile; from then on it reads its vectors from the file.

    Raises:
        OSError: The disk refused; what was saved before is still there.
    """
    names = (f"dense-{seq}{again}.hnsw" for again in ("", *(f"-{n}" for n in range(1, 1_000))))
    path = next(folder / name for name in names if not (folder / name).exists())
    unfinished = path.with_name(path.name + ".unfinished")
    keys = graph.table.keys.astype("<i8").tobytes()
    try:
        unfinished.touch()  # hnswlib is silent about files that it cannot write, or not wholly
        graph.save(unfinished)
        size_bytes, crc32 = _checksum(unfinished)
        if size_bytes != graph.size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(unfinished))
        publish(unfinished, path)
        saved = _Saved(seq, path.name, size_bytes, zlib.crc32(keys, crc32), keys)
        write_whole(folder / _DESCRIPTION, msgspec.json.encode(saved))
        graph.lean_on(path)
    finally:
        _tidy(folder)


def _tidy(folder: Path) -> None:
    """Removes the files that the description does not name, as far as the disk lets it: the next save tries again."""
    description = folder / _DESCRIPTION
    with suppress(OSError, msgspec.DecodeError):
        named = msgspec.json.decode(description.read_bytes(), type=_Saved).file if description.exists() else ""
        for file in folder.glob("dense*"):
            if file.name not in (named, description.name):
                file.unlink()


def load_graph(folder: Path, config: CorpusConfig) -> tuple[Graph, int, str]:
    """The saved graph, the number of the last change in it, and "".

    When there is none, or one that cannot be used: an empty one, 0, and why it cannot.
    """
    description = folder / _DESCRIPTION
    if not description.exists():
        return Graph(config), 0, ""
    raw = b""
    try:
        raw = description.read_bytes()
        saved = msgspec.json.decode(raw, type=_Saved)
        return _load(folder / saved.file, saved, config), saved.seq, ""
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError is hnswlib's, msgspec's is a ValueError
        if raw and description.read_bytes() != raw:
            return load_graph(folder, config)  # the shard's writer has saved meanwhile, and removed that file
        return Graph(config), 0, f"the saved dense index cannot be used ({error})"


def _load(path: Path, saved: _Saved, config: CorpusConfig) -> Graph:
    size_bytes, crc32 = _checksum(path)
    if (size_bytes, zlib.crc32(saved.keys, crc32)) != (saved.size_bytes, saved.crc32):
        raise ValueError(f"{path.name} is damaged")
    return Graph(config, keys=np.frombuffer(saved.keys, "<i8").astype(np.int64), file=path)


def _checksum(path: Path) -> tuple[int, int]:
    size, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc
