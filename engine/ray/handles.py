"""Frames to the replicas of a deployment of Ray Serve: Serve says who they are, headrace chooses among them.

A handle's own `remote()` would choose a replica itself and never tell which one: streams could not be pulled, a hedge
could not go to another, and every call would pass a queue and its bookkeeping first. So a handle is used for what it
learns (which replicas run, from Serve's controller), and each frame is one unary gRPC call to the replica's own server,
as Serve's router would make it. Whatever is private to Ray Serve is in this file.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

import grpc
from ray.serve._private.common import RequestMetadata
from ray.serve._private.constants import RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH
from ray.serve._private.router import CurrentLoopRouter
from ray.serve.generated.serve_pb2 import ASGIRequest
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import RunningReplica

from engine.errors import HeadraceError, InvalidInput, StageDied
from engine.transport import RemoteTransport

_MOST_BYTES = RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH - 1024  # of a frame; what Serve adds is smaller than the rest
_METADATA = pickle.dumps(
    RequestMetadata(
        request_id="",
        internal_request_id="",
        call_method="handle",
        _by_reference=False,
        _on_separate_loop=False,
        request_serialization="pickle",
        response_serialization="pickle",
    )
)
_NO_KEYWORDS = pickle.dumps({})
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class HandleTransport(RemoteTransport):
    """A way to one replica of a deployment.

    Args:
        name: Name of the stage, for errors.
        replica: What Serve's controller says of it.
    """

    def __init__(self, name: str, replica: RunningReplica) -> None:
        super().__init__()
        self._name = name
        self.id = replica.replica_id.unique_id
        self._stub = replica.stub

    async def send(self, verb: str, frame: bytes) -> bytes:
        """See RemoteTransport.

        Raises:
            InvalidInput: The frame is longer than a message may be.
        """
        if len(frame) > _MOST_BYTES:
            raise InvalidInput(
                f"a message of {len(frame):,} bytes to stage {self._name!r} is longer than the {_MOST_BYTES:,} that "
                "may be sent; send less at once"
            )
        request = ASGIRequest(
            pickled_request_metadata=_METADATA,
            request_args=pickle.dumps((verb, frame), pickle.HIGHEST_PROTOCOL),
            request_kwargs=_NO_KEYWORDS,
        )
        try:
            answer = await self._stub.HandleRequest(request)
        except grpc.aio.AioRpcError as error:
            if error.code() in _GONE:
                raise self._died(str(error.details())) from error
            raise self._died(f"{error.code().name}: {error.details()}") from error
        value = pickle.loads(answer.serialized_message)
        if answer.is_error:
            if isinstance(value, asyncio.CancelledError):
                raise self._died("it is being ended") from value
            raise self._died(f"its endpoint failed: {value}") from value
        raw: bytes = value
        return raw

    def _died(self, why: str) -> HeadraceError:
        return StageDied(f"a replica of stage {self._name!r} is gone: {why}", step=self._name)

    async def end(self) -> None:
        """Nothing: a replica's life is Serve's to end."""


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
                "Ray Serve runs its router in a loop of its own here; start it with `headrace serve` or set "
                "RAY_SERVE_THROUGHPUT_OPTIMIZED=1 on every node (serve/ray_serve/environment.py has all variables)"
            )
        self._name = name
        self._router = router._asyncio_router
        self._seen: Any = None
        self._transports: tuple[HandleTransport, ...] = ()

    def __call__(self) -> Sequence[HandleTransport]:
        """The same object as long as they are the same."""
        router = self._router.request_router
        now = {} if router is None else router.curr_replicas
        if now is not self._seen:
            known = {transport.id: transport for transport in self._transports}
            self._seen = now
            self._transports = tuple(
                known.get(id_.unique_id) or HandleTransport(self._name, replica) for id_, replica in now.items()
            )
        return self._transports
