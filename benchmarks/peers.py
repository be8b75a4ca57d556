"""Other stores that search by vectors and words at once, with their recommended settings: LanceDB and txtai."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import Collection


class LanceDB:
    """A local LanceDB table with an HNSW index over scalar-quantised vectors and its own full text index.

    One partition, as its documentation recommends for a graph of this size. Texts are columns of the table.

    Args:
        folder: Of the database.
        collection: What to search.
        candidates: Hits of each leg: LanceDB fetches as many as are asked for, so the best ten are a slice of them.
    """

    def __init__(self, folder: Path, collection: Collection, *, candidates: int = 100) -> None:
        import lancedb
        import pyarrow as pa
        from lancedb.rerankers import RRFReranker

        self._candidates = candidates
        vectors = pa.list_(pa.float32(), collection.dimension)
        schema = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string()), ("vector", vectors)])

        def batches():
            for block in collection.blocks():
                rows = [(d.document, chunk) for d in block for chunk in d.chunks]
                flat = np.concatenate([d.vectors for d in block]).ravel()
                yield pa.record_batch(
                    [
                        pa.array([f"{document.id}#{chunk.ordinal}" for document, chunk in rows]),
                        pa.array([document.title for document, _ in rows]),
                        pa.array([chunk.text for _, chunk in rows]),
                        pa.FixedSizeListArray.from_arrays(pa.array(flat), collection.dimension),
                    ],
                    schema=schema,
                )

        self._table: Any = lancedb.connect(str(folder)).create_table("chunks", batches(), schema=schema)
        self._table.create_index(
            metric="cosine", vector_column_name="vector", index_type="IVF_HNSW_SQ", num_partitions=1
        )
        self._table.create_fts_index("text", use_tantivy=False)
        self._reranker = RRFReranker()

    def ask(self, question: str, vector: np.ndarray) -> list[str]:
        """The texts of the ten best."""
        found = (
            self._table.search(query_type="hybrid")
            .vector(vector)
            .text(question)
            .distance_type("cosine")
            .select(["id", "text"])
            .rerank(self._reranker)
            .limit(self._candidates)
            .to_arrow()
        )
        return found["text"].slice(0, 10).to_pylist()


class Txtai:
    """A txtai index with its hnswlib backend and its BM25, which fetch ten times the limit from each leg.

    Texts come from a dictionary, as the floor's do: the cursor of txtai's own database is for one thread at a time, and
    without it a search does less. Vectors are given: a question's is looked up by its text.

    Args:
        collection: What to search.
        questions: Those that will be asked.
        vectors: Theirs, float32[Q, D].
    """

    def __init__(self, collection: Collection, questions: Sequence[str], vectors: np.ndarray) -> None:
        from txtai import Embeddings

        known = dict(zip(questions, vectors, strict=True))

        def transform(texts: Sequence[str]) -> np.ndarray:
            return np.stack([known[text] for text in texts])

        self._texts: list[str] = []
        for block in collection.blocks():
            for document in block:
                texts = [chunk.text for chunk in document.chunks]
                known.update(zip(texts, document.vectors, strict=True))
                self._texts += texts
        self._index = Embeddings(
            method="external", transform=transform, backend="hnsw", hybrid=True, content=False, hnsw={"efsearch": 100}
        )
        self._index.index((number, text, None) for number, text in enumerate(self._texts))
        for text in self._texts:
            known.pop(text, None)

    def ask(self, question: str, _: np.ndarray) -> list[str]:
        """The texts of the ten best."""
        return [self._texts[number] for number, _ in self._index.search(question, 10)]
