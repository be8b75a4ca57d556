"""`headrace deploy` and `headrace environment`: what is written, and what is refused before anything is sent."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from serve.cli import main
from tests.corpora import ingested


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deploy") / "corpus"
    ingested(folder, shards=2)
    return folder


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_a_written_config_has_nothing_to_mend(corpus, tmp_path):
    file = tmp_path / "serve.yaml"
    written = run("deploy", file, "--write", "--corpus", corpus, "--port", 7001)
    assert (written.exit_code, written.output.split()[1]) == (0, "written;")
    assert yaml.safe_load(file.read_text())["http_options"] == {"host": "127.0.0.1", "port": 7001}
    assert run("check-cluster", file).exit_code == 0


def test_gateways_stay_where_a_front_on_loopback_reaches_them(corpus, tmp_path):
    for host, kept in (("127.0.0.1", True), ("0.0.0.0", False)):
        file = tmp_path / f"{host}.yaml"
        run("deploy", file, "--write", "--corpus", corpus, "--host", host)
        (application,) = yaml.safe_load(file.read_text())["applications"]
        assert ("node:__internal_head__" in str(application.get("deployments"))) is kept
        assert run("check-cluster", file).exit_code == 0


def test_a_file_that_is_there_is_not_written_over(corpus, tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("mine")
    refused = run("deploy", file, "--write", "--corpus", corpus)
    assert (refused.exit_code, file.read_text()) == (2, "mine")
    assert "name a file that is not there yet" in refused.output


def test_a_misspelt_deployment_is_told_before_anything_is_sent(corpus, tmp_path):
    file = tmp_path / "serve.yaml"
    run("deploy", file, "--write", "--corpus", corpus)
    config = yaml.safe_load(file.read_text())
    config["applications"][0]["deployments"] = [{"name": "shard-2", "num_replicas": 2}]
    file.write_text(yaml.safe_dump(config))
    refused = run("deploy", file, "--address", "http://127.0.0.1:1")
    assert refused.exit_code == 2
    assert "shard-2" in refused.output
    assert "shard-0" in refused.output


def test_a_cluster_that_nobody_answers_for_is_told_with_what_to_do(corpus, tmp_path):
    file = tmp_path / "serve.yaml"
    run("deploy", file, "--write", "--corpus", corpus)
    refused = run("deploy", file, "--address", "http://127.0.0.1:1")
    assert refused.exit_code == 2
    assert "ray start --head" in refused.output


def test_the_environment_sets_one_mode_of_serve():
    lines = run("environment").output.splitlines()
    assert "export RAY_SERVE_THROUGHPUT_OPTIMIZED=1" in lines
    assert any(line.startswith("export RAY_SERVE_HAPROXY_BINARY_PATH=/") for line in lines)
