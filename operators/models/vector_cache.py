"""Vectors by the hash of what was embedded: those made of late, and those that are just being made."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

CACHE_BYTES = 32 << 20
"""The most that vectors of late take: some 19,000 of 384 dimensions, which is more than a pipeline has on its way."""

_ENTRY_BYTES = 240  # what a vector takes in memory beside its numbers: array, key, place in the dictionary


class VectorCache:
    """Sees to it that equal texts are embedded once, also by calls that run at the same time.

    A call waits for the vectors that another one is making, and makes them itself if that one fails or is cancelled.
    For calls from one event loop.

    Args:
        embed: Makes the vectors of texts: float32[N, D].
        size_bytes: The most memory that vectors of late may take; the least recently used go first.
    """

    def __init__(self, embed: Callable[[list[str]], Awaitable[np.ndarray]], *, size_bytes: int = CACHE_BYTES) -> None:
        self._embed = embed
        self._free_bytes = size_bytes
        self._recent: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._making: dict[bytes, asyncio.Future[dict[bytes, np.ndarray]]] = {}

    async def vectors(self, texts: Mapping[bytes, str]) -> dict[bytes, np.ndarray]:
        """The vector of each text, float32[D], by the text's hash; raises whatever `embed` raises.

        Args:
            texts: By their hashes: texts with the same hash are the same.
        """
        found: dict[bytes, np.ndarray] = {}
        missing = dict(texts)
        while missing:
            found |= self._remembered(missing)
            making = {name: self._making[name] for name in missing if name in self._making}
            mine = {name: text for name, text in missing.items() if name not in found and name not in making}
            if mine:
                found |= await self._make(mine)
            if making:  # awaited as a whole: cancelling who waits must not cancel what is waited for
                await asyncio.wait(set(making.values()))
                found |= {name: made[name] for name, future in making.items() if name in (made := future.result())}
            missing = {name: text for name, text in missing.items() if name not in found}
        return found

    async def _make(self, texts: dict[bytes, str]) -> dict[bytes, np.ndarray]:
        made: dict[bytes, np.ndarray] = {}
        future: asyncio.Future[dict[bytes, np.ndarray]] = asyncio.get_running_loop().create_future()
        self._making.update(dict.fromkeys(texts, future))
        try:
            vectors_ND = await self._embed(list(texts.values()))
            made.update(zip(texts, vectors_ND, strict=True))
            self._remember(made)
            return made
        finally:
            for name in texts:
                del self._making[name]
            future.set_result(made)  # empty when it failed: who waits makes them itself

    def _remembered(self, names: Mapping[bytes, str]) -> dict[bytes, np.ndarray]:
        there = {name: self._recent[name] for name in names if name in self._recent}
        for name in there:
            self._recent.move_to_end(name)
        return there

    def _remember(self, made: Mapping[bytes, np.ndarray]) -> None:
        for name, vector in made.items():
            self._recent[name] = vector.copy()  # a row alone would keep its whole matrix
            self._free_bytes -= vector.nbytes + _ENTRY_BYTES
        while self._free_bytes < 0:
            _, gone = self._recent.popitem(last=False)
            self._free_bytes += gone.nbytes + _ENTRY_BYTES
