"""A good Serve config passes, and each kind of mistake is found, those that Ray lets pass among them."""

from __future__ import annotations

import pytest
import yaml

from serve.serve_file import check_serve_config
from tests.edited import edited

GOOD = """
http_options: {host: 0.0.0.0, port: 8000}
applications:
  - name: headrace
    route_prefix: /
    import_path: "serve.ray_serve.application:build"
    args: {corpus: /corpus, gateways: 2}
    deployments:
      - name: gateway
        ray_actor_options: {num_cpus: 0.5}
      - name: rerank
        autoscaling_config:
          min_replicas: 0
          max_replicas: 4
          policy: {policy_function: "ray.serve.autoscaling_policy:default_autoscaling_policy"}
"""
NAMES = ["gateway", "rerank", "dense-0", "dense-1"]


def changed(*path: str | int, value: object) -> dict:
    """The good config with one value set, or taken out by None."""
    return edited(yaml.safe_load(GOOD), *path, value=value)


def test_a_good_config_passes():
    assert check_serve_config(yaml.safe_load(GOOD), lambda _: NAMES) == []
    assert check_serve_config(yaml.safe_load(GOOD)) == []


APP = ("applications", 0)
GATEWAY = (*APP, "deployments", 0)
RERANK = (*APP, "deployments", 1)
SCALING = (*RERANK, "autoscaling_config")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*APP, "import_path"), "nocolon", "applications[0].import_path"),  # by Ray
        ((*GATEWAY, "num_replicas"), "two", "applications[0].deployments[0]: `num_replicas` must be"),  # by Ray
        ((*GATEWAY, "name"), None, "applications[0].deployments[0].name: Field required"),  # by Ray
        (("http_options", "port"), "web", "http_options.port"),  # by Ray
        (("aplications",), [], "aplications is not known to Ray Serve; do you mean applications?"),  # Ray lets pass
        (("http_options", "request_timeout"), 1, "do you mean request_timeout_s?"),
        (("http_options", "host"), None, "http_options.host is missing"),
        (("http_options", "port"), None, "http_options.port is missing"),
        ((*APP, "route_prefx"), "/", "applications[0].route_prefx is not known"),
        ((*GATEWAY, "num_replica"), 2, "applications[0].deployments[0].num_replica is not known"),
        ((*GATEWAY, "ray_actor_options", "num_cpu"), 1, "deployments[0].ray_actor_options.num_cpu is not known"),
        ((*SCALING, "max_replica"), 2, "deployments[1].autoscaling_config.max_replica is not known"),
        ((*SCALING, "max_replicas"), "many", "deployments[1].autoscaling_config.max_replicas: "),
        ((*SCALING, "policy", "function"), "a:b", "autoscaling_config.policy.function is not known"),
        ((*SCALING, "policy", "policy_function"), "nowhere:f", "No module named 'nowhere'"),
        ((*APP, "import_path"), "nowhere:build", "applications[0].import_path 'nowhere:build' cannot be imported"),
        ((*APP, "import_path"), "serve.settings:biuld", "has no attribute 'biuld'"),
        ((*APP, "args", "corpsu"), "/corpus", "applications[0].args: "),
        ((*APP, "args", "gateways"), "two", "Expected `int`, got `str`"),
        ((*GATEWAY, "name"), "gatewya", "no deployment 'gatewya'; do you mean gateway?; it has dense-0"),
        ((*GATEWAY, "name"), "rerank", "applications[0].deployments[1].name: 'rerank' is there twice"),
    ],
)
def test_each_mistake_is_told_with_its_place(path, value, said):
    found = check_serve_config(changed(*path, value=value), lambda _: NAMES)
    assert any(said in sentence for sentence in found), found
    assert len(found) == 1 or path[-1] == "policy_function"


@pytest.mark.parametrize("value", [3, "x", True, [], {}, [None], {"": []}, None])
@pytest.mark.parametrize("path", [("http_options",), APP, (*APP, "args"), GATEWAY, SCALING, (*SCALING, "policy")])
def test_whatever_stands_somewhere_the_check_answers_in_sentences(path, value):
    config = changed(*path, value={"": ""})
    at = config
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    assert all(isinstance(sentence, str) for sentence in check_serve_config(config))


def test_all_mistakes_are_told_at_once():
    config = changed(*GATEWAY, "num_replica", value=2)
    config["proxy_locatoin"] = "HeadOnly"
    del config["http_options"]["port"]
    assert len(check_serve_config(config)) == 3


@pytest.mark.parametrize("value", [[], "text", [[]], [None], {"name": "a"}])
def test_applications_of_a_wrong_shape_are_told(value):
    assert check_serve_config({"applications": value, "http_options": {"host": "::1", "port": 1}}) or value == []
