"""One replica of a stage as a deployment of Ray Serve: Serve keeps it alive, frames reach it as calls of `handle`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from engine.endpoint import Endpoint
from engine.host import Host
from engine.method import Method
from engine.ray.backlog import Backlog
from engine.supervise import as_step_failure


class StageReplica:
    """Holds an Endpoint; made a deployment by `engine.ray.deployments`.

    Args:
        opener: Makes the state.
        methods: Types of the methods that steps use.

    Raises:
        HeadraceError: Whatever `opener` raised; Serve shows it and tries again.
    """

    async def __init__(self, opener: Callable[[], Any], methods: Mapping[str, Method]) -> None:  # type: ignore[misc] # Serve awaits it
        try:
            state = await asyncio.to_thread(opener)
        except Exception as error:
            raise as_step_failure(error, "start", None) from error
        self._endpoint = Endpoint(Host(state), methods)
        self._slots = getattr(state, "slots", 1)
        self._backlog = Backlog()

    async def handle(self, verb: str, frame: bytes) -> bytes:
        """The answer to one frame; see Endpoint."""
        return await self._endpoint.handle(verb, frame)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policy in `engine.ray.scaling` looks at; a state with `queued_seconds` knows its queue better."""
        counted = self._endpoint.host.statistics()
        outstanding = counted.running + counted.streams.open
        ended = counted.served + counted.failed + counted.cancelled + counted.streams.finished + counted.streams.closed
        queued_s = self._backlog.seconds(outstanding=outstanding, ended=ended, slots=self._slots)
        own = getattr(self._endpoint.host.state, "queued_seconds", None)
        busy = min(1.0, outstanding / self._slots)
        return {"queued_seconds": queued_s if own is None else own(), "busy": busy}

    async def __del__(self) -> None:
        """Close the state; Serve calls it when it ends a replica in good order."""
        if hasattr(self, "_endpoint"):
            await self._endpoint.host.aclose()
