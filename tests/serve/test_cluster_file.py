"""Each of the three kinds of file is recognised by what is in it, and what is none of them is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.errors import InvalidInput
from serve.cli import main
from serve.cluster_file import check_cluster_file

DEPLOY = Path(__file__).parents[2] / "deploy"


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", ["cluster.yaml", "rayservice.yaml"])
def test_the_command_finds_nothing_wrong_with_a_shipped_file(name):
    good = CliRunner().invoke(main, ["check-cluster", str(DEPLOY / name)])
    assert (good.exit_code, good.stdout) == (0, f"{DEPLOY / name}: nothing wrong found\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster_name: x\nprovider: {type: aws}", "provider.region is missing"),
        ("kind: RayService\nmetadata: {name: x}", "spec is missing"),
        ("apiVersion: v1\nkind: ConfigMap\n---\napiVersion: ray.io/v1\nkind: RayService", "metadata is missing"),
        ("kind: RayCluster", "it has: RayCluster"),
        ("applications: [{name: a, import_path: 'json:dumps', args: {}}]", "http_options.host is missing"),
        ("import_path: 'json:dumps'", "applications: Field required"),
    ],
)
def test_a_file_is_recognised_by_its_keys(tmp_path, text, said):
    found = check_cluster_file(written(tmp_path, text))
    assert any(said in sentence for sentence in found), found


@pytest.mark.parametrize("text", ["- a\n- b", "a: [", "", "\x00", "cluster_name: a\n---\ncluster_name: b"])
def test_what_is_no_cluster_file_is_refused(tmp_path, text):
    with pytest.raises(InvalidInput, match=r"x\.yaml"):
        check_cluster_file(written(tmp_path, text))


def test_an_application_that_can_be_built_tells_the_names_of_its_deployments(tmp_path):
    text = """
        http_options: {host: 127.0.0.1, port: 8000}
        applications: [{name: a, import_path: "json:dumps", args: {n: 2}, deployments: [{name: dense-2}]}]"""
    file = written(tmp_path, text)
    assert check_cluster_file(file) == []
    found = check_cluster_file(file, lambda application: [f"dense-{i}" for i in range(application["args"]["n"])])
    assert len(found) == 1
    assert "applications[0].deployments[0].name" in found[0]
    assert "it has dense-0, dense-1" in found[0]


def test_the_command_prints_what_is_wrong_and_ends_with_2(tmp_path):
    told = CliRunner().invoke(main, ["check-cluster", str(written(tmp_path, "provider: {type: aws}"))])
    assert told.exit_code == 2
    assert "provider.region is missing" in told.output
