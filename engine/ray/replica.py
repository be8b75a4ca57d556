"""One replica of a stage as a deployment of Ray Serve: Serve keeps it alive, frames reach it over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import ray

from engine.backlog import Backlog
from engine.endpoint import Endpoint
from engine.host import Host
from engine.method import Method
from engine.ray.members import published
from engine.supervise import as_step_failure
from engine.tcp import FrameServer

_LOOK_S = 0.05


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
        self._server = await FrameServer.start(self._endpoint, ray.util.get_node_ip_address())
        self._slots = getattr(state, "slots", 1)
        self._backlog = Backlog()

    def record_replica_metadata(self) -> dict[str, Any]:
        """What callers must know to reach it; Serve asks once and tells them."""
        return published(self._server)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policy in `engine.scaling` looks at; a state with `queued_seconds` knows its queue better."""
        counted = self._endpoint.host.statistics()
        outstanding = counted.running + counted.streams.open
        ended = counted.served + counted.failed + counted.cancelled + counted.streams.finished + counted.streams.closed
        queued_s = self._backlog.seconds(outstanding=outstanding, ended=ended, slots=self._slots)
        own = getattr(self._endpoint.host.state, "queued_seconds", None)
        busy = min(1.0, outstanding / self._slots)
        return {"queued_seconds": queued_s if own is None else own(), "busy": busy}

    async def __del__(self) -> None:
        """Close the state when nothing runs any more; Serve calls it when it ends a replica in good order.

        Callers know by then that it goes; Serve's own patience ends what takes too long.
        """
        if hasattr(self, "_server"):
            host = self._endpoint.host
            while (counted := host.statistics()).running or counted.streams.open:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(_LOOK_S)
            await self._server.aclose()
            await host.aclose()
