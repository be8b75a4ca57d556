"""The one mode in which headrace runs Ray Serve, as the environment variables that set it.

They are read when `ray.serve` is imported, in every process of the cluster, so they must be there before Ray starts:
`headrace serve` sets them, and deploy/ has them for clusters.
"""

from __future__ import annotations

import os
import socket
import sysconfig
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""What only the machine itself reaches."""

_FRONT = Path(sysconfig.get_path("scripts")) / "headrace-haproxy"  # see serve/ray_serve/front.py
MODE = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # HAProxy in front of the replicas; of three modes the only one with backpressure
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # gRPC between replicas, one event loop each
    # A gateway that sheds load answers 503; the front must not take it for dead.
    "RAY_SERVE_HAPROXY_OBSERVE_MARK_DOWN_ENABLED": "0",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "5",  # nor may one that is busy for a while be
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    # What a gateway took and died of without a word goes to another one: graphs read, so asking twice does no harm.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_BINARY_PATH": str(_FRONT),
    # Whenever gateways come or go the front is replaced, and the old one lets what is under way end, for so long.
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
}
ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives what it starts, the front among them, a thirtieth of what other programs get (niceness 15): beside one
    # that is busy, whoever asks would wait for seconds.
    "RAY_worker_niceness": "0",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",  # with one gateway there is nobody to drain to
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # three in a row end it, and a laptop may be busy with models
}


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on now, on any address."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def of_one_run(folder: Path, mode: Mapping[str, str] = MODE) -> dict[str, str]:
    """Everything for a Serve of this machine alone whose ports and files are no other run's.

    Args:
        folder: For its sockets and files; see guard.guarded_folder.
        mode: The variables that set Serve's mode.
    """
    metrics, statistics, fallback, fallback_grpc = free_ports(4)
    return {
        **mode,
        **ALONE,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(statistics),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
    }


def set_environment(variables: Mapping[str, str]) -> None:
    """Set them for this process and those that it starts; what the user has set stays."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
