"""Corpora for tests of graphs and commands, made by the real ingest job from examples/documents."""

from __future__ import annotations

import asyncio
from pathlib import Path

from operators.corpus.manifest import IndexConfig
from serve.ingest_job import IngestJob, IngestReport
from serve.settings import Configuration

ROOT = Path(__file__).parents[1]
DOCUMENTS = ROOT / "examples" / "documents"


def ingested(folder: Path, *paths: Path, shards: int = 1, configuration: Configuration | None = None) -> IngestReport:
    """Ingest `paths` (the example documents when none) into a corpus in `folder`."""
    configuration = configuration or Configuration(corpus=IndexConfig(shards=shards))
    return asyncio.run(IngestJob(list(paths) or [DOCUMENTS], folder, configuration).run())
