"""Stage states for tests; importable, so that child processes and actors can make them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec
import numpy as np
import pyarrow as pa

from engine.scope import current_scope


class Pair(msgspec.Struct, frozen=True):
    left: int
    right: str


class Workshop:
    """Methods of every kind, and counters of what became of them."""

    def __init__(self) -> None:
        self.started = self.cancelled = self.made = self.closed = 0

    async def reset(self) -> None:
        self.started = self.cancelled = self.made = self.closed = 0

    async def add(self, a: int, b: int) -> int:
        return a + b

    async def swap(self, pair: Pair) -> Pair:
        return Pair(len(pair.right), str(pair.left))

    async def double(self, numbers: np.ndarray) -> np.ndarray:
        return numbers * 2

    async def rows(self, table: pa.Table) -> int:
        return int(table.num_rows)

    async def remaining_ms(self) -> float | None:
        remaining = current_scope().remaining_s()
        return None if remaining is None else remaining * 1000

    async def request_id(self) -> str:
        return current_scope().id

    async def note(self, text: str) -> str:
        trace = current_scope().trace
        if trace is not None:
            trace.note(text)
        return text

    async def fail(self, text: str) -> int:
        raise ValueError(text)

    async def hang(self) -> int:
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 0

    async def die(self) -> int:
        os._exit(7)

    async def counters(self) -> dict[str, int]:
        return {"started": self.started, "cancelled": self.cancelled, "made": self.made, "closed": self.closed}

    async def count(self, n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                self.made += 1
                yield i
        finally:
            self.closed += 1

    async def count_slowly(self, n: int) -> AsyncIterator[int]:
        try:
            for i in range(n):
                self.made += 1
                yield i
                await asyncio.sleep(0.002)
        finally:
            self.closed += 1

    async def break_after(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
        raise ValueError("the model fell over")

    async def never(self) -> AsyncIterator[int]:
        self.started += 1
        try:
            await asyncio.Event().wait()
            yield 0
        finally:
            self.closed += 1


class Refuses:
    """A state that cannot be made."""

    def __init__(self) -> None:
        raise FileNotFoundError("no weights at /nowhere")


class RefusesAtLength:
    """A state that cannot be made, and says more than a socket holds."""

    def __init__(self) -> None:
        raise FileNotFoundError("no weights" * 1_000_000)


class Shard:
    """A partition that knows its index."""

    def __init__(self, index: int) -> None:
        self.index = index

    async def mine(self, offset: int) -> list[int]:
        await asyncio.sleep(0.001 * (3 - self.index))  # later shards answer first
        return [self.index + offset]

    async def fails_on_one(self, offset: int) -> list[int]:
        if self.index == 1:
            raise ValueError("torn index")
        await asyncio.Event().wait()
        return []
