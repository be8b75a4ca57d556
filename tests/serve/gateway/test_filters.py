"""Filters over HTTP: what is mistyped is refused with what there is, before anything runs."""

from __future__ import annotations

from pathlib import Path

from graphs.parts import Parts, Profile
from graphs.rag import rag
from graphs.search import search
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.filter_operators import OPERATORS
from operators.models.embedder import EmbedderConfig
from operators.models.embedder_files import embedder_identity
from serve.gateway.config import GatewayConfig
from tests.serve.gateway.conftest import serving

TYPOS = [{"year": {"$gth": 3}}, {"year": {"gt": 2000}}, {"year": {"$gte": 1, "$lessthan": 2}}, {"$XOR": []}]


async def test_a_mistyped_operator_is_a_400_that_lists_the_valid_ones(tmp_path: Path) -> None:
    identity, dimension = embedder_identity(EmbedderConfig())
    corpus = create_corpus(tmp_path / "corpus", CorpusConfig(embedder=identity, dimension=dimension))
    parts = Parts(Profile(corpus))
    async with serving((search(parts), rag(parts)), GatewayConfig()) as served:
        for name, more in (("search", {}), ("rag", {}), ("rag", {"stream": True})):
            for typo in TYPOS:
                body = {"question": {"text": "Who built it?", "settings": {"filters": typo}}, **more}
                answer = await served.post(name, body)
                assert answer.status_code == 400
                valid = ("$and", "$or", "$not") if "$XOR" in typo else OPERATORS
                assert all(operator in answer.json()["message"] for operator in valid)
        good = {"question": {"text": "Who built it?", "settings": {"filters": {"year": {"$gt": 2000}}}}}
        assert (await served.post("search", good)).json()["result"]["passages"] == []
