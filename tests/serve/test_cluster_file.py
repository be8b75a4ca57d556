"""The shipped cluster file is good, and each kind of mistake is found, those that Ray lets pass among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from engine.errors import InvalidInput
from serve.cli import main
from serve.cluster_file import check_cluster_file
from serve.settings import read_configuration

SHIPPED = Path(__file__).parents[2] / "deploy" / "cluster.yaml"


def changed(tmp_path: Path, *path: str, value: object) -> Path:
    """The shipped file with one value set, or taken out by None."""
    config = yaml.safe_load(SHIPPED.read_text())
    at = config
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(config))
    return file


def test_the_shipped_file_is_good_and_so_are_its_settings():
    assert check_cluster_file(SHIPPED) == []
    configuration = read_configuration(str(SHIPPED.with_suffix(".toml")))
    assert configuration.gpus == 1.0
    types = yaml.safe_load(SHIPPED.read_text())["available_node_types"]
    assert max(t["resources"].get("GPU", 0) for t in types.values()) >= configuration.gpus


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
    ],
)
def test_each_mistake_is_told_with_its_place(tmp_path, path, value, said):
    found = check_cluster_file(changed(tmp_path, *path, value=value))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize("text", ["- a\n- b", "a: [", "", "\x00"])
def test_what_is_no_cluster_file_is_refused(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"x\.yaml"):
        check_cluster_file(tmp_path / "x.yaml")


def test_the_command_prints_what_is_wrong_and_ends_with_2(tmp_path):
    good = CliRunner().invoke(main, ["check-cluster", str(SHIPPED)])
    assert (good.exit_code, good.stdout) == (0, f"{SHIPPED}: nothing wrong found\n")
    bad = changed(tmp_path, "provider", "region", value=None)
    told = CliRunner().invoke(main, ["check-cluster", str(bad)])
    assert told.exit_code == 2
    assert "provider.region is missing" in told.output
