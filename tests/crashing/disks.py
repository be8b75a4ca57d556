"""Disks that refuse: full, read-only or broken ones, from some system call on; and a small file system that is."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import sqlite3
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.errors import HeadraceError, StorageError
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from tests.crashing.children import Child
from tests.crashing.histories import (
    Operation,
    Rows,
    applied,
    carry_out,
    check_indexes,
    difference,
    stored,
)
from tests.crashing.preload import CHANGES, FAIL, NEEDS_ROOM, Control
from tests.crashing.script import BEFORE, HISTORY, SCRIPT, Stage, sample, told
from tests.operators.corpus.conftest import DIMENSION

BROKEN = (errno.EIO, CHANGES + "s")
REFUSALS = ((errno.ENOSPC, NEEDS_ROOM), (errno.EROFS, CHANGES), BROKEN)
GOES_ON, CLOSED_MEANWHILE, CLOSED_AFTERWARDS = ENDS = "then well", "closed meanwhile", "then well and closed"
AFTERWARDS = [Operation("write", ("0.0", "0.9"), 30), Operation("patch", ("0.9",), 31)]
_BALLAST_BYTES = 1 << 20
_AT_ONCE = 32  # documents of a write that is to fill a disk


def refusing_disks(stage: Stage, count: int | None, chance: random.Random) -> dict[str, Any]:
    """Lets the disk refuse from one call of the script on; the process lives on, and works when it refuses no more."""
    calls, acknowledged = stage.record()
    syncs = [n for n, call in enumerate(calls, 1) if call.kind == "s"]
    points = [(n, *refusal) for n in range(1, len(calls) + 1) for refusal in REFUSALS]
    points = [(*point, ENDS[sum(point[:2]) % len(ENDS)]) for point in points]  # each end for a third of them
    points += sorted({(n, *BROKEN, end) for n in syncs for end in ENDS} - set(points))
    first_commit = max(n for n in syncs if n <= acknowledged[0][1] and calls[n - 1].path.endswith("-wal"))
    in_doubt = [(first_commit, *BROKEN, end) for end in (CLOSED_MEANWHILE, CLOSED_AFTERWARDS)]
    some = [*sample(points, count, chance), *in_doubt]
    refused, found, sufferer = 0, 0, Child(_endure)
    for order in told(some, "refusals"):
        stage.begin()
        sufferer.tell(str(stage.corpus), stage.page, order)
        try:
            more, was_found = sufferer.hear()
            refused, found = refused + more, found + was_found
        except AssertionError as error:
            what = f"{errno.errorcode[order[1]]} from system call {order[0]} of {len(calls)} on, {order[3]}"
            raise AssertionError(f"{what}: {error}") from error
    return {
        "system_calls": len(calls), "points": len(points), "disks": len(some), "operations_refused": refused,
        "in_doubt_and_found_again": found,
    }  # fmt: skip


async def _endure(line: Connection, task: tuple[str, Path, tuple[int, int, str, str]]) -> None:
    """Plays the script on one refusing disk after the other; says of each what `_refused` does."""
    while True:
        directory, page, order = task
        line.send(await _refused(directory, Control(page), order))
        task = line.recv()


async def _refused(directory: str, control: Control, order: tuple[int, int, str, str]) -> tuple[int, bool]:
    """How many operations one disk refused, and whether one of them was in doubt and is there after all."""
    at, error, calls, end = order
    control.order(at, FAIL, error=error, calls=calls)
    try:
        shard, refused = Shard.open(directory, 0, writable=True), 0
    except HeadraceError:
        control.order()
        shard, refused = Shard.open(directory, 0, writable=True), 1
    rows, doubtful, more = await _as_far_as_possible(shard)
    if end == CLOSED_MEANWHILE:
        with contextlib.suppress(HeadraceError):
            await shard.aclose()
    control.order()
    if end == CLOSED_AFTERWARDS:
        await _closed_and_killed(shard, Path(directory))
    there = rows
    if end != GOES_ON:
        shard = Shard.open(directory, 0, writable=True)
        there = await _either(shard, rows, doubtful if end == CLOSED_MEANWHILE else rows, "opened again")
    await _work_again(shard, directory, there)
    return refused + more, there != rows


async def _closed_and_killed(shard: Shard, directory: Path) -> None:
    """Closes the shard while someone else reads, so that SQLite keeps its log, and then kills them."""
    left = directory.with_name("left")
    (store,) = directory.glob("shards/*/store.sqlite")
    with contextlib.closing(sqlite3.connect(store)) as reader:
        reader.execute("SELECT seq FROM state").fetchone()
        await shard.aclose()
        shutil.copytree(directory, left, ignore=shutil.ignore_patterns("*-shm"))
    shutil.rmtree(directory)
    left.rename(directory)


async def _as_far_as_possible(shard: Shard) -> tuple[Rows, Rows, int]:
    """The script; a refused operation was done wholly or not at all.

    Returns:
        The rows that are left, those that may be found when the disk does not let it be closed, and refusals.
    """
    rows = doubtful = HISTORY[0]
    refused = 0
    for one in SCRIPT:
        try:
            await carry_out(shard, one, rows)
            if applied(rows, one) != rows:  # else nothing was written over what is in doubt
                rows = doubtful = applied(rows, one)
        except StorageError as error:
            refused += 1
            rows, before = await _either(shard, rows, applied(rows, one), f"after the refusal of {one}"), rows
            if error.in_doubt:
                assert rows == before, f"{one} was in doubt, and could be seen"
                doubtful = applied(rows, one)
            elif rows != before:
                doubtful = rows
    return rows, doubtful, refused


async def _either(shard: Shard, before: Rows, after: Rows, what: str) -> Rows:
    there = await stored(shard)
    assert there in (before, after), f"{what}: {difference(before, there)}, nor {difference(after, there)}"
    return there


async def _work_again(shard: Shard, directory: str, rows: Rows) -> None:
    """Writes, searches and closes; then the same is found by a writer and by a reader that open it."""
    for one in AFTERWARDS:
        await carry_out(shard, one, rows)
        rows = applied(rows, one)
    await check_indexes(shard, rows)
    await shard.aclose()
    await _reopened(directory, rows)


async def _reopened(directory: str, rows: Rows) -> None:
    for writable in (True, False):
        shard = Shard.open(directory, 0, writable=writable)
        there = await stored(shard)
        assert there == rows, difference(rows, there)
        await check_indexes(shard, rows)
        await shard.aclose()


# A real one


def small_file_system(folder: Path) -> dict[str, Any]:
    """Fills the file system that is mounted at `folder` until it refuses, frees some of it, then makes it read-only."""
    child = Child(_fill)
    child.tell(folder)
    return dict(child.last_words())


async def _fill(line: Connection, task: tuple[Path]) -> None:
    (folder,) = task
    directory, ballast = folder / "corpus", folder / "ballast"
    create_corpus(directory, CorpusConfig(embedder="test", dimension=DIMENSION))
    ballast.write_bytes(bytes(_BALLAST_BYTES))
    shard = Shard.open(str(directory), 0, writable=True)
    rows, said = await _filled(shard)
    line.send(("documents_when_full", len(rows)))
    line.send(("refusal", said))
    ballast.unlink()
    await _work_again(shard, str(directory), rows)
    for one in AFTERWARDS:
        rows = applied(rows, one)
    _remount(folder, "ro")
    line.send(("read_only_for_writing", await _opened(str(directory), rows, writable=True)))
    line.send(("read_only_for_reading", await _opened(str(directory), rows, writable=False)))
    _remount(folder, "rw")
    await _reopened(str(directory), rows)


async def _filled(shard: Shard) -> tuple[Rows, str]:
    """Writes until three writes were refused; what is stored then, and what the last refusal said."""
    rows, said, refused, number = dict[str, Any](), "", 0, 1_000
    for one in BEFORE:
        await carry_out(shard, one, rows)
        rows = applied(rows, one)
    while refused < 3:
        number += 1
        one = Operation("write", tuple(f"0.{number}x{n}" for n in range(_AT_ONCE)), number)
        try:
            await carry_out(shard, one, rows)
            rows = applied(rows, one)
        except HeadraceError as error:
            refused, said = refused + 1, str(error)
            rows = await _either(shard, rows, applied(rows, one), "after a refusal")
    return rows, said


async def _opened(directory: str, rows: Rows, *, writable: bool) -> str:
    try:
        shard = Shard.open(directory, 0, writable=writable)
    except HeadraceError as error:
        return str(error)
    there = await stored(shard)
    assert there == rows, difference(rows, there)
    await shard.aclose()
    return "opened"


def _remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)
