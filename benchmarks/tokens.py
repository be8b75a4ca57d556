"""A source of tokens for benchmarks of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Tokens:
    """Makes tokens as fast as it can, or one every `pace_s`; the same code on all sides."""

    async def generate(self, n: int, pace_s: float) -> AsyncIterator[str]:
        for i in range(n):
            if pace_s:
                await asyncio.sleep(pace_s)
            yield f"token{i} "
