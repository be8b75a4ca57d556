"""Stages as deployments of Ray Serve: one a shard, so that routing, health and scaling are a shard's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from engine.local import openers
from engine.pool import Pool
from engine.process import ONE_THREAD
from engine.ray.members import Members
from engine.ray.replica import StageReplica
from engine.replicas import Replicas
from engine.stage import Stage

_CALLS_AT_ONCE = 4096  # pulls wait in the replica, so many are in flight; queues are bounded by batchers, not here
_HEALTH_S = 2.0
_ENDING_S = 30.0  # for streams to end, when a replica is one too many or is replaced


def names_of(stage: Stage[Any]) -> list[str]:
    """Names of a stage's deployments, shard by shard."""
    return [stage.name] if stage.shards is None else [f"{stage.name}-{shard}" for shard in range(stage.shards)]


def deployments_of(stage: Stage[Any]) -> list[Application]:
    """A stage's deployments, shard by shard, to be bound to whoever calls them."""
    deployment = serve.deployment(StageReplica)
    return [
        deployment.options(name=name, **_options(stage)).bind(opener, dict(stage.methods))
        for name, opener in zip(names_of(stage), openers(stage), strict=True)
    ]


def _options(stage: Stage[Any]) -> dict[str, Any]:
    resources = stage.resources
    options: dict[str, Any] = {
        "ray_actor_options": {
            "num_cpus": resources.cpus,
            "num_gpus": resources.gpus,
            "resources": dict(resources.custom),
            "runtime_env": {"env_vars": {**ONE_THREAD, **stage.environment}},
        },
        "max_ongoing_requests": _CALLS_AT_ONCE,
        "health_check_period_s": _HEALTH_S,
        "graceful_shutdown_timeout_s": _ENDING_S,
        "graceful_shutdown_wait_loop_s": 0.2,
    }
    if stage.scaling is None or stage.scaling.least == stage.scaling.most:
        return {**options, "num_replicas": stage.replicas}
    scaling = stage.scaling
    return {
        **options,
        "autoscaling_config": {
            "min_replicas": scaling.least,
            "initial_replicas": max(scaling.least, min(stage.replicas, scaling.most)),
            "max_replicas": scaling.most,
            "upscale_delay_s": scaling.up_after_s,
            "downscale_delay_s": scaling.down_after_s,
            "downscale_to_zero_delay_s": scaling.down_after_s,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 2.0,
            "policy": {
                "policy_function": "engine.scaling:ByQueuedSeconds",
                "policy_kwargs": {"queued_s": scaling.queued_s},
            },
        },
    }


async def open_on_handles(handles: Mapping[str, Sequence[DeploymentHandle]], stage: Stage[Any]) -> Pool:
    """A stage whose deployments run, or will: its calls wait for a replica that is still being started.

    Args:
        handles: By the stage's name, those of its deployments, shard by shard.
        stage: The stage.
    """
    found = handles[stage.name]
    return Pool(stage, [Replicas(Members(stage.name, handle), name=handle.deployment_name) for handle in found])
