"""A stage whose state batches, for tests of spans; importable, so that a child process can make it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from engine.batcher import Batcher, BatchLimits


class Batching:
    """Doubles numbers in batches, two calls at a time."""

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)
        self._batcher = Batcher(self._run, limits=BatchLimits(max_cost=100), name="doubler")

    def _run(self, numbers: list[int]) -> list[int]:
        if 0 in numbers:
            raise ValueError("nothing to double")
        return [2 * n for n in numbers]

    async def double(self, n: int) -> int:
        """Twice `n`, alone."""
        (doubled,) = await self._batcher.submit([n])
        return doubled

    async def together(self, n: int) -> int:
        """Twice `n`, in one batch with another call's."""
        await self._both.wait()
        return await self.double(n)

    async def counted(self, n: int) -> AsyncIterator[int]:
        """0 to n - 1; below 0 it fails."""
        if n < 0:
            raise ValueError("cannot count down")
        for i in range(n):
            yield i
            await asyncio.sleep(0)

    async def hang(self, _: int) -> int:
        """Never."""
        await asyncio.Event().wait()
        return 0

    async def aclose(self) -> None:
        await self._batcher.aclose()
