"""An application of Ray Serve in the foreground, with a Ray of its own or in a cluster; it ends with this process."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

from engine.errors import InvalidInput, StageDied
from serve.gateway.server import listen
from serve.ray_serve.environment import MODE, of_one_run, set_environment
from serve.ray_serve.guard import guarded_folder

APPLICATION = "headrace"
_log = logging.getLogger("headrace")
_OBJECTS_BYTES = 200 * 2**20  # nothing large goes through Ray's object store here


@contextmanager
def ray_serve(host: str, port: int, *, cpus: int | None = None, mode: Mapping[str, str] = MODE) -> Iterator[Path]:
    """Ray with Serve inside the block: the cluster that RAY_ADDRESS names, or one of this machine alone.

    Args:
        host: Address for HTTP.
        port: TCP port for HTTP.
        cpus: Processors that a cluster of this machine's own counts; None for those that there are, and 4 at least,
            since what a stage asks for is a share of one that it rarely uses.
        mode: The variables that set Serve's mode; another one than headrace's own serves other applications only.

    Yields:
        A folder for files of this run.

    Raises:
        InvalidInput: Serve runs in the cluster already, or nobody can listen there.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(guarded_folder())
        alone = "RAY_ADDRESS" not in os.environ
        if alone:
            # Ray's own ports are on every interface; whoever has no token is refused there.
            token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            set_environment({**token, **of_one_run(folder, mode)})
        else:
            set_environment(mode)
        _start(host, port, folder if alone else None, cpus)
        stack.callback(_end)
        yield folder


def _start(host: str, port: int, folder: Path | None, cpus: int | None) -> None:
    import ray  # noqa: PLC0415 - reads the environment that was just set
    from ray import serve  # noqa: PLC0415 - as above

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if folder is not None:
        options |= {
            "num_cpus": cpus or max(4, os.cpu_count() or 1),
            "include_dashboard": False,
            "object_store_memory": _OBJECTS_BYTES,
            "_temp_dir": str(folder),
            "_node_ip_address": "127.0.0.1",
        }
    ray.init(**options)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if folder is None and (running := serve.status().applications):
        raise InvalidInput(
            f"Ray Serve runs in this cluster already, with {', '.join(running)}; `serve shutdown` ends it"
        )
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port})


def _end() -> None:
    import ray  # noqa: PLC0415 - as in _start
    from ray import serve  # noqa: PLC0415 - as in _start

    with contextlib.redirect_stderr(io.StringIO()):  # Ray tells that the controller is dead, which was asked for
        serve.shutdown()
        ray.shutdown()


def run_until_stopped(
    app: Callable[[Path], Any], host: str, port: int, out: TextIO, *, cpus: int | None = None
) -> None:
    """Serve until SIGINT or SIGTERM comes, showing the gateway's log.

    Args:
        app: Makes the application, given the file that its gateways write their log to.
        host: Address for HTTP.
        port: TCP port for HTTP; 0 picks a free one.
        out: Where the gateway's lines go.
        cpus: See ray_serve.
    """
    with closing(listen(host, port)) as free:  # a port that is taken is told now; Ray takes seconds to find out
        port = free.getsockname()[1]
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with ray_serve(host, port, cpus=cpus) as folder:
        from ray import serve  # noqa: PLC0415 - as in _start

        log = folder / "gateway.log"
        log.touch()
        _log.info("starting on http://%s:%d", host, port)
        try:
            serve.run(app(log), name=APPLICATION, route_prefix="/")
        except RuntimeError as error:  # Serve gave up; it says where and why
            raise StageDied(f"the application could not be started: {error}") from error
        _log.info("ready")
        with log.open(encoding="utf-8") as lines:
            while not stopped.wait(0.2):
                out.writelines(lines)
                out.flush()
        _log.info("ending")
