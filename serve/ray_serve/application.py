"""Graphs as an application of Ray Serve: the gateway as its ingress, one deployment for each shard of each stage.

`build` is what a Serve config file names as its import path.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from engine.errors import InvalidInput
from engine.graph import Graph
from engine.ray.deployments import deployments_of, names_of, open_on_handles
from engine.stage import Stage
from graphs.parts import Parts
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import MANIFEST, open_corpus
from serve.gateway.app import Gateway
from serve.gateway.config import GatewayConfig
from serve.gateway.logs import log_to
from serve.gateway.telemetry import Telemetry
from serve.ray_serve.arguments import ServeArguments, is_ours, read_arguments
from serve.settings import corpus_directory, read_configuration

GATEWAY = "gateway"
GATEWAY_RESOURCES = {"num_cpus": 0.25}
_REQUESTS_AT_ONCE = 10_000  # the gateway's own admission refuses long before, and says when to come back

Graphs = Sequence[Graph[..., Any]]


class GatewayReplica:
    """One gateway: the ASGI application that Serve's HTTP server calls.

    Args:
        graphs: Draws what is served; called here, so that a graph need not be pickled.
        config: Limits.
        handles: By stage, those of its deployments, shard by shard.
        log: File for log lines; None leaves them to Serve's own.
    """

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        graphs: Callable[[], Graphs],
        config: GatewayConfig,
        handles: Mapping[str, Sequence[DeploymentHandle]],
        log: str | None = None,
    ) -> None:
        if log is not None:
            log_to(logging.FileHandler(log, encoding="utf-8"), config.log)
        self._gateway = Gateway(graphs(), config, engine=partial(open_on_handles, handles))
        await self._gateway.start()

    def __serve_build_asgi_app__(self) -> Any:
        """The application; Serve asks for it once."""
        return self._gateway.app

    async def __del__(self) -> None:
        """Give up the streams; Serve calls it when it ends a replica in good order."""
        if hasattr(self, "_gateway"):
            await self._gateway.aclose()


def application(
    graphs: Callable[[], Graphs], config: GatewayConfig | None = None, *, gateways: int = 1, log: str | None = None
) -> Application:
    """An application that serves graphs; `ray.serve.run` starts it.

    Args:
        graphs: Draws them; it is called here and in each gateway, so it must pickle.
        config: Limits of a gateway.
        gateways: How many there are.
        log: See GatewayReplica.

    Raises:
        InvalidInput: Two stages have one name.
    """
    stages = _stages(graphs())
    handles = {stage.name: deployments_of(stage) for stage in stages}
    deployment = serve.deployment(serve.ingress()(GatewayReplica)).options(
        name=GATEWAY,
        num_replicas=gateways,
        ray_actor_options=GATEWAY_RESOURCES,
        max_ongoing_requests=_REQUESTS_AT_ONCE,
        health_check_period_s=2.0,
        graceful_shutdown_timeout_s=5.0,
        graceful_shutdown_wait_loop_s=0.2,
    )
    return deployment.bind(graphs, config or GatewayConfig(), handles, log)


def _stages(graphs: Graphs) -> list[Stage[Any]]:
    stages: dict[str, Stage[Any]] = {}
    for stage in (stage for graph in graphs for stage in graph.stages):
        if stages.setdefault(stage.name, stage) is not stage or stage.name == GATEWAY:
            raise InvalidInput(f"two stages are named {stage.name!r}, and deployments are known by name; rename one")
    return list(stages.values())


def ready_made(corpus: str, config: str | None) -> Graphs:
    """The graphs `search` and `rag` over a corpus."""
    parts = Parts(read_configuration(config).profile(open_corpus(corpus)))
    return [search(parts), rag(parts)]


def build(args: Mapping[str, Any]) -> Application:
    """The application of a Serve config file: `import_path: "serve.ray_serve.application:build"`.

    Raises:
        InvalidInput: An argument is unknown or wrong, or there is no corpus.
    """
    return ready_application(read_arguments(args))


def ready_application(asked: ServeArguments, *, log: str | None = None) -> Application:
    """The application that serves a corpus with the ready-made graphs."""
    corpus = corpus_directory(asked.corpus).resolve()
    open_corpus(corpus)  # a missing one is told before anything is started
    config = None if asked.config is None else str(Path(asked.config).resolve())
    limits = read_configuration(config).serve
    limits = limits if asked.log is None else msgspec.structs.replace(limits, log=asked.log)
    if limits.telemetry is not None:
        Telemetry(limits.telemetry)  # a package that is missing is told here, not by a replica that cannot start
    return application(partial(ready_made, str(corpus), config), limits, gateways=asked.gateways, log=log)


def deployments_in(application: Mapping[str, Any]) -> list[str] | None:
    """The deployments of an application of a Serve config file; None for one of others, or whose corpus is not here."""
    if not is_ours(application):
        return None
    asked = read_arguments(application.get("args") or {})
    corpus = corpus_directory(asked.corpus)
    if not (corpus / MANIFEST).exists():
        return None
    graphs = ready_made(str(corpus), asked.config)
    return [GATEWAY, *(name for stage in _stages(graphs) for name in names_of(stage))]
