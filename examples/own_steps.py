"""A graph of your own: light steps, a stage that is sharded, a stream; the same on both engines.

Run it with `python -m examples.own_steps` or `python -m examples.own_steps ray`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import cast

from engine.graph import graph
from engine.run import EngineName, run
from engine.scope import Scope
from engine.stage import Stage
from engine.step import step
from engine.stream import Stream
from engine.trace import Trace

SHELVES = [["weir", "headrace"], ["turbine", "generator"], ["spillway"]]


class Shelf:
    """One shard of a tiny library; a real one would hold an index."""

    def __init__(self, index: int) -> None:
        self._words = SHELVES[index]

    async def find(self, letter: str) -> list[str]:
        """Words with that letter."""
        return [word for word in self._words if letter in word]


def merge(shelves: list[list[str]]) -> list[str]:
    """All words, in order."""
    return sorted(word for shelf in shelves for word in shelf)


@step
def first_letter(text: str) -> str:
    """What to look for."""
    return text.strip()[:1].lower()


@step
async def told(words: list[str]) -> AsyncIterator[str]:
    """One word after another."""
    for word in words:
        yield word


find = Stage("shelves", Shelf, shards=len(SHELVES)).gather(Shelf.find, merge)


@graph
def words_with(text: str) -> Stream[str]:
    """Finds words with the first letter of a text."""
    return told(find(first_letter(text)))


def main(engine: EngineName) -> None:
    """Ask once, and show where the time went."""
    print(words_with.explain(), end="\n\n")
    trace = Trace()
    with run(words_with, engine) as ask:
        for word in ask.within(Scope(timeout_s=30, trace=trace))("river"):
            print(word)
    print(trace.waterfall())


if __name__ == "__main__":
    main(cast("EngineName", sys.argv[1] if len(sys.argv) > 1 else "local"))
