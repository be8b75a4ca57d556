"""The shipped file for `ray up` is good, and each kind of mistake is found, those that Ray lets pass among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from serve.ray_up_file import check_ray_up
from serve.settings import read_configuration
from tests.edited import edited

SHIPPED = Path(__file__).parents[2] / "deploy" / "cluster.yaml"


def changed(*path: str, value: object) -> dict:
    """The shipped file with one value set, or taken out by None."""
    return edited(yaml.safe_load(SHIPPED.read_text()), *path, value=value)


def test_the_shipped_file_is_good_and_so_are_its_settings():
    config = yaml.safe_load(SHIPPED.read_text())
    assert check_ray_up(config) == []
    configuration = read_configuration(str(SHIPPED.with_suffix(".toml")))
    assert configuration.gpus == 1.0
    assert max(t["resources"].get("GPU", 0) for t in config["available_node_types"].values()) >= configuration.gpus


GPU = ("available_node_types", "gpu")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("max_worker",), 3, "max_worker"),  # by Ray
        (("head_node_type",), "haed", "head_node_type"),  # by Ray
        ((*GPU, "resources", "GPU"), "one", "one"),  # by Ray
        ((*GPU, "max_worker"), 3, "max_worker"),  # by Ray
        (("provider", "region"), None, "region"),  # Ray lets these pass
        ((*GPU, "node_config", "InstanceTyp"), "g6.xlarge", "do you mean InstanceType?"),
        ((*GPU, "node_config", "InstanceType"), None, "names no machine"),
        ((*GPU, "min_workers"), 9, "more than max_workers"),
        ((*GPU, "resources", "GPU"), 0, "resources say none"),
        ((*GPU, "node_config", "InstanceType"), "m7i.large", "actors would wait for ever"),
        (("worker_start_ray_commands",), ["ray start --address=$RAY_HEAD_IP:6379"], "RAY_AUTH_MODE=token"),
        (
            ("worker_start_ray_commands",),
            ["RAY_AUTH_MODE=token ray start --address=$RAY_HEAD_IP:6379"],
            "headrace's mode",
        ),
    ],
)
def test_each_mistake_is_told_with_its_place(path, value, said):
    found = check_ray_up(changed(*path, value=value))
    assert any(said in sentence for sentence in found), found
