"""A stream of items as a value: what flows along an edge whose items come one after another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from engine.bridge import LoopThread
from engine.errors import GraphError

T = TypeVar("T", covariant=True)  # noqa: PLC0105 - one letter, as in collections.abc


class Stream(AsyncIterator[T], Generic[T]):
    """Items that arrive one after another: iterate once, close when you stop early.

    `async for` everywhere; plain `for` where a blocking runner handed the stream out.

    Args:
        items: Where items come from.
        on_end: Called once: after the last item, an error, or `aclose`.
        bridge: The loop in which the items live, for blocking iteration.
    """

    def __init__(
        self,
        items: AsyncIterator[T],
        on_end: Callable[[], Awaitable[None]] | None = None,
        bridge: LoopThread | None = None,
    ) -> None:
        self._items = items
        self._on_end = on_end
        self._bridge = bridge

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        try:
            return await anext(self._items)
        except BaseException:  # whatever ends the stream ends what belongs to it, the end of the items included
            await self._ended()
            raise

    async def aclose(self) -> None:
        """Stop: whoever produces the items is cancelled. Idempotent."""
        closing = getattr(self._items, "aclose", None)
        try:
            if closing is not None:
                await closing()
        finally:
            await self._ended()

    async def _ended(self) -> None:
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            await on_end()

    def __iter__(self) -> Iterator[T]:
        bridge = self._loop()
        try:
            while True:
                try:
                    yield bridge.wait(self._next())
                except StopAsyncIteration:
                    return
        finally:
            bridge.wait(self.aclose())

    async def _next(self) -> T:
        return await anext(self)

    def close(self) -> None:
        """Stop, from blocking code."""
        self._loop().wait(self.aclose())

    def _loop(self) -> LoopThread:
        if self._bridge is None:
            raise GraphError("this stream lives in an event loop; iterate with `async for`")
        return self._bridge
