"""The Ray actor around one replica of a stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from engine.endpoint import Endpoint
from engine.host import Host
from engine.method import Method
from engine.supervise import as_step_failure
from engine.wire import encode_error


class ReplicaActor:
    """Holds an Endpoint; made a Ray actor by `engine.ray.cluster`.

    An async actor: every frame is a call of its own, and all of them share the actor's loop.
    """

    def __init__(self) -> None:
        self._endpoint: Endpoint | None = None

    async def start(self, opener: Callable[[], Any], methods: Mapping[str, Method]) -> bytes:
        """Make the state; empty bytes, or the packed error that it raised."""
        try:
            self._endpoint = Endpoint(Host(await asyncio.to_thread(opener)), methods)
        except Exception as error:  # noqa: BLE001 - the supervisor boundary: raised again at the driver
            return encode_error(as_step_failure(error, "start", None))
        return b""

    async def handle(self, verb: str, frame: bytes) -> bytes:
        """The answer to one frame; see Endpoint."""
        if self._endpoint is None:
            raise RuntimeError("a frame came before the state was made")
        return await self._endpoint.handle(verb, frame)

    async def end(self) -> None:
        """Close the state."""
        if self._endpoint is not None:
            await self._endpoint.host.aclose()
            self._endpoint = None
