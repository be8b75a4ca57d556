"""The local engine: stages in this process, or in a child process where they ask for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from engine.host import Host
from engine.pool import Pool
from engine.process import ProcessTransport
from engine.replicas import Replicas
from engine.stage import Stage
from engine.supervise import as_step_failure
from engine.transport import LocalTransport, Transport


def openers(stage: Stage[Any]) -> list[Callable[[], Any]]:
    """What makes the state of each shard."""
    return [stage.open] if stage.shards is None else [partial(stage.open, shard) for shard in range(stage.shards)]


async def open_local(stage: Stage[Any]) -> Pool:
    """Start a stage on this machine; one replica a shard, since more would share the same cores.

    Raises:
        HeadraceError: A state could not be made; the shards already made are closed.
    """
    opened = await asyncio.gather(*(_open(stage, o) for o in openers(stage)), return_exceptions=True)
    failures = [f for f in opened if isinstance(f, BaseException)]
    made: list[Transport] = [t for t in opened if not isinstance(t, BaseException)]
    if failures:
        await asyncio.gather(*(t.aclose() for t in made))
        raise failures[0]
    return Pool(stage, [Replicas([t]) for t in made])


async def _open(stage: Stage[Any], opener: Callable[[], Any]) -> Transport:
    if stage.isolated:
        return await ProcessTransport.start(stage.name, opener, stage.environment, stage.methods)
    try:
        return LocalTransport(Host(await asyncio.to_thread(opener)))
    except Exception as error:
        raise as_step_failure(error, stage.name, None) from error
