"""Writers that are killed at random moments of their opening and writing, one after the other, on the same corpus."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.shard import Shard
from tests.crashing.children import Child
from tests.crashing.histories import (
    SHARDS,
    Rows,
    applied,
    carry_out,
    check_indexes,
    difference,
    of_lane,
    operation,
    stored,
)
from tests.operators.corpus.conftest import DIMENSION

LANES = 12  # three a shard: a kill hits each of the four in the middle of up to three operations
_WHILE_OPENING = 0.3  # share of kills
_MOST_ACKNOWLEDGED = 30  # operations before a kill
_LONGEST_S = 0.02  # from the last of them to the kill; half of the kills come at once


class Lane(NamedTuple):
    """One line of a history, on one shard: the operations that are done, and the rows after them."""

    number: int
    done: int
    rows: Rows

    @property
    def shard(self) -> int:
        """The shard that it changes."""
        return self.number % SHARDS

    def advanced(self, seed: int, done: int) -> Lane:
        """The lane after that many operations."""
        rows = self.rows
        for number in range(self.done, done):
            rows = applied(rows, operation(seed, self.number, number))
        return Lane(self.number, done, rows)


async def _live(line: Connection, task: tuple[str, int, list[Lane], bool]) -> None:
    """Opens every shard, says in which state it found the lanes, and goes on with them until it is killed."""
    directory, seed, lanes, more = task
    shards = [Shard.open(directory, n, writable=True) for n in range(SHARDS)]
    found: list[Lane] = []
    for n, shard in enumerate(shards):
        found += await _find(shard, seed, [lane for lane in lanes if lane.shard == n])
    line.send(sorted(found))
    if more:
        await asyncio.gather(*(_go_on(line, shards[lane.shard], seed, lane) for lane in found))
    for shard in shards:
        await shard.aclose()


async def _find(shard: Shard, seed: int, lanes: list[Lane]) -> list[Lane]:
    """The lanes as the shard has them: each as it was acknowledged, or one whole operation further."""
    rows = await stored(shard)
    found = []
    for lane in lanes:
        after, there = lane.advanced(seed, lane.done + 1), of_lane(rows, lane.number)
        found.append(after if there == after.rows else lane)
        assert there == found[-1].rows, (
            f"lane {lane.number} after {lane.done} operations, then {operation(seed, lane.number, lane.done)}: "
            f"without it {difference(lane.rows, there)}; with it {difference(after.rows, there)}"
        )
    assert len(rows) == sum(len(lane.rows) for lane in found), "documents of nobody"
    await check_indexes(shard, rows)
    return found


async def _go_on(line: Connection, shard: Shard, seed: int, lane: Lane) -> None:
    while True:
        await carry_out(shard, operation(seed, lane.number, lane.done), lane.rows)
        lane = lane.advanced(seed, lane.done + 1)
        line.send((lane.number, lane.done))


def random_kills(directory: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills that many writers; the next one checks what is left, and the last one only checks.

    Raises:
        AssertionError: Something acknowledged was lost, something half-done is visible, or an index is not the truth.
    """
    create_corpus(directory, CorpusConfig(embedder="test", dimension=DIMENSION, shards=SHARDS))
    chance, lanes = random.Random(seed), [Lane(n, 0, {}) for n in range(LANES)]
    while_opening, in_flight, opening_s = 0, 0, 0.3
    spare = Child(_live)
    for number in range(kills):
        if number and number % 25 == 0:
            sys.stderr.write(f"{number} of {kills} killed\n")
        child, spare = spare, Child(_live)
        child.tell(str(directory), seed, lanes, True)
        told = time.monotonic()
        if chance.random() < _WHILE_OPENING and not child.hears_within(chance.uniform(0, opening_s)):
            while_opening += 1
        else:
            found = child.hear()
            opening_s = time.monotonic() - told
            in_flight += sum(a.done > b.done for a, b in zip(found, lanes, strict=True))
            lanes = _acknowledged(found, seed, [child.hear() for _ in range(chance.randint(0, _MOST_ACKNOWLEDGED))])
            time.sleep(chance.choice([0, chance.uniform(0, _LONGEST_S)]))
        lanes = _acknowledged(lanes, seed, child.kill())
    spare.tell(str(directory), seed, lanes, False)
    lanes = spare.hear()
    assert spare.last_words() == []
    done = sum(lane.done for lane in lanes)
    return {
        "kills": kills, "of_these_while_opening": while_opening, "shards_in_each": SHARDS, "operations": done,
        "operations_done_and_not_acknowledged": in_flight,
    }  # fmt: skip


def _acknowledged(lanes: list[Lane], seed: int, said: list[Any]) -> list[Lane]:
    """The lanes after what a writer said."""
    lanes = list(lanes)
    for each in said:
        if isinstance(each, list):  # it was killed just as it told what it had found
            lanes = each
        else:
            lanes[each[0]] = lanes[each[0]].advanced(seed, each[1])
    return lanes
