"""Starts stages as Ray actors; every option of Ray that headrace uses is in this file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import ray

from engine.errors import InvalidInput
from engine.local import openers
from engine.pool import Pool
from engine.process import ONE_THREAD
from engine.ray.actor import ReplicaActor
from engine.ray.transport import RayTransport
from engine.replicas import Replicas
from engine.stage import Stage
from engine.transport import Transport

START_TIMEOUT_S = 600.0  # an autoscaler may have to find a node first
_CALLS_AT_ONCE = 4096  # pulls wait in the actor, so many are in flight; queues are bounded by batchers, not here


def ensure_ray() -> None:
    """Connect to the cluster that RAY_ADDRESS names, or start one on this machine, on loopback, for this process."""
    if ray.is_initialized():
        return
    # ray start and ray.init choose an authentication mode by what they find on the machine; a cluster of one process
    # on loopback needs none, and a cluster that was joined has its own.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(log_to_driver=False, include_dashboard=False, logging_level="warning", configure_logging=False)


async def open_on_ray(stage: Stage[Any]) -> Pool:
    """Start a stage: one actor for each replica of each shard.

    Raises:
        InvalidInput: The cluster can never hold the stage.
        HeadraceError: A state could not be made; the actors already started are ended.
    """
    _refuse_impossible(stage)
    opened = await asyncio.gather(
        *(_start(stage, o) for o in openers(stage) for _ in range(stage.replicas)), return_exceptions=True
    )
    failures = [f for f in opened if isinstance(f, BaseException)]
    made: list[Transport] = [t for t in opened if not isinstance(t, BaseException)]
    if failures:
        await asyncio.gather(*(t.aclose() for t in made))
        raise failures[0]
    shards = [made[i : i + stage.replicas] for i in range(0, len(made), stage.replicas)]
    return Pool(stage, [Replicas(copies) for copies in shards])


async def _start(stage: Stage[Any], opener: Callable[[], Any]) -> Transport:
    actor = _actor_class(stage).remote()
    transport = RayTransport(stage.name, actor)
    try:
        await transport.start(opener, stage.methods, START_TIMEOUT_S)
    except BaseException:
        ray.kill(actor)
        raise
    return transport


def _actor_class(stage: Stage[Any]) -> Any:
    resources = stage.resources
    return ray.remote(ReplicaActor).options(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        resources=resources.custom or None,
        max_concurrency=_CALLS_AT_ONCE,
        max_restarts=0,  # a restarted actor would have lost its state and streams; restarts are the pool's to decide
        runtime_env={"env_vars": {**ONE_THREAD, **stage.environment}},
    )


def _refuse_impossible(stage: Stage[Any]) -> None:
    """Raise when the cluster, whole and empty, could not hold one replica; actors would wait for ever."""
    wanted = {"CPU": stage.resources.cpus, "GPU": stage.resources.gpus, **stage.resources.custom}
    have = ray.cluster_resources()
    lacking = {k: v for k, v in wanted.items() if v > have.get(k, 0.0)}
    if lacking:
        listed = ", ".join(f"{v:g} {k} (the cluster has {have.get(k, 0.0):g})" for k, v in lacking.items())
        raise InvalidInput(
            f"stage {stage.name!r} asks for {listed}; start a node that has it, or ask for less in Resources"
        )
