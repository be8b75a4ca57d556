"""The lexical index of one shard: BM25 over title and text in Lucene."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import InvalidInput
from operators.corpus import jvm
from operators.corpus.allowed import Allowed
from operators.corpus.analysis import Analysis
from operators.corpus.manifest import CorpusConfig
from operators.messages import TermStatistics

FIELDS = ("title", "text")
MAX_TERMS = 1024  # of a question; the rarest are kept
_CHUNKS_AT_ONCE = 512
_FILTERS_KEPT = 8
_SEGMENT_MB, _CACHE_MB = 4.0, 24.0
_SEGMENTS_PER_TIER = 5  # Lucene's own 10 makes writing cheaper, and each question looks its terms up in every segment


def fingerprints(titles: Sequence[str], texts: Sequence[str]) -> np.ndarray:
    """For each chunk a number that tells whether the index holds what it should: int64[N], 64 bits of BLAKE2b."""
    digests = (
        hashlib.blake2b(f"{len(title)} {title}{text}".encode(errors="surrogatepass"), digest_size=8).digest()
        for title, text in zip(titles, texts, strict=True)
    )
    return np.frombuffer(b"".join(digests), ">i8").astype(np.int64)


class LexicalIndex:
    """Titles and texts by key. One thread changes it; any number search what was there at the last `refresh`.

    An index that is damaged, or was made with another analysis than today's, is begun anew, with a note.

    Args:
        folder: Where Lucene keeps its files.
        config: Analyzer, k1, b and the boosts.
        writable: Whether changes will be made; Lucene allows one such index a folder.

    Raises:
        InvalidInput: `writable`, and someone else writes.
        OSError: The disk refuses.
    """

    def __init__(self, folder: Path, config: CorpusConfig, *, writable: bool) -> None:
        jpype = jvm.start()
        self._java: Any = jpype.JClass
        self._long_array = jpype.JArray(jpype.JLong)
        self._analysis = Analysis(config.analyzer)
        self._similarity = self._lucene("search.similarities.BM25Similarity")(config.k1, config.b)
        boosts = [config.title_boost, config.text_boost]
        self._scoring = self._java("headrace.Scoring")(self._similarity, list(FIELDS), boosts, MAX_TERMS)
        self._lucene("search.IndexSearcher").setMaxClauseCount(2 * MAX_TERMS * len(FIELDS))
        self._key_sets: dict[int, tuple[Allowed, Any]] = {}
        self._key_sets_lock = threading.Lock()
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._writable = writable
        files = self._lucene("store.FSDirectory").open(self._java("java.nio.file.Paths").get(str(folder)))
        # Small new segments stay in memory until the commit: a write and its refresh make no file.
        self._directory = self._lucene("store.NRTCachingDirectory")(files, _SEGMENT_MB, _CACHE_MB)
        self._writer: Any = None
        self._snapshot: Any = None
        self.seq = 0
        self.note = ""
        with self._disk():
            try:
                self._open()
            except self._damage() as error:
                self.note = f"the lexical index is damaged ({error.getMessage()})"
                if writable:
                    shutil.rmtree(folder)
                    folder.mkdir()
                    self._open()

    def _lucene(self, name: str) -> Any:
        return self._java("org.apache.lucene." + name)

    # Opening

    def _damage(self) -> tuple[Any, ...]:
        names = (
            "org.apache.lucene.index.CorruptIndexException",
            "java.io.EOFException",
            "java.io.FileNotFoundException",
        )
        return *map(self._java, names), self._java("java.nio.file.NoSuchFileException")

    def _open(self) -> None:
        committed = self._committed()
        if committed and not self._is_ours(committed):
            self.note = "the lexical index was made with another analysis of texts"
        if self._writable:
            self._open_writer()
        self._snapshot = self._open_snapshot()
        self._see_seq()

    def _see_seq(self) -> None:
        """A reader has followed as far as what it sees was committed with."""
        if self._writer is None and self._snapshot is not None:
            self.seq = int(self._snapshot.seq())

    def _committed(self) -> dict[str, str]:
        """What was written beside the last commit; nothing when there is none."""
        if not self._lucene("index.DirectoryReader").indexExists(self._directory):
            return {}
        data = self._lucene("index.SegmentInfos").readLatestCommit(self._directory).getUserData()
        return {"seq": "0"} | {str(key): str(data.get(key)) for key in data.keySet()}

    def _is_ours(self, committed: dict[str, str]) -> bool:
        return committed.get("analysis") == self._analysis.mark

    def _open_writer(self) -> None:
        committed = self._committed()
        ours = self._is_ours(committed)
        self._writer = self._new_writer(create=not ours)
        self.seq = int(committed["seq"]) if ours else 0

    def _new_writer(self, *, create: bool) -> Any:
        settings = self._lucene("index.IndexWriterConfig")()
        settings.setSimilarity(self._similarity)
        settings.setCommitOnClose(False)
        merging = self._lucene("index.TieredMergePolicy")()
        merging.setSegmentsPerTier(_SEGMENTS_PER_TIER)
        merging.setMaxMergeAtOnce(_SEGMENTS_PER_TIER)
        settings.setMergePolicy(merging)
        if create:
            settings.setOpenMode(self._java("org.apache.lucene.index.IndexWriterConfig$OpenMode").CREATE)
        try:
            return self._lucene("index.IndexWriter")(self._directory, settings)
        except self._lucene("store.LockObtainFailedException") as error:
            raise InvalidInput(f"{self._folder} is being written by someone else; a shard has one writer") from error

    def _open_snapshot(self) -> Any:
        reader = self._lucene("index.DirectoryReader")
        if self._writer is not None:
            return self._java("headrace.Snapshot")(reader.open(self._writer), self._scoring)
        if not self._is_ours(self._committed()):
            return None
        return self._java("headrace.Snapshot")(reader.open(self._directory), self._scoring)

    # Changing

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Lucene's troubles with the disk, as Python calls them."""
        try:
            yield
        except (self._java("java.io.IOException"), self._lucene("store.AlreadyClosedException")) as error:
            raise OSError(f"{self._folder}: {error}") from error

    def add(self, document_id: str, keys: Sequence[int], titles: Sequence[str], texts: Sequence[str]) -> None:
        """Puts chunks in the place of whatever the index has of the document.

        Raises:
            OSError: The disk refuses; see `broken`.
        """
        self.remove(document_id)
        prints = fingerprints(titles, texts)
        for start in range(0, len(keys), _CHUNKS_AT_ONCE):
            some = slice(start, start + _CHUNKS_AT_ONCE)
            columns = [list(titles[some]), list(texts[some])]
            numbers = self._longs(keys[some]), self._longs(prints[some])
            with self._disk():
                self._java("headrace.Snapshot").add(
                    self._writer, self._analysis.chunks, document_id, *numbers, list(FIELDS), columns
                )

    def remove(self, document_id: str) -> None:
        """Removes the chunks of a document, if there are any.

        Raises:
            OSError: The disk refuses; see `broken`.
        """
        assert self._writer is not None, "the index was opened for reading"
        with self._disk():
            self._writer.deleteDocuments([self._lucene("index.Term")("document", document_id)])

    @property
    def broken(self) -> bool:
        """Whether the disk refused a write and Lucene gave up: nothing more can be changed before `reopen`."""
        return self._writer is not None and not self._writer.isOpen()

    def reopen(self) -> None:
        """Begins again from the last commit: what was changed since is lost, and `seq` says from where to follow.

        Searches find what they found before until the next `refresh`.

        Raises:
            InvalidInput: Someone else writes.
            OSError: The disk refuses still.
        """
        with self._disk():
            self._open_writer()

    def clear(self) -> None:
        """Removes everything; `seq` is 0 again.

        Raises:
            OSError: The disk refuses; see `broken`.
        """
        assert self._writer is not None, "the index was opened for reading"
        with self._disk():
            self._writer.deleteAll()
        self.seq = 0

    def refresh(self) -> None:
        """Makes changes visible to searches: the writer's own at once, for a reader those that the writer committed.

        Raises:
            OSError: The disk refuses; see `broken`.
        """
        with self._disk():
            if self._snapshot is None:
                self._snapshot = self._open_snapshot()
            else:
                old, self._snapshot = self._snapshot, self._snapshot.refreshed(self._writer)
                if not self._snapshot.equals(old):
                    old.close()
            self._see_seq()

    def commit(self, seq: int) -> None:
        """Puts the changes on the disk, with the number of the last one.

        Raises:
            OSError: The disk refuses; see `broken`.
        """
        assert self._writer is not None, "the index was opened for reading"
        data = self._java("java.util.HashMap")()
        data.put("seq", str(seq))
        data.put("analysis", self._analysis.mark)
        try:
            with self._disk():
                self._writer.setLiveCommitData(data.entrySet())
                self._writer.commit()
        except OSError:
            with suppress(OSError), self._disk():
                self._writer.rollback()  # what it has begun is in the way of its next commit; see `broken`
            raise
        self.seq = seq

    def close(self) -> None:
        """Closes the files; changes since the last commit are dropped.

        Raises:
            OSError: The disk refuses; everything is closed all the same.
        """
        with self._disk(), ExitStack() as last_first:
            last_first.callback(self._directory.close)
            if self._writer is not None:
                last_first.callback(self._writer.rollback)
            if self._snapshot is not None:
                last_first.callback(self._snapshot.close)

    # Searching

    def __len__(self) -> int:
        return int(self._snapshot.size()) if self._snapshot is not None else 0

    def keys(self) -> np.ndarray:
        """The keys of all chunks, int64[N] ascending."""
        return np.sort(self._columns("key")[0])

    def prints(self) -> tuple[np.ndarray, np.ndarray]:
        """The keys of all chunks, int64[N] ascending, and the fingerprint of what is indexed under each, int64[N]."""
        keys, prints = self._columns("key", "print")
        order = np.argsort(keys)
        return keys[order], prints[order]

    def _columns(self, *names: str) -> list[np.ndarray]:
        columns = [] if self._snapshot is None else self._read("columns", list(names))
        return [np.array(column, np.int64) for column in columns] or [np.empty(0, np.int64) for _ in names]

    def terms(self, question: str) -> dict[str, int]:
        """The terms of a question and how often it says each, in its order."""
        return self._analysis.terms(question)

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
        self, question: str, statistics: TermStatistics | None, limit: int, allowed: Allowed | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best hits: keys int64[K] and BM25 scores float32[K], score descending, then key ascending.

        Args:
            question: Of more than 1,024 terms the rarest are kept.
            statistics: Of the whole corpus: with them a shard scores as if it held all of it; None: it does.
            limit: K at most.
            allowed: The only keys to choose from; None for all.
        """
        if self._snapshot is None or limit < 1 or (allowed is not None and not len(allowed.keys)):
            return np.empty(0, np.int64), np.empty(0, np.float32)
        only = None if allowed is None else self._key_set(allowed)
        if statistics is None:
            best = self._read("search", self._analysis.questions, question, only, limit)
        else:
            terms = self.terms(question)
            rows = [_row(statistics, field, terms) for field in FIELDS]
            best = self._read("search", list(terms), [float(n) for n in terms.values()], rows, only, limit)
        return np.array(best.keys, np.int64), np.array(best.scores, np.float32)

    def _key_set(self, allowed: Allowed) -> Any:
        """The filter as Lucene knows it, kept with what it has found: the next question may bring the same."""
        with self._key_sets_lock:
            if id(allowed) not in self._key_sets:
                while len(self._key_sets) >= _FILTERS_KEPT:
                    del self._key_sets[next(iter(self._key_sets))]
                self._key_sets[id(allowed)] = allowed, self._java("headrace.KeySet")(self._longs(allowed.keys))
            return self._key_sets[id(allowed)][1]

    def _longs(self, numbers: Sequence[int] | np.ndarray) -> Any:
        return self._long_array(np.asarray(numbers, np.int64))

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
