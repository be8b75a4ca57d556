"""The shipped RayService is good, and each kind of mistake is found that a cluster would take without a word."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serve import kubernetes_schema
from serve.ray_service_file import check_ray_service
from serve.settings import Configuration
from tests.edited import edited

SHIPPED = Path(__file__).parents[2] / "deploy" / "rayservice.yaml"
SERVICE = 4  # the last of the file's documents
CLUSTER = (SERVICE, "spec", "rayClusterConfig")
HEAD = (*CLUSTER, "headGroupSpec")
GPU = (*CLUSTER, "workerGroupSpecs", 1)
POD = ("template", "spec")
CONTAINER = (*POD, "containers", 0)


def documents() -> list:
    """What the shipped file holds, with nothing shared between its parts as its anchors do."""
    return json.loads(json.dumps(list(yaml.safe_load_all(SHIPPED.read_text()))))


def changed(*path: str | int, value: object) -> list:
    """The same with one value set, or taken out by None."""
    return edited(documents(), *path, value=value)


def check(content: list) -> list[str]:
    return check_ray_service(content, lambda _: ["gateway", "embed", "dense-0"])


def serve_config(old: str, new: str) -> list:
    text = documents()[SERVICE]["spec"]["serveConfigV2"]
    assert old in text
    return changed(SERVICE, "spec", "serveConfigV2", value=text.replace(old, new))


def test_the_shipped_file_is_good_and_so_are_the_settings_in_it():
    assert check(documents()) == []
    configuration = msgspec.convert(tomllib.loads(documents()[1]["data"]["headrace.toml"]), Configuration)
    limits = documents()[SERVICE]["spec"]["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"]["containers"]
    assert limits[0]["resources"]["limits"]["nvidia.com/gpu"] >= configuration.gpus > 0


def test_the_images_have_the_ray_that_the_shipped_file_names_and_what_its_variables_point_to():
    build, cluster = SHIPPED.with_name("Dockerfile").read_text(), documents()[SERVICE]["spec"]["rayClusterConfig"]
    assert f"FROM rayproject/ray:{cluster['rayVersion']}-" in build
    paths = [v["value"] for v in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]]
    assert all(path in build for path in paths if path.startswith("/"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*GPU, "maxReplica"), 3, "spec.rayClusterConfig.workerGroupSpecs[1].maxReplica is not known there; do you"),
        ((*GPU, "template"), None, "spec.rayClusterConfig.workerGroupSpecs[1].template is missing"),
        ((*GPU, "replicas"), "one", "workerGroupSpecs[1].replicas: 'one' is not of type 'integer'"),
        ((*GPU, "maxReplicas"), None, "workerGroupSpecs[1].maxReplicas is missing"),
        ((*GPU, "minReplicas"), -1, "workerGroupSpecs[1].minReplicas: -1 is less than the minimum of 0"),
        ((*HEAD, "rayStartParams", "num-cpus"), 0, 'rayStartParams.num-cpus: 0 is no text; write "0", in quotes'),
        ((*CLUSTER, "headGroupSpec"), None, "spec.rayClusterConfig.headGroupSpec is missing"),
        ((*CLUSTER, "rayVersion"), None, "spec.rayClusterConfig.rayVersion is missing"),
        ((*CLUSTER, "rayVersion"), 2.6, 'write "2.6", in quotes'),
        ((*CLUSTER, "enableInTreeAutoscalling"), True, "do you mean enableInTreeAutoscaling?"),
        ((*CLUSTER, "autoscalerOptions", "version"), "v3", "'v3' is not one of ['v1', 'v2']"),
        ((*CLUSTER, "authOptions", "mode"), "tokn", "authOptions.mode: 'tokn' is not one of"),
        ((SERVICE, "spec", "serveConfig"), "", "spec.serveConfig is not known there; do you mean serveConfigV2?"),
        ((SERVICE, "spec", "serveConfigV2"), {}, "spec.serveConfigV2: {} is not of type 'string'"),
        ((SERVICE, "apiVersion"), "ray.io/v1alpha1", "apiVersion: 'ray.io/v1alpha1' is not one of"),
        ((*CLUSTER, "rayVersion"), "latest", "rayVersion: 'latest' is not a version such as 2.60.0"),
        ((SERVICE, "metadata", "name"), None, "metadata.name is missing"),
        ((SERVICE, "metadata", "name"), "My_Service", "'My_Service' is not a name such as my-service"),
        ((*GPU, *CONTAINER, "ports", 0, "containerPort"), 80000, "80000 is greater than the maximum of 65535"),
        ((*GPU, *POD, "containers"), [], "containers: [] "),
        # by Kubernetes' own schemas
        ((*GPU, *POD, "toleration"), [], "template.spec.toleration is not known there; do you mean tolerations?"),
        ((*GPU, *CONTAINER, "resource"), {}, "containers[0].resource is not known there; do you mean resources?"),
        ((*GPU, *CONTAINER, "env", 0, "value"), 1, 'env[0].value: 1 is no text; write "1", in quotes'),
        ((*GPU, *CONTAINER, "volumeMounts", 0, "mountpath"), "/x", "do you mean mountPath?"),
        ((*GPU, *POD, "volumes", 0, "persistentVolumeClaim"), {}, "persistentVolumeClaim.claimName is missing"),
        ((*CLUSTER, "autoscalerOptions", "resources"), {"limit": {}}, "resources.limit is not known there"),
        ((*GPU, *CONTAINER, "resources", "limits", "memory"), "28GB", "'28GB' is not a quantity such as 4, 500m or"),
        ((0, "spec", "resources", "requests", "storage"), -1, "storage: -1 is less than the minimum of 0"),
        ((0, "kind"), "PersistentVolumeClam", "in apiVersion v1; do you mean PersistentVolumeClaim?"),
        ((3, "apiVersion"), "v1", "Kubernetes 1.34 has no kind NetworkPolicy in apiVersion v1"),
        ((1, "dat"), {}, "ConfigMap: dat is not known there; do you mean data?"),
        ((3, "spec", "podSelecter"), {}, "NetworkPolicy: spec.podSelecter is not known there"),
    ],
)
def test_each_mistake_of_structure_is_told_with_its_place(path, value, said):
    found = check(changed(*path, value=value))
    assert any(said in sentence for sentence in found), found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*CLUSTER, "authOptions"), None, "authOptions.mode is missing; state token"),
        ((*CLUSTER, "authOptions"), {"secretName": "s"}, "authOptions.mode is missing; state token"),
        ((*CLUSTER, "authOptions", "mode"), "disabled", "whoever reaches a port of Ray's runs code"),
        ((*GPU, "minReplicas"), 5, "workerGroupSpecs[1]: minReplicas is 5, more than maxReplicas, 4"),
        ((*GPU, "replicas"), 0, "workerGroupSpecs[1]: replicas is 0; expected minReplicas to maxReplicas, 1 to 4"),
        ((*GPU, "groupName"), "shards", "groupName 'shards' is there 2 times"),
        ((*CLUSTER, "enableInTreeAutoscaling"), False, "shards, gpu would never grow or shrink"),
        ((*GPU, *CONTAINER, "env"), [], "RAY_SERVE_ENABLE_HA_PROXY is missing"),
        ((*HEAD, *CONTAINER, "env", 1), {"name": "A", "value": "b"}, "RAY_SERVE_THROUGHPUT_OPTIMIZED is missing"),
        ((*HEAD, *CONTAINER, "env", 0, "value"), "0", "RAY_SERVE_ENABLE_HA_PROXY is '0'; set it to \"1\""),
        ((*GPU, *CONTAINER, "volumeMounts", 0, "name"), "corpsu", "'corpsu' is none of the pod's volumes"),
        ((*GPU, *CONTAINER, "volumeMounts", 0, "mountPath"), "/data", "args.corpus of the application is /corpus"),
        ((*GPU, *CONTAINER, "volumeMounts", 1, "mountPath"), "/etc/head", "args.config of the application is /etc"),
        ((*GPU, *CONTAINER, "resources", "requests", "nvidia.com/gpu"), 2, "Kubernetes takes nvidia.com/gpu in limits"),
        ((*GPU, *CONTAINER, "ports", 0, "containerPort"), 8001, "asks port 8001 whether the pod is ready"),
        ((*HEAD, "rayStartParams", "num-cpus"), "4", 'set num-cpus: "0"'),
        ((*HEAD, "rayStartParams", "resources"), '{"head": 1}', "cannot read the groups' resources"),
        ((*HEAD, "rayStartParams", "resources"), None, "no group's pod has {'head': 0.01} for a replica of 'gateway'"),
        ((SERVICE, "spec", "serveConfigV2"), "a: [", "spec.serveConfigV2 is no YAML"),
        ((SERVICE, "spec", "serveConfigV2"), "", "spec.serveConfigV2 holds a NoneType"),
        ((SERVICE, "kind"), "RayJob", "expected one"),
    ],
)
def test_each_mistake_that_a_cluster_takes_is_told_with_its_place(path, value, said):
    found = check(changed(*path, value=value))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("- name: gateway", "- name: gatewy", "serveConfigV2: applications[0].deployments[0].name"),
        ("proxy_location", "proxy_locaton", "serveConfigV2: proxy_locaton is not known to Ray Serve"),
        ("port: 8000", "port: 7000", "http_options.port is 7000; name that port of the container serve"),
        ("host: 0.0.0.0", "host: 127.0.0.1", "other pods reach 0.0.0.0 only"),
        ("num_cpus: 0,", "num_cpus: 1,", "no group's pod has {'CPU': 1, 'head': 0.01}"),
        ("num_cpus: 0, resources: { head: 0.01 }", "num_gpus: 2", "no group's pod has {'CPU': 1, 'GPU': 2}"),
    ],
)
def test_mistakes_in_the_serve_config_are_told(old, new, said):
    found = check(serve_config(old, new))
    assert any(said in sentence for sentence in found), found


def test_a_key_with_nothing_after_it_is_told_where_kubernetes_would_drop_it():
    everything = documents()
    everything[SERVICE]["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["metadata"] = None
    everything[1]["metadata"]["labels"] = None
    assert check(everything) == [
        "ConfigMap: metadata.labels is empty; give it a value, or take it out",
        "spec.rayClusterConfig.headGroupSpec.template.metadata is empty; give it a value, or take it out",
    ]


def test_an_object_that_is_not_of_kubernetes_is_let_pass():
    other = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {"name": "x"}}
    assert check([*documents(), other]) == []


def places(value: object, at: tuple = ()) -> list[tuple]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(path for key, inner in inside for path in places(inner, (*at, key)))]


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_whatever_stands_anywhere_the_check_answers_in_sentences(data):
    path = data.draw(st.sampled_from(places(documents()[SERVICE])))
    value = data.draw(st.sampled_from([3, -1, 1e300, "x", "", True, [], {}, [None], {"": []}]))
    assert all(isinstance(sentence, str) for sentence in check(changed(SERVICE, *path, value=value)))


def test_without_the_schemas_of_kubernetes_the_rest_is_checked_and_that_is_said(monkeypatch):
    def forget():
        kubernetes_schema.definitions.cache_clear()
        kubernetes_schema.registry.cache_clear()

    monkeypatch.setitem(sys.modules, "kubernetes_validate", None)
    forget()
    try:
        assert ["pip install 'kubernetes-validate>=1.34'" in sentence for sentence in check(documents())] == [True]
        found = check(changed(*GPU, "maxReplica", value=3))
        assert "maxReplica is not known" in found[1]
    finally:
        forget()


def test_a_cluster_without_workers_passes():
    everything = changed(*CLUSTER, "workerGroupSpecs", value=[])
    assert check(everything) == []
