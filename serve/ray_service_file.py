"""What is wrong with a KubeRay RayService: in its structure, and in what a cluster would take and then not serve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from serve.kuberay import Container, HeadGroup, RayCluster, RayService, WorkerGroup
from serve.kubernetes_schema import VERSION, check_object, definitions, registry
from serve.ray_serve.environment import LOOPBACK, MODE
from serve.schema_errors import errors_in, place
from serve.serve_file import DeploymentsOf, check_serve_config

_CLUSTER = "spec.rayClusterConfig"
_SERVE_PORT = 8000  # what KubeRay's readiness probe asks when no port of the container is named "serve"


def check_ray_service(documents: Sequence[Mapping[str, Any]], deployments_of: DeploymentsOf) -> list[str]:
    """What is wrong with the objects of a file for Kubernetes, in sentences; nothing for a good one.

    Args:
        documents: Parsed YAML: one RayService, and perhaps objects that it needs, such as a ConfigMap.
        deployments_of: See check_serve_config.
    """
    services = [document for document in documents if document.get("kind") == "RayService"]
    if len(services) != 1:
        kinds = ", ".join(str(document.get("kind")) for document in documents)
        return [f"the file holds {len(services)} objects of kind RayService (it has: {kinds}); expected one"]
    others = [
        f"{document.get('kind')}: {sentence}"
        for document in documents
        if document is not services[0]
        for sentence in [*_empty(document, ()), *check_object(document)]
    ]
    return [*_of_tools(), *others, *_empty(services[0], ()), *_of_service(services[0], deployments_of)]


def _of_tools() -> Iterator[str]:
    if definitions() is None:
        yield (
            f"the insides of pods were not checked: pip install 'kubernetes-validate>={VERSION}', "
            f"which brings Kubernetes' schemas"
        )


def _empty(value: object, at: tuple[str | int, ...]) -> Iterator[str]:
    """Keys with nothing after them, which Kubernetes drops: what belongs there is not indented, or is forgotten."""
    if value is None:
        yield f"{place(at)} is empty; give it a value, or take it out"
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _empty(inner, (*at, key))


def _of_service(manifest: Mapping[str, Any], deployments_of: DeploymentsOf) -> list[str]:
    found = errors_in(manifest, msgspec.json.schema(RayService), registry())
    if found:
        return found  # the rest is worth asking of a file that is one
    try:
        service = msgspec.convert(manifest, RayService)
    except msgspec.ValidationError as error:  # a schema takes 1.0 for an integer
        return [str(error)]
    cluster, serve_config = service.spec.ray_cluster_config, _serve_config(service.spec.serve_config_v2)
    if isinstance(serve_config, str):
        return [*_of_cluster(cluster), serve_config]
    told = [f"spec.serveConfigV2: {sentence}" for sentence in check_serve_config(serve_config, deployments_of)]
    together = _of_both(manifest, cluster, serve_config) if not told else ()
    return [*_of_cluster(cluster), *told, *together]


def _serve_config(text: str) -> Mapping[str, Any] | str:
    """What the string holds, or what is wrong with it."""
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return f"spec.serveConfigV2 is no YAML: {error}"
    if not isinstance(config, dict):
        return f"spec.serveConfigV2 holds a {type(config).__name__}; expected text with the keys of a Serve config"
    return config


def _groups(cluster: RayCluster) -> Iterator[tuple[str, HeadGroup | WorkerGroup]]:
    yield f"{_CLUSTER}.headGroupSpec", cluster.head_group_spec
    for index, group in enumerate(cluster.worker_group_specs):
        yield f"{_CLUSTER}.workerGroupSpecs[{index}]", group


def _of_cluster(cluster: RayCluster) -> Iterator[str]:
    yield from _of_authentication(cluster)
    elastic = [group.group_name for group in cluster.worker_group_specs if group.max_replicas > group.min_replicas]
    if elastic and not cluster.enable_in_tree_autoscaling:
        yield f"{_CLUSTER}.enableInTreeAutoscaling is not true; {', '.join(elastic)} would never grow or shrink"
    names = Counter(group.group_name for group in cluster.worker_group_specs)
    for name in (name for name, times in names.items() if times > 1):
        yield f"{_CLUSTER}.workerGroupSpecs: groupName {name!r} is there {names[name]} times; give each its own"
    for at, group in _groups(cluster):
        if isinstance(group, WorkerGroup):
            yield from _of_counts(at, group)
        mounted = {volume.name for volume in group.template.spec.volumes}
        for index, container in enumerate(group.template.spec.containers):
            yield from _of_container(f"{at}.template.spec.containers[{index}]", container, mounted)


def _of_authentication(cluster: RayCluster) -> Iterator[str]:
    mode = msgspec.UNSET if cluster.auth_options is msgspec.UNSET else cluster.auth_options.mode
    if mode is msgspec.UNSET:
        yield f"{_CLUSTER}.authOptions.mode is missing; state token, which an older KubeRay or Ray would not choose"
    elif mode != "token":
        yield f"{_CLUSTER}.authOptions.mode is {mode}; whoever reaches a port of Ray's runs code, so state token"


def _of_counts(at: str, group: WorkerGroup) -> Iterator[str]:
    low, high, now = group.min_replicas, group.max_replicas, group.replicas
    if low > high:
        yield f"{at}: minReplicas is {low}, more than maxReplicas, {high}"
    elif isinstance(now, int) and not low <= now <= high:
        yield f"{at}: replicas is {now}; expected minReplicas to maxReplicas, {low} to {high}"


def _of_container(at: str, container: Container, volumes: set[str]) -> Iterator[str]:
    values = {variable.name: variable.value for variable in container.env}
    for name, wanted in MODE.items():
        said = f"is {values[name]!r}" if name in values else "is missing"
        if Path(values.get(name, "")).name != Path(wanted).name:  # a file's folder is the image's own
            yield f'{at}.env: {name} {said}; set it to "{wanted}" in every container: all must run Serve in one mode'
    for mount in container.volume_mounts:
        if mount.name not in volumes:
            yield f"{at}.volumeMounts: {mount.name!r} is none of the pod's volumes ({', '.join(sorted(volumes))})"
    limits, requests = container.resources.limits, container.resources.requests
    for name in requests:
        if "/" in name and requests[name] != limits.get(name):
            yield f"{at}.resources: Kubernetes takes {name} in limits only (requests say {requests[name]})"


def _of_both(manifest: Mapping[str, Any], cluster: RayCluster, config: Mapping[str, Any]) -> Iterator[str]:
    """What only the two parts together show: the cluster and what is to run on it."""
    options = config["http_options"]
    if options["host"] in LOOPBACK:
        yield f"spec.serveConfigV2: http_options.host is {options['host']}; other pods reach 0.0.0.0 only"
    for at, group in _groups(cluster):
        container = group.template.spec.containers[0]
        port = next((port.container_port for port in container.ports if port.name == "serve"), _SERVE_PORT)
        if port != options["port"]:
            yield (
                f"{at}: KubeRay asks port {port} whether the pod is ready and http_options.port is {options['port']}; "
                f"name that port of the container serve"
            )
        yield from _of_files(at, container, config)
    yield from _of_resources(manifest, config)


def _of_files(at: str, container: Container, config: Mapping[str, Any]) -> Iterator[str]:
    seen = [mount.mount_path.rstrip("/") for mount in container.volume_mounts]
    for application in config["applications"]:
        for key, value in (application.get("args") or {}).items():
            if isinstance(value, str) and value.startswith("/") and not any(_under(value, path) for path in seen):
                yield f"{at}: args.{key} of the application is {value}, which no volume of its container holds"


def _under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _of_resources(manifest: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Replicas that no pod can hold, as Ray's own autoscaler reads the pods: they would wait for ever."""
    try:
        pods = _pods_resources(manifest)
    except (ValueError, KeyError, TypeError, AssertionError) as error:  # what Ray raises at odd resources
        yield f"{_CLUSTER}: Ray's autoscaler cannot read the groups' resources: {error!r}"
        return
    if pods["headgroup"].get("CPU"):
        yield f'{_CLUSTER}.headGroupSpec.rayStartParams: set num-cpus: "0"; work beside Ray\'s own may starve it'
    for application in config["applications"]:
        for deployment in application.get("deployments") or ():
            wanted = _wanted(deployment.get("ray_actor_options"))
            if wanted and not any(all(pod.get(key, 0) >= wanted[key] for key in wanted) for pod in pods.values()):
                yield (
                    f"spec.serveConfigV2: no group's pod has {wanted} for a replica of {deployment['name']!r}; "
                    f"they have {pods}"
                )


def _pods_resources(manifest: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    from ray.autoscaler._private.kuberay.autoscaling_config import (  # noqa: PLC0415 - heavy
        _derive_autoscaling_config_from_ray_cr,
    )

    metadata = {"namespace": "default", **manifest["metadata"]}
    spec = {"workerGroupSpecs": [], **manifest["spec"]["rayClusterConfig"]}
    config = _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": spec})
    return {name: node["resources"] for name, node in config["available_node_types"].items()}


def _wanted(options: Mapping[str, Any] | None) -> dict[str, float]:
    """What a replica asks for, which the application's code says where the file has no options."""
    if options is None:
        return {}
    asked = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus"), **(options.get("resources") or {})}
    return {name: amount for name, amount in asked.items() if amount}
