"""Who the replicas of a deployment of Ray Serve are: Serve says so, headrace chooses among them.

A handle's own `remote()` would choose a replica itself and never tell which one: streams could not be pulled, a hedge
could not go to another, and every call would pass a queue and its bookkeeping first. So a handle is used for what it
learns from Serve's controller: which replicas run, and what each has published of itself (`record_replica_metadata`),
here the address and secret of its FrameServer. Whatever is private to Ray Serve is in this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve._private.router import CurrentLoopRouter
from ray.serve.handle import DeploymentHandle

from engine.errors import InvalidInput
from engine.tcp import FrameServer, TcpTransport


def published(server: FrameServer) -> dict[str, Any]:
    """What a replica tells Serve of itself."""
    return {"host": server.address[0], "port": server.address[1], "secret": server.secret}


class Members:
    """The ways to the replicas of one deployment that there are now; call it in the loop that made it.

    Args:
        name: Name of the stage, for errors.
        handle: Of the deployment.

    Raises:
        InvalidInput: This process runs Serve in another mode than the one that headrace uses.
    """

    def __init__(self, name: str, handle: DeploymentHandle) -> None:
        if not handle.is_initialized:
            handle._init()
        router = handle._router
        if not isinstance(router, CurrentLoopRouter):
            raise InvalidInput(
                "Ray Serve runs its router in a loop of its own here; start it with `headrace serve`, or start Ray on "
                'every node after `eval "$(headrace environment)"`'
            )
        self._name = name
        self._router = router._asyncio_router
        self._seen: Any = None
        self._transports: dict[str, TcpTransport] = {}
        self._now: Sequence[TcpTransport] = ()

    def __call__(self) -> Sequence[TcpTransport]:
        """The same object as long as they are the same."""
        router = self._router.request_router
        replicas = {} if router is None else router.curr_replicas
        if replicas is not self._seen:
            self._seen = replicas
            self._transports = {
                id_.unique_id: self._transports.get(id_.unique_id) or self._way_to(replica.replica_metadata)
                for id_, replica in replicas.items()
            }
            self._now = tuple(self._transports.values())
        return self._now

    def _way_to(self, told: dict[str, Any]) -> TcpTransport:
        return TcpTransport(self._name, (told["host"], told["port"]), told["secret"])
