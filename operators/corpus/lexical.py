"""The lexical index of one shard: BM25 over title and text in Lucene."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import InvalidInput
from operators.corpus import jvm
from operators.corpus.filters import Allowed
from operators.corpus.manifest import CorpusConfig
from operators.messages import TermStatistics

FIELDS = ("title", "text")
MAX_TERMS = 1024  # of a question; the rarest are kept
_CHUNKS_AT_ONCE = 512
_MIXED = ("cjkWidth", "lowercase", "asciiFolding", "cjkBigram", "englishPossessive", "stop", "porterStem")


class LexicalIndex:
    """Titles and texts by key. One thread changes it; any number search what was there at the last `refresh`.

    Args:
        folder: Where Lucene keeps its files.
        config: Analyzer, k1, b and the boosts.
        writable: Whether changes will be made; Lucene allows one such index a folder.
    """

    def __init__(self, folder: Path, config: CorpusConfig, *, writable: bool) -> None:
        jpype = jvm.start()
        self._java: Any = jpype.JClass
        self._jpype = jpype
        self._boosts = [config.title_boost, config.text_boost]
        self._similarity = self._lucene("search.similarities.BM25Similarity")(config.k1, config.b)
        self._analyzer, indexing = self._analyzers(config.analyzer)
        self._lucene("search.IndexSearcher").setMaxClauseCount(2 * MAX_TERMS * len(FIELDS))
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._directory = self._lucene("store.FSDirectory").open(self._java("java.nio.file.Paths").get(str(folder)))
        self._writer: Any = None
        self._snapshot: Any = None
        self.seq = 0
        self.note = ""
        try:
            self._open(indexing if writable else None)
        except self._damage() as error:
            self.note = f"the lexical index is damaged ({error.getMessage()})"
            if writable:
                shutil.rmtree(folder)
                folder.mkdir()
                self._open(indexing)

    def _lucene(self, name: str) -> Any:
        return self._java("org.apache.lucene." + name)

    # Opening

    def _analyzers(self, name: str) -> tuple[Any, Any]:
        """For questions and for chunks, which alone have single Chinese characters beside the bigrams.

        So a question of one character finds them; in a question of several they would only add noise.
        """
        if name == "anserini-english":
            analyzer = self._java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
            return analyzer, analyzer
        return self._mixed(unigrams=False), self._mixed(unigrams=True)

    def _mixed(self, *, unigrams: bool) -> Any:
        new_map = self._java("java.util.HashMap")
        builder = self._lucene("analysis.custom.CustomAnalyzer").builder().withTokenizer("standard", new_map())
        for name in _MIXED:
            options = new_map()
            if name == "cjkBigram" and unigrams:
                options.put("outputUnigrams", "true")
            builder = builder.addTokenFilter(name, options)
        return builder.build()

    def _damage(self) -> tuple[Any, ...]:
        names = (
            "org.apache.lucene.index.CorruptIndexException",
            "java.io.EOFException",
            "java.io.FileNotFoundException",
        )
        return *map(self._java, names), self._java("java.nio.file.NoSuchFileException")

    def _open(self, analyzer: Any) -> None:
        if analyzer is not None:
            self._writer = self._new_writer(analyzer)
        self._snapshot = self._open_snapshot()
        self.seq = self._committed_seq()

    def _new_writer(self, analyzer: Any) -> Any:
        settings = self._lucene("index.IndexWriterConfig")(analyzer)
        settings.setSimilarity(self._similarity)
        settings.setCommitOnClose(False)
        try:
            return self._lucene("index.IndexWriter")(self._directory, settings)
        except self._lucene("store.LockObtainFailedException") as error:
            raise InvalidInput(f"{self._folder} is being written by someone else; a shard has one writer") from error

    def _open_snapshot(self) -> Any:
        reader = self._lucene("index.DirectoryReader")
        if self._writer is not None:
            return self._java("headrace.Snapshot")(reader.open(self._writer), list(FIELDS))
        if reader.indexExists(self._directory):
            return self._java("headrace.Snapshot")(reader.open(self._directory), list(FIELDS))
        return None

    def _committed_seq(self) -> int:
        reader = self._lucene("index.DirectoryReader")
        if not reader.indexExists(self._directory):
            return 0
        data = self._lucene("index.SegmentInfos").readLatestCommit(self._directory).getUserData()
        return int(data.get("seq") or 0)

    # Changing

    def add(self, document_id: str, keys: Sequence[int], titles: Sequence[str], texts: Sequence[str]) -> None:
        """Puts chunks in the place of whatever the index has of the document."""
        assert self._writer is not None, "the index was opened for reading"
        self.remove(document_id)
        for start in range(0, len(keys), _CHUNKS_AT_ONCE):
            some = slice(start, start + _CHUNKS_AT_ONCE)
            columns = [list(titles[some]), list(texts[some])]
            self._java("headrace.Snapshot").add(self._writer, document_id, list(keys[some]), list(FIELDS), columns)

    def remove(self, document_id: str) -> None:
        """Removes the chunks of a document, if there are any."""
        assert self._writer is not None, "the index was opened for reading"
        self._writer.deleteDocuments([self._lucene("index.Term")("document", document_id)])

    def refresh(self) -> None:
        """Makes changes visible to searches: the writer's own at once, for a reader those that the writer committed."""
        if self._snapshot is None:
            self._snapshot = self._open_snapshot()
        else:
            old, self._snapshot = self._snapshot, self._snapshot.refreshed(self._writer)
            if not self._snapshot.equals(old):
                old.close()
        if self._writer is None:
            self.seq = self._committed_seq()

    def commit(self, seq: int) -> None:
        """Puts the changes on the disk, with the number of the last one."""
        assert self._writer is not None, "the index was opened for reading"
        data = self._java("java.util.HashMap")()
        data.put("seq", str(seq))
        self._writer.setLiveCommitData(data.entrySet())
        self._writer.commit()
        self.seq = seq

    def close(self) -> None:
        """Closes the files; changes since the last commit are dropped."""
        if self._snapshot is not None:
            self._snapshot.close()
        if self._writer is not None:
            self._writer.rollback()
        self._directory.close()

    # Searching

    def __len__(self) -> int:
        return int(self._snapshot.size()) if self._snapshot is not None else 0

    def terms(self, question: str) -> dict[str, int]:
        """The terms of a question and how often it says each, in its order."""
        return dict(Counter(str(t) for t in self._java("headrace.Snapshot").terms(self._analyzer, question)))

    def statistics(self, terms: Sequence[str]) -> TermStatistics:
        """What BM25 must know of this shard to score those terms."""
        if self._snapshot is None:
            return TermStatistics({}, {}, {}, {})
        rows = [np.array(row).tolist() for row in self._read("statistics", list(terms))]
        return TermStatistics(
            {field: row[0] for field, row in zip(FIELDS, rows, strict=True)},
            {field: row[1] for field, row in zip(FIELDS, rows, strict=True)},
            {field: dict(zip(terms, row[2::2], strict=True)) for field, row in zip(FIELDS, rows, strict=True)},
            {field: dict(zip(terms, row[3::2], strict=True)) for field, row in zip(FIELDS, rows, strict=True)},
        )

    def search(
        self, terms: dict[str, int], statistics: TermStatistics, limit: int, allowed: Allowed | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best hits: keys int64[K] and BM25 scores float32[K], score descending, then key ascending.

        Args:
            terms: Of the question; of more than 1,024 the rarest are kept.
            statistics: Of the whole corpus: with them a shard scores as if it held all of it.
            limit: K at most.
            allowed: The only keys to choose from; None for all.
        """
        terms = _rarest(terms, statistics)
        if self._snapshot is None or not terms or limit < 1 or (allowed is not None and not len(allowed.keys)):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        hits = self._read(
            "search",
            self._similarity,
            self._boosts,
            list(terms),
            [float(count) for count in terms.values()],
            [_row(statistics, field, terms) for field in FIELDS],
            None if allowed is None else self._jpype.JArray(self._jpype.JLong)(allowed.keys),
            limit,
        )
        return np.array(hits.keys, np.int64), np.array(hits.scores, np.float32)

    def _read(self, name: str, *arguments: Any) -> Any:
        """Calls the snapshot; when a refresh has closed it meanwhile, the one that came in its place."""
        while True:
            snapshot = self._snapshot
            try:
                return getattr(snapshot, name)(*arguments)
            except self._lucene("store.AlreadyClosedException"):
                if snapshot is self._snapshot:
                    raise


def _row(statistics: TermStatistics, field: str, terms: dict[str, int]) -> list[int]:
    frequency, occurrences = statistics.document_frequency.get(field, {}), statistics.term_frequency.get(field, {})
    row = [statistics.document_count.get(field, 0), statistics.token_count.get(field, 0)]
    for term in terms:
        row += [frequency.get(term, 0), occurrences.get(term, 0)]
    return row


def _rarest(terms: dict[str, int], statistics: TermStatistics) -> dict[str, int]:
    frequency = {t: sum(f.get(t, 0) for f in statistics.document_frequency.values()) for t in terms}
    known = [t for t in terms if frequency[t]]
    kept = set(sorted(known, key=lambda t: (frequency[t], t))[:MAX_TERMS])
    return {t: count for t, count in terms.items() if t in kept}
