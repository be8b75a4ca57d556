"""One short script of operations of which every system call is known, and what may be left when it is cut off."""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
from tests.crashing.power import Disk
from tests.crashing.preload import KILL, TEAR, Call, Control, read_log
from tests.operators.corpus.conftest import DIMENSION

_TOLD_EVERY_S = 30.0

BEFORE = [Operation("write", ("0.0", "0.1", "0.2", "0.3"), 2), Operation("write", ("0.4", "0.5"), 6)]
SCRIPT = [
    Operation("write", ("0.6", "0.7"), 11),  # new
    Operation("write", ("0.0", "0.8"), 14),  # one in the place of an old version, one new
    Operation("patch", ("0.1",), 15),
    Operation("chunk", ("0.2",), 16),
    Operation("commit", ("0.0",), 17),
    Operation("collections", ("0.1", "0.6"), 18),
    Operation("delete", ("0.3", "0.5"), 19),
    Operation("delete_chunks", ("0.2",), 20),
    Operation("metadata", ("0.1",), 22),
    Operation("delete_where", ("0.0",), 23),
]


def rows_after(operations: Sequence[Operation], rows: Rows) -> list[Rows]:
    """The rows before and after each of the operations."""
    history = [rows]
    for one in operations:
        history.append(applied(history[-1], one))
    return history


HISTORY = rows_after(SCRIPT, rows_after(BEFORE, {})[-1])


async def _act(line: Connection, task: tuple[str, list[Operation], Rows, Path]) -> None:
    """Plays operations and closes, saying after each how many system calls there have been."""
    directory, operations, rows, page = task
    control = Control(page)
    shard = Shard.open(directory, 0, writable=True)
    for number, one in enumerate(operations):
        await carry_out(shard, one, rows)
        rows = applied(rows, one)
        line.send((number + 1, control.count))
    await shard.aclose()


async def _check(line: Connection, task: tuple[str, list[Rows]]) -> None:
    """Opens what is left of one corpus after the other; says which of some rows it holds."""
    while True:
        directory, candidates = task
        for writable in (True, False):  # as the writer mends it, and as another process then reads it
            shard = Shard.open(directory, 0, writable=writable)
            rows = await stored(shard)
            assert rows in candidates, " nor ".join(difference(c, rows) for c in candidates)
            await check_indexes(shard, rows)
            await shard.aclose()
        line.send(candidates.index(rows))
        task = line.recv()


class Stage:
    """A folder that the preloaded library watches, with a small corpus in it and someone to check what is left of it.

    Args:
        root: The folder; this process was started so that it is watched. Beside it are "control" and "log".
    """

    def __init__(self, root: Path) -> None:
        self.corpus, self.page = root / "corpus", root.parent / "control"
        self.control = Control(self.page)
        self.template, self._log = root / "template", root.parent / "log"
        create_corpus(self.template, CorpusConfig(embedder="test", dimension=DIMENSION))
        child = Child(_act)
        child.tell(str(self.template), BEFORE, {}, self.page)
        assert len(child.last_words()) == len(BEFORE)
        self._checker = Child(_check)

    def begin(self) -> None:
        """Puts the corpus back to its beginning."""
        self.empty()
        shutil.copytree(self.template, self.corpus)

    def empty(self) -> None:
        """Takes the corpus away."""
        shutil.rmtree(self.corpus, ignore_errors=True)

    def actor(self) -> Child:
        """A process that can play the script once."""
        return Child(_act)

    def play(self, actor: Child, at: int = 0, action: int = 0, *, log: bool = False) -> list[tuple[int, int]]:
        """Plays the script from its beginning; returns each acknowledgement with the number of calls until then."""
        self.begin()
        self.control.order(at, action, log=log)
        actor.tell(str(self.corpus), SCRIPT, HISTORY[0], self.page)
        acknowledged = actor.last_words()
        self.control.order()
        return acknowledged

    def record(self) -> tuple[list[Call], list[tuple[int, int]]]:
        """The calls of the whole script, and its acknowledgements."""
        self._log.write_bytes(b"")
        acknowledged = self.play(self.actor(), log=True)
        assert len(acknowledged) == len(SCRIPT)
        return list(read_log(self._log)), acknowledged

    def check(self, done: int, *, what: str) -> int:
        """Compares the corpus with the script's after `done` operations, or one more; returns how many it shows."""
        self._checker.tell(str(self.corpus), HISTORY[done : done + 2])
        try:
            return done + int(self._checker.hear())
        except AssertionError as error:
            raise AssertionError(f"{what}, {done} operations acknowledged: {error}") from error


def kills_at_points(stage: Stage, count: int | None, chance: random.Random) -> dict[str, Any]:
    """Kills the script before system calls, and in the middle of writes; the count says how many, None all."""
    calls, _ = stage.record()
    points = [(n, KILL) for n in range(1, len(calls) + 1)]
    points += [(n, TEAR) for n, call in enumerate(calls, 1) if call.kind == "w" and len(call.data) > 1]
    further, spare, some = 0, stage.actor(), sample(points, count, chance)
    for at, action in told(some, "kills"):
        actor, spare = spare, stage.actor()
        done = max((number for number, _ in stage.play(actor, at, action)), default=0)
        how = "in the middle of" if action == TEAR else "before"
        further += stage.check(done, what=f"killed {how} system call {at} of {len(calls)}") - done
    spare.kill()
    return {
        "system_calls": len(calls), "points": len(points), "kills": len(some),
        "operations_done_and_not_acknowledged": further,
    }  # fmt: skip


def power_cuts(stage: Stage, count: int | None, chance: random.Random) -> dict[str, Any]:
    """Builds what a disk may hold after the script's calls: all of it, only what was synced, or a mixture."""
    calls, acknowledged = stage.record()
    disk, states = Disk(stage.template, stage.corpus.name), 0
    some = set(sample(range(len(calls) + 1), count, chance))
    for n in told(range(len(calls) + 1), "system calls with the power cut after some"):
        if n:
            disk.play(calls[n - 1])
        if n not in some:
            continue
        done = max((number for number, calls_until in acknowledged if calls_until <= n), default=0)
        left = {"all": disk.all(), "least": disk.least(), "mixed": disk.mixed(chance), "mixed 2": disk.mixed(chance)}
        for name, state in left.items():
            stage.empty()
            disk.write(state, stage.corpus)
            stage.check(done, what=f"power cut after system call {n} of {len(calls)} ({name})")
            states += 1
    return {"system_calls": len(calls), "cuts": len(some), "states": states}


def told(points: Sequence[Any], what: str) -> Iterator[Any]:
    """The points; stderr is told twice a minute how far it is."""
    last = time.monotonic()
    for number, point in enumerate(points, 1):
        yield point
        if time.monotonic() - last > _TOLD_EVERY_S or number == len(points):
            last = time.monotonic()
            sys.stderr.write(f"{number:,} of {len(points):,} {what}\n")


def sample(points: Sequence[Any], count: int | None, chance: random.Random) -> list[Any]:
    """That many of the points, in order; None: all."""
    return list(points) if count is None or count >= len(points) else sorted(chance.sample(list(points), count))
