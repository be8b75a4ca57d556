"""The floor under hybrid search: bare hnswlib and bare Lucene calls, fused in numpy, texts from a dictionary.

What is left out is all that makes a store of it: filters, durability, changes, scores that do not depend on the number
of shards or on deleted chunks, plans, scopes, passages with offsets and metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import Collection
from operators.corpus import jvm
from operators.corpus.manifest import IndexConfig


class BareLucene:
    """A Lucene index of titles and texts with the settings of ours, as a bulk load leaves it.

    Args:
        folder: Where its files go.
        collection: What to index.
        config: k1, b and boosts.
    """

    def __init__(self, folder: Path, collection: Collection, config: IndexConfig) -> None:
        self._java = jvm.start().JClass
        self._analyzer = self._java("headrace.MixedAnalyzer")
        self._boost = config.title_boost
        directory = self._lucene("store.FSDirectory").open(self._java("java.nio.file.Paths").get(str(folder)))
        similarity = self._lucene("search.similarities.BM25Similarity")(config.k1, config.b)
        self._fill(directory, similarity, collection)
        reader = self._lucene("index.DirectoryReader").open(directory)
        self.segments = int(reader.leaves().size())
        self._searcher = self._lucene("search.IndexSearcher")(reader)
        self._searcher.setSimilarity(similarity)
        self._questions = self._lucene("util.QueryBuilder")(self._analyzer.forQuestions())
        self._boosted, self._boolean = self._lucene("search.BoostQuery"), self._lucene("search.BooleanQuery$Builder")
        self._should = self._java("org.apache.lucene.search.BooleanClause$Occur").SHOULD
        self._number = self._numbers(reader)

    def _lucene(self, name: str) -> Any:
        return self._java("org.apache.lucene." + name)

    def _fill(self, directory: Any, similarity: Any, collection: Collection) -> None:
        settings = self._lucene("index.IndexWriterConfig")(self._analyzer.forChunks())
        settings.setSimilarity(similarity)
        writer = self._lucene("index.IndexWriter")(directory, settings)
        new, text = self._lucene("document.Document"), self._lucene("document.TextField")
        number, key = self._lucene("document.NumericDocValuesField"), 0
        no = self._java("org.apache.lucene.document.Field$Store").NO
        for block in collection.blocks():
            for document in block:
                for chunk in document.chunks:
                    row = new()
                    row.add(text("title", document.document.title, no))
                    row.add(text("text", chunk.text, no))
                    row.add(number("key", key))
                    writer.addDocument(row)
                    key += 1
        writer.commit()
        writer.close()

    def _numbers(self, reader: Any) -> np.ndarray:
        """Chunk number by Lucene's document number: merging may have moved them."""
        values = self._lucene("index.MultiDocValues").getNumericValues(reader, "key")
        numbers = []
        for _ in range(reader.maxDoc()):
            values.nextDoc()
            numbers.append(values.longValue())
        return np.array(numbers, np.int64)

    def search(self, question: str, limit: int) -> np.ndarray:
        """Numbers of the best chunks, best first."""
        query = self._boolean()
        title, text = (self._questions.createBooleanQuery(field, question) for field in ("title", "text"))
        query.add(self._boosted(title, self._boost), self._should)
        query.add(text, self._should)
        found = self._searcher.search(query.build(), limit)
        return self._number[[hit.doc for hit in found.scoreDocs]]


class Floor:
    """Both legs, reciprocal rank fusion, and the texts of the ten best. Safe from any thread.

    Args:
        folder: Where Lucene's files go.
        collection: What to search.
        config: As ours.
        candidates: Hits of each leg.
    """

    def __init__(self, folder: Path, collection: Collection, config: IndexConfig, *, candidates: int = 100) -> None:
        import hnswlib

        self._candidates, self._k = candidates, 20
        vectors = collection.vectors()
        self._graph = hnswlib.Index("ip", collection.dimension)
        self._graph.init_index(len(vectors), M=config.m, ef_construction=config.ef_construction)
        self._graph.add_items(vectors)
        self._graph.set_ef(max(config.ef_search, candidates))
        self._graph.set_num_threads(1)
        self.lucene = BareLucene(folder, collection, config)
        chunks = (chunk for block in collection.blocks() for document in block for chunk in document.chunks)
        self._texts = {number: chunk.text for number, chunk in enumerate(chunks)}
        self._legs = ThreadPoolExecutor(8)

    def one_after_another(self, question: str, vector: np.ndarray) -> list[str]:
        """The ten best, one leg after the other."""
        return self._best([self.dense(vector, self._candidates), self.lucene.search(question, self._candidates)])

    def at_once(self, question: str, vector: np.ndarray) -> list[str]:
        """The ten best, the lexical leg in another thread while the dense one runs."""
        lexical = self._legs.submit(self.lucene.search, question, self._candidates)
        return self._best([self.dense(vector, self._candidates), lexical.result()])

    def dense(self, vector: np.ndarray, limit: int) -> np.ndarray:
        """Numbers of the nearest chunks, nearest first."""
        return self._graph.knn_query(vector, k=limit, num_threads=1)[0][0].astype(np.int64)

    def _best(self, legs: Sequence[np.ndarray]) -> list[str]:
        keys, places = np.unique(np.concatenate(legs), return_inverse=True)
        rewards = np.concatenate([1 / (self._k + 1 + np.arange(len(leg))) for leg in legs])
        order = np.argsort(-np.bincount(places, rewards), kind="stable")[:10]
        return [self._texts[key] for key in keys[order].tolist()]
