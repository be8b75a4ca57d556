"""Frames to a Ray actor and back, as ordinary unary calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from engine.errors import HeadraceError, StageDied
from engine.method import Method
from engine.transport import RemoteTransport
from engine.wire import decode_error


class RayTransport(RemoteTransport):
    """A way to one replica in a Ray actor.

    Args:
        name: Name of the stage, for errors.
        actor: Handle of a ReplicaActor whose state is made.
    """

    def __init__(self, name: str, actor: Any) -> None:
        super().__init__()
        self._name = name
        self._actor = actor

    async def start(self, opener: Callable[[], Any], methods: Mapping[str, Method], timeout_s: float) -> None:
        """Have the actor make its state.

        Raises:
            StageDied: The actor found no room in the cluster in time.
            HeadraceError: Whatever `opener` raised.
        """
        try:
            async with asyncio.timeout(timeout_s):
                failure = await self._answer(self._actor.start.remote(opener, dict(methods)))
        except TimeoutError:
            free = {k: v for k, v in ray.available_resources().items() if "GPU" in k or k == "CPU"}
            raise self._died(f"it did not start within {timeout_s:g} s; free in the cluster: {free}") from None
        if failure:
            raise decode_error(failure)

    async def send(self, verb: str, frame: bytes) -> bytes:
        """See RemoteTransport."""
        return await self._answer(self._actor.handle.remote(verb, frame))

    async def _answer(self, ref: Any) -> bytes:
        try:
            answer: bytes = await ref
        except (ActorDiedError, ActorUnavailableError, RayActorError) as error:
            raise self._died(str(error).splitlines()[0]) from error
        except RayTaskError as error:
            raise self._died(f"its endpoint failed: {error.cause}") from error
        return answer

    def _died(self, why: str) -> HeadraceError:
        return StageDied(f"an actor of stage {self._name!r} is gone: {why}", step=self._name)

    async def end(self) -> None:
        """Close the state, then kill the actor: one with a JVM does not end by itself."""
        try:
            async with asyncio.timeout(10):
                await self._answer(self._actor.end.remote())
        except (StageDied, TimeoutError):
            pass  # it is gone already, or hangs; either way the kill ends it
        ray.kill(self._actor)
