"""Waiting in tests for something that happens soon, without guessing how soon."""

from __future__ import annotations

import asyncio


async def until(check: object, *, within_s: float = 5.0) -> None:
    """Wait until the async callable `check` gives true."""
    async with asyncio.timeout(within_s):
        while not await check():  # type: ignore[operator]
            await asyncio.sleep(0.005)
