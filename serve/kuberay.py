"""The fields of KubeRay's RayService, level by level, as its published API reference lists them.

The definition that a cluster checks against (ray-operator/config/crd/bases/ray.io_rayservices.yaml, 1 MB) was found in
no package. These are its levels; the pods in them, most of that megabyte, are Kubernetes' own, with its own schemas
(serve/kubernetes_schema.py). What is `Object` here is not looked into. A key of a newer KubeRay is refused until it is
added.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

from serve.kubernetes_schema import URN

VERSION = "1.7"
"""Of KubeRay: https://docs.ray.io/en/master/kuberay/references/api.html."""


def _kubernetes(kind: str, family: str = "api.core") -> Meta:
    return Meta(extra_json_schema={"allOf": [{"$ref": f"{URN}#/$defs/io.k8s.{family}.v1.{kind}"}]})


Object: TypeAlias = dict[str, Any]
"""A part that is not looked into."""
Text: TypeAlias = dict[str, str]
Seconds: TypeAlias = Annotated[int, Meta(ge=0)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class _Part(Struct, frozen=True, rename="camel"):
    """A part of Kubernetes', of which the checks read these fields; its own schema knows the rest."""


class EnvVar(_Part, frozen=True, kw_only=True):
    """One variable of a container's environment; `value` is empty where it comes from elsewhere."""

    name: str
    value: str = ""


class VolumeMount(_Part, frozen=True, kw_only=True):
    """Where a container sees a volume."""

    name: str
    mount_path: str


class Port(_Part, frozen=True, kw_only=True):
    """A port that a container listens at."""

    container_port: Annotated[int, Meta(ge=1, le=65535)]
    name: str = ""


class Resources(_Part, frozen=True, kw_only=True):
    """What a container may use, and what is kept free for it, by resource such as cpu or nvidia.com/gpu."""

    limits: dict[str, str | float] = field(default_factory=dict)
    requests: dict[str, str | float] = field(default_factory=dict)


class Container(_Part, frozen=True, kw_only=True):
    """A container of a pod; Ray's is the first."""

    name: str
    image: str = ""
    env: list[EnvVar] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    resources: Resources = field(default_factory=Resources)
    volume_mounts: list[VolumeMount] = field(default_factory=list)


class Volume(_Part, frozen=True, kw_only=True):
    """A volume of a pod."""

    name: str


class Pod(_Part, frozen=True, kw_only=True):
    """What runs in a pod."""

    containers: Annotated[list[Container], Meta(min_length=1)]
    volumes: list[Volume] = field(default_factory=list)


class PodTemplate(_Part, frozen=True, kw_only=True):
    """What each pod of a group is made from."""

    spec: Pod


Template: TypeAlias = Annotated[PodTemplate, _kubernetes("PodTemplateSpec")]


class _Level(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A level of KubeRay's own; a cluster drops what it does not know without a word, so a typo is refused here."""


class AuthOptions(_Level, frozen=True, kw_only=True):
    """Who may talk to Ray's own ports."""

    mode: Literal["token", "disabled"] | UnsetType = UNSET
    secret_name: str = ""
    enable_k8s_token_auth: bool = False


class AutoscalerOptions(_Level, frozen=True, kw_only=True):
    """The container beside the head that adds and removes pods."""

    version: Literal["v1", "v2"] | UnsetType = UNSET
    idle_timeout_seconds: Seconds | UnsetType = UNSET
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"] | UnsetType = UNSET
    image: str = ""
    image_pull_policy: str = ""
    resources: Annotated[Object, _kubernetes("ResourceRequirements")] = field(default_factory=dict)
    security_context: Annotated[Object, _kubernetes("SecurityContext")] = field(default_factory=dict)
    env: list[Annotated[Object, _kubernetes("EnvVar")]] = field(default_factory=list)
    env_from: list[Annotated[Object, _kubernetes("EnvFromSource")]] = field(default_factory=list)
    volume_mounts: list[Annotated[Object, _kubernetes("VolumeMount")]] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)


class HeadGroup(_Level, frozen=True, kw_only=True):
    """The pod that holds Ray's control processes."""

    template: Template
    ray_start_params: Text = field(default_factory=dict)
    resources: Text = field(default_factory=dict)
    labels: Text = field(default_factory=dict)
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"] | UnsetType = UNSET
    head_service: Annotated[Object, _kubernetes("Service")] = field(default_factory=dict)
    enable_ingress: bool = False
    ingress_options: Object = field(default_factory=dict)


class ScaleStrategy(_Level, frozen=True, kw_only=True):
    """Which pods go first; the autoscaler writes it."""

    workers_to_delete: list[str] = field(default_factory=list)


class WorkerGroup(_Level, frozen=True, kw_only=True):
    """Pods of one kind, between a least and a greatest number, both of which must be stated here."""

    group_name: str
    min_replicas: Count
    max_replicas: Count
    template: Template
    replicas: Count | UnsetType = UNSET
    num_of_hosts: Annotated[int, Meta(ge=1)] = 1
    ray_start_params: Text = field(default_factory=dict)
    resources: Text = field(default_factory=dict)
    labels: Text = field(default_factory=dict)
    idle_timeout_seconds: Seconds | UnsetType = UNSET
    priority: int = 0
    scale_strategy: ScaleStrategy | UnsetType = UNSET
    suspend: bool = False


class ClusterUpgradeStrategy(_Level, frozen=True, kw_only=True):
    """What a change of a cluster does to its pods."""

    type: Literal["Recreate", "None"] | UnsetType = UNSET


ManagedBy: TypeAlias = Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]


class RayCluster(_Level, frozen=True, kw_only=True):
    """The machines: a head and groups of workers."""

    ray_version: Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$", description="a version such as 2.60.0")]
    head_group_spec: HeadGroup
    worker_group_specs: list[WorkerGroup] = field(default_factory=list)
    auth_options: AuthOptions | UnsetType = UNSET
    enable_in_tree_autoscaling: bool = False
    autoscaler_options: AutoscalerOptions | UnsetType = UNSET
    gcs_fault_tolerance_options: Object = field(default_factory=dict)
    head_service_annotations: Text = field(default_factory=dict)
    history_server_options: Object = field(default_factory=dict)
    managed_by: ManagedBy | UnsetType = UNSET
    network_policy: Object = field(default_factory=dict)
    suspend: bool = False
    tls_options: Object = field(default_factory=dict)
    upgrade_strategy: ClusterUpgradeStrategy | UnsetType = UNSET


class UpgradeOptions(_Level, frozen=True, kw_only=True):
    """The steps of an upgrade that moves the load bit by bit."""

    step_size_percent: int
    interval_seconds: int
    gateway_class_name: str
    max_surge_percent: int = 100


class UpgradeStrategy(_Level, frozen=True, kw_only=True):
    """What a change of the service does to its cluster."""

    type: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"] | UnsetType = UNSET
    cluster_upgrade_options: UpgradeOptions | UnsetType = UNSET


class ServiceSpec(_Level, frozen=True, kw_only=True):
    """What is served, and on which machines."""

    serve_config_v2: str
    ray_cluster_config: RayCluster
    exclude_head_pod_from_serve_svc: bool = False
    managed_by: ManagedBy | UnsetType = UNSET
    ray_cluster_deletion_delay_seconds: Seconds | UnsetType = UNSET
    serve_service: Annotated[Object, _kubernetes("Service")] = field(default_factory=dict)
    suspend: bool = False
    upgrade_strategy: UpgradeStrategy | UnsetType = UNSET


class ObjectMeta(_Part, frozen=True, kw_only=True):
    """What the service is called; Services get names that begin with it."""

    name: Annotated[str, Meta(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", description="a name such as my-service")]
    namespace: str = "default"


Metadata: TypeAlias = Annotated[ObjectMeta, _kubernetes("ObjectMeta", "apimachinery.pkg.apis.meta")]


class RayService(_Level, frozen=True, kw_only=True):
    """A service on a Ray cluster on Kubernetes."""

    api_version: Literal["ray.io/v1"]
    kind: Literal["RayService"]
    metadata: Metadata
    spec: ServiceSpec
