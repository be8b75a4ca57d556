"""The commands that serve a corpus: `headrace serve` in the foreground, and the check of a cluster's file."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import cast

import click

from engine.errors import InvalidInput
from engine.run import EngineName
from graphs.parts import Parts
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import open_corpus
from serve.options import shared, told
from serve.settings import corpus_directory, read_configuration

PORT = 7272


@click.command("check-cluster")
@click.argument("file", type=click.Path(path_type=Path))
@told
def check_cluster(file: Path) -> None:
    """Check a file for `ray up` before it starts machines; nothing is sent anywhere."""
    from serve.cluster_file import check_cluster_file  # noqa: PLC0415 - imports Ray

    found = check_cluster_file(file)
    if found:
        raise InvalidInput("\n  ".join([f"{file}: {len(found)} to mend", *found]))
    click.echo(f"{file}: nothing wrong found")


@click.command()
@shared
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; other machines reach 0.0.0.0."
)
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="TCP port; 0 picks one.")
@told
def serve(corpus: str | None, config: str | None, engine: str, *, host: str, port: int) -> None:
    """Answer over HTTP: POST /v1/graphs/search and /v1/graphs/rag. Ctrl-C stops it.

    There is no authentication: at another address than a loopback one, whoever reaches the port may ask anything.
    """
    from serve.gateway.app import Gateway  # noqa: PLC0415 - the other commands need no web server
    from serve.gateway.server import serve as serve_http  # noqa: PLC0415 - as above

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for name in ("uvicorn", "sentence_transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    configuration = read_configuration(config)
    parts = Parts(configuration.profile(open_corpus(corpus_directory(corpus))))
    gateway = Gateway([search(parts), rag(parts)], configuration.serve, engine=cast("EngineName", engine))
    asyncio.run(serve_http(gateway, host, port))
