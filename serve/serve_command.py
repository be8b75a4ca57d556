"""The commands that serve a corpus: `headrace serve` in the foreground, and the check of a cluster's file."""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
from pathlib import Path
from typing import Literal

import click

from engine.errors import InvalidInput
from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import open_corpus
from serve.gateway.config import GatewayConfig
from serve.gateway.logs import log_to
from serve.options import config_option, corpus_option, told
from serve.ray_serve.arguments import ServeArguments
from serve.schema_errors import refuse
from serve.settings import corpus_directory, read_configuration

PORT = 7272


@click.command("check-cluster")
@click.argument("file", type=click.Path(path_type=Path))
@told
def check_cluster(file: Path) -> None:
    """Check a file for `ray up`, a KubeRay RayService or a Ray Serve config; nothing is sent anywhere."""
    from serve.cluster_file import check_cluster_file  # noqa: PLC0415 - imports Ray
    from serve.ray_serve.application import deployments_in  # noqa: PLC0415 - as above

    refuse(file, check_cluster_file(file, deployments_in))
    click.echo(f"{file}: nothing wrong found")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@corpus_option
@config_option
@click.option("--address", default="http://127.0.0.1:8265", show_default=True, help="The cluster's dashboard.")
@click.option("--write", is_flag=True, help="Write FILE for the corpus, and deploy nothing.")
@click.option("--host", default="127.0.0.1", show_default=True, help="With --write: address to listen at.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="With --write: TCP port.")
@told
def deploy(
    file: Path, corpus: str | None, config: str | None, address: str, *, write: bool, host: str, port: int
) -> None:
    """Give FILE, a Ray Serve config, to a running cluster and wait until what it describes runs.

    Ray on every node must have been started with headrace's environment: `headrace environment` prints it.
    """
    from serve.ray_serve.submit import config_for, read_config, submit  # noqa: PLC0415 - imports Ray Serve

    if write:
        folder = open_corpus(corpus_directory(corpus)).directory.resolve()
        found = None if config is None else str(Path(config).resolve())
        try:
            out = file.open("x", encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{file} cannot be written: {error}; name a file that is not there yet") from error
        with out:
            out.write(config_for(ServeArguments(corpus=str(folder), config=found), host=host, port=port))
        click.echo(f"{file} written; `headrace deploy {file}` gives it to a cluster")
        return
    submit(read_config(file), address, click.echo)


@click.command()
@told
def environment() -> None:
    """Print the variables that every node's `ray start` needs, as shell commands."""
    from serve.ray_serve.environment import MODE  # noqa: PLC0415 - the other commands do without

    for name, value in MODE.items():
        click.echo(f"export {name}={shlex.quote(value)}")


@click.command()
@corpus_option
@config_option
@click.option(
    "--engine",
    type=click.Choice(["ray", "local"]),
    default="ray",
    show_default=True,
    help="ray: Ray Serve, which replaces what dies; local: one process, which starts sooner and takes less memory.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; other machines reach 0.0.0.0."
)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="TCP port; 0 picks one.")
@click.option("--log", type=click.Choice(["text", "json"]), help="Form of log lines. [default: [serve] log, or text]")
@told
def serve(
    corpus: str | None, config: str | None, engine: str, *, host: str, port: int, log: Literal["text", "json"] | None
) -> None:
    """Answer over HTTP: POST /v1/graphs/search and /v1/graphs/rag. Ctrl-C stops it.

    There is no authentication: at another address than a loopback one, whoever reaches the port may ask anything.
    """
    configuration = read_configuration(config)  # mistakes are told before anything is started, which takes seconds
    opened = open_corpus(corpus_directory(corpus))
    profile = configuration.profile(opened)
    form = log or configuration.serve.log
    log_to(logging.StreamHandler(sys.stderr), form)
    if engine == "ray":
        replicas = configuration.scaling.shard.most if configuration.scaling.shard else 1
        processes = opened.config.shards * replicas + 16  # what one machine counts as processors is bookkeeping only
        _on_ray(ServeArguments(corpus=corpus, config=config, log=form), host, port, processes)
    else:
        _in_one_process(profile, configuration.serve, host, port)


def _on_ray(asked: ServeArguments, host: str, port: int, processes: int) -> None:
    from serve.ray_serve.foreground import run_until_stopped  # noqa: PLC0415 - the other engine needs no Ray

    def application(log: Path) -> object:
        from serve.ray_serve.application import ready_application  # noqa: PLC0415 - imports Ray Serve

        return ready_application(asked, log=str(log))

    run_until_stopped(application, host, port, sys.stderr, cpus=processes)


def _in_one_process(profile: Profile, limits: GatewayConfig, host: str, port: int) -> None:
    from serve.gateway.app import Gateway  # noqa: PLC0415 - the other commands need no web server
    from serve.gateway.server import serve as serve_http  # noqa: PLC0415 - as above

    parts = Parts(profile)
    gateway = Gateway([search(parts), rag(parts)], limits)
    asyncio.run(serve_http(gateway, host, port))
