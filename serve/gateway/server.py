"""The gateway's HTTP server: one process, one event loop, loopback unless told otherwise."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from engine.errors import InvalidInput
from serve.gateway.app import Gateway

_GRACE_S = 5
_log = logging.getLogger("headrace")


async def serve(gateway: Gateway, host: str, port: int) -> None:
    """Serves until SIGINT or SIGTERM comes; the port is open at once, graphs answer when they have started.

    Args:
        gateway: What to serve; it is started here and ended.
        host: Address to listen at.
        port: TCP port; 0 picks a free one.

    Raises:
        InvalidInput: Nobody can listen there.
        HeadraceError: A graph could not be started.
    """
    listening = listen(host, port)
    config = uvicorn.Config(
        gateway.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        ws_max_size=gateway.config.body_bytes,
        h11_max_incomplete_event_size=1 << 16,
    )
    server = _Server(config)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
    _log.info("listening on http://%s:%d", *listening.getsockname()[:2])
    starting = asyncio.create_task(gateway.start())
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await asyncio.wait([starting, serving], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _log.info("ready")
        await serving
    finally:
        server.should_exit = True
        starting.cancel()
        await asyncio.gather(starting, serving, return_exceptions=True)
        await gateway.aclose()
        listening.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none: uvicorn's own way raises them again when it has ended, before the stages have."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound there, to be listened on.

    Raises:
        InvalidInput: Nobody can listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise InvalidInput(f"nobody can listen on {host} port {port}: {error}; choose another with --port") from error
    return listening
