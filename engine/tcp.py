"""Frames to an endpoint in a process anywhere, over one TCP connection.

For replicas whose address somebody tells (on Ray Serve: what a replica publishes of itself). The first bytes of a
connection are a secret that is told with the address: without it nothing is answered.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket

from engine.endpoint import Endpoint
from engine.errors import HeadraceError, InvalidInput, StageDied
from engine.frames import Caller, answer_frames
from engine.tasks import keep
from engine.transport import RemoteTransport

MOST_BYTES = 64 * 2**20  # of a message: nothing that steps hand each other is near
SECRET_BYTES = 32
_CONNECT_S = 5.0
_SILENT_S = 5  # after which a connection that sent something counts as dead


class FrameServer:
    """Answers frames for one endpoint; made by `FrameServer.start`.

    Attributes:
        address: Host and port.
        secret: What callers must show, in hexadecimal digits.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.address = ("", 0)
        self.secret = secrets.token_hex(SECRET_BYTES)

    @classmethod
    async def start(cls, endpoint: Endpoint, host: str) -> FrameServer:
        """Listen on a free port of `host`."""
        server = cls(endpoint)
        server._server = await asyncio.start_server(server._accept, host, 0)
        name = server._server.sockets[0].getsockname()
        server.address = (name[0], name[1])
        return server

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep(self._serving, self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                shown = await reader.readexactly(SECRET_BYTES)
            if hmac.compare_digest(shown, bytes.fromhex(self.secret)):
                _watch(writer)
                await answer_frames(reader, writer, self._endpoint.handle)
        except (asyncio.IncompleteReadError, OSError):
            pass  # it left before it had shown anything
        finally:
            writer.close()

    async def aclose(self) -> None:
        """Answer nobody any more; the endpoint lives on."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()


class TcpTransport(RemoteTransport):
    """A way to one endpoint behind a FrameServer; connects when it is first used, and anew after a connection ended.

    Args:
        name: Name of the stage, for errors.
        address: Host and port.
        secret: In hexadecimal digits.
    """

    def __init__(self, name: str, address: tuple[str, int], secret: str) -> None:
        super().__init__()
        self._name = name
        self._address = address
        self._secret = bytes.fromhex(secret)
        self._caller: Caller | None = None
        self._connecting = asyncio.Lock()

    async def send(self, verb: str, frame: bytes) -> bytes:
        """See RemoteTransport.

        Raises:
            InvalidInput: The frame is longer than a message may be.
        """
        if len(frame) > MOST_BYTES:
            raise InvalidInput(
                f"a message of {len(frame):,} bytes to stage {self._name!r} is longer than the {MOST_BYTES:,} that may "
                "be sent; send less at once"
            )
        caller = self._caller
        if caller is None or not caller.lives:
            caller = await self._connected()
        return await caller.send(verb, frame)

    async def _connected(self) -> Caller:
        async with self._connecting:
            if self._caller is None or not self._caller.lives:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        reader, writer = await asyncio.open_connection(*self._address)
                except OSError as error:  # a TimeoutError is one
                    raise self._died(f": {error}") from error
                _watch(writer)
                writer.write(self._secret)
                self._caller = Caller(reader, writer, self._died)
            return self._caller

    def _died(self, why: str = "") -> HeadraceError:
        where = f"{self._address[0]}:{self._address[1]}"
        return StageDied(f"a replica of stage {self._name!r} at {where} is gone{why}", step=self._name)

    async def end(self) -> None:
        """Close the connection; the far side lives on."""
        if self._caller is not None:
            self._caller.close()
            await self._caller.closed()


def _watch(writer: asyncio.StreamWriter) -> None:
    """Have the kernel end the connection when the other machine falls silent, and send at once what is written."""
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", _SILENT_S), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", _SILENT_S)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT_S)
