from __future__ import annotations

import pytest
from click.testing import CliRunner

from serve.cli import main
from tests.corpora import ingested


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "corpus"
    ingested(folder)
    return str(folder)


@pytest.fixture
def headrace(monkeypatch):
    """Runs the command in this process."""
    monkeypatch.delenv("HEADRACE_CORPUS", raising=False)
    monkeypatch.delenv("HEADRACE_CONFIG", raising=False)

    def run(*args):
        return CliRunner().invoke(main, [str(a) for a in args], catch_exceptions=False)

    return run
