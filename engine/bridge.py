"""The one bridge from blocking code into an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from engine.errors import GraphError

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own; blocking callers hand it coroutines."""

    def __init__(self, name: str = "headrace-loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine` on the loop and return its result; Ctrl-C cancels it and waits until it has stopped."""
        refuse_running_loop(coroutine)
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs, stop the loop and join the thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_drain(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _drain() -> None:
    """Cancel every other task of the loop and wait for their ends; close forgotten async generators."""
    rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine to its end from blocking code."""
    refuse_running_loop(coroutine)
    return asyncio.run(coroutine)


def refuse_running_loop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Raise when called from inside an event loop, which blocking would stop.

    Raises:
        GraphError: A loop runs in this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    coroutine.close()
    raise GraphError("this call blocks, and an event loop runs in this thread; use the async face and await it")
