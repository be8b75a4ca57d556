from __future__ import annotations

import pytest

from operators.corpus.manifest import open_corpus
from tests.corpora import ingested


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora") / "one"
    ingested(folder)
    return open_corpus(folder)
