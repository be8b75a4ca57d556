"""Tasks beside their maker: asyncio itself holds them weakly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def keep(tasks: set[asyncio.Task[T]], coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run `coroutine` beside the caller, its task held in `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
