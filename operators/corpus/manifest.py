"""What a corpus is made with, in the one file that makes a folder a corpus."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import InvalidInput
from operators.corpus.files import write_whole
from operators.corpus.keys import shard_of
from operators.corpus.measures import MEASURES
from operators.messages import DocumentId

FORMAT = 2  # goes up when an older headrace could not read what a newer one writes
MANIFEST = "manifest.json"
MAX_SCORE = 1e9  # a threshold beyond is no number that a measure gives
ANALYZERS = ("mixed", "anserini-english")


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a corpus is partitioned, indexed and searched; what a person may choose when it is created.

    Args:
        shards: Partitions by hash of the document id. One serves about a million chunks.
        measure: "cosine", "l2" or "ip" (inner product), with an HNSW graph; "l1", "hamming" or "jaccard", which compare
            every vector. See operators/corpus/measures.py for the scores.
        m: HNSW: links of a vector; 8 to 48, more for high recall in high dimensions.
        ef_construction: HNSW: candidates weighed when a vector is linked.
        ef_search: HNSW: candidates weighed when searching; a search for more hits than that weighs as many as hits.
        k1: BM25: how soon repetitions of a term stop to matter, 0 to 10.
        b: BM25: how much length counts, 0 to 1.
        title_boost: Weight of a term in the title and the headings above the chunk; 0 leaves them out.
        text_boost: Weight of a term in the text.
        score_threshold: Least semantic score of a passage, for questions that name none; None lets every one through.
        analyzer: "mixed" (English and Chinese, Japanese, Korean in one index; accents folded), or "anserini-english".
    """

    shards: int = 1
    measure: str = "cosine"
    m: int = 16
    ef_construction: int = 200
    ef_search: int = 64
    k1: float = 1.2
    b: float = 0.75
    title_boost: float = 0.5
    text_boost: float = 1.0
    score_threshold: float | None = None
    analyzer: str = "mixed"

    def __post_init__(self) -> None:
        """Refuses what no corpus can be built with.

        Raises:
            InvalidInput: A value is out of its range.
        """
        _among("measure", self.measure, MEASURES)
        _among("analyzer", self.analyzer, ANALYZERS)
        _within("shards", self.shards, 1, 1_024)
        _within("m", self.m, 2, 256)
        _within("ef_construction", self.ef_construction, self.m, 10_000)
        _within("ef_search", self.ef_search, 1, 10_000)
        _within("k1", self.k1, 0, 10)
        _within("b", self.b, 0, 1)
        _within("title_boost", self.title_boost, 0, 100)
        _within("text_boost", self.text_boost, 0, 100)
        _within("score_threshold", self.score_threshold or 0, -MAX_SCORE, MAX_SCORE)


class CorpusConfig(IndexConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a corpus is built and searched; fixed when it is created.

    Args:
        embedder: Identity of the model that made the vectors; another model's vectors are refused.
        dimension: Numbers in a vector.
        chunking: How chunks were cut, in words or as the chunker's configuration; for people.
    """

    embedder: str
    dimension: int
    chunking: str = ""

    def __post_init__(self) -> None:
        """Refuses what no corpus can be built with.

        Raises:
            InvalidInput: A value is out of its range.
        """
        if not self.embedder:
            raise InvalidInput("corpus: embedder is empty; expected the identity of the embedding model")
        _within("dimension", self.dimension, 1, 65_536)
        IndexConfig.__post_init__(self)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # false of NaN, too
        raise InvalidInput(f"corpus: {name} is {value}; expected {low} to {high}")


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidInput(f"corpus: {name} is {value!r}; expected one of {', '.join(known)}")


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    config: CorpusConfig


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk: where it is and what it is made with. Holds nothing open."""

    directory: Path
    config: CorpusConfig
    format: int = FORMAT

    def shard_directory(self, index: int) -> Path:
        """The folder of one shard.

        Raises:
            InvalidInput: There is no such shard.
        """
        if not 0 <= index < self.config.shards:
            raise InvalidInput(f"{self.directory} has shards 0 to {self.config.shards - 1}; there is no shard {index}")
        return self.directory / "shards" / f"{index:04d}"

    def shard_of(self, document_id: DocumentId | str) -> int:
        """The shard that holds a document."""
        return shard_of(document_id, self.config.shards)

    def require_embedder(self, identity: str, dimension: int) -> None:
        """Refuses vectors of another model than the corpus was made with.

        Raises:
            InvalidInput: The identity or the dimension differs.
        """
        if (identity, dimension) != (self.config.embedder, self.config.dimension):
            raise InvalidInput(
                f"the corpus {self.directory} was made with the embedder {self.config.embedder!r} "
                f"({self.config.dimension} dimensions), not with {identity!r} ({dimension}): "
                "use that embedder, or ingest into a new corpus"
            )


def create_corpus(directory: str | Path, config: CorpusConfig) -> Corpus:
    """Makes a new, empty corpus. The manifest is written last and at once, so a crash leaves no half corpus.

    Raises:
        InvalidInput: The folder holds a corpus, or something else, or cannot be written.
    """
    root = Path(directory)
    if (root / MANIFEST).exists():
        raise InvalidInput(f"{root} is a corpus already; open it, or choose another folder")
    leftovers = {"shards", MANIFEST + ".unfinished"}  # of a creation that was cut off: they hold no documents
    try:
        root.mkdir(parents=True, exist_ok=True)
        strangers = sorted(p.name for p in root.iterdir() if p.name not in leftovers and not p.name.startswith("."))
        strangers += [str(p.relative_to(root)) for p in root.glob("shards/*/*")]
        if strangers:
            raise InvalidInput(f"{root} is not empty ({strangers[0]} is there) and no corpus; choose another folder")
        corpus = Corpus(root, config)
        for index in range(config.shards):
            corpus.shard_directory(index).mkdir(parents=True, exist_ok=True)
        _write_manifest(corpus)
    except OSError as error:
        raise InvalidInput(f"cannot create a corpus in {root}: {error.strerror or error}") from error
    return corpus


def _write_manifest(corpus: Corpus) -> None:
    text = msgspec.json.format(msgspec.json.encode(_Manifest(FORMAT, corpus.config)), indent=2)
    write_whole(corpus.directory / MANIFEST, text)


def renew(corpus: Corpus) -> Corpus:
    """The corpus in today's format: an older headrace refuses it from now on, and each shard renews its tables.

    Raises:
        OSError: The manifest cannot be written.
    """
    if corpus.format == FORMAT:
        return corpus
    _write_manifest(corpus)
    return replace(corpus, format=FORMAT)


def open_corpus(directory: str | Path) -> Corpus:
    """Reads the manifest and nothing else.

    Raises:
        InvalidInput: The folder is no corpus, the manifest is damaged, or a newer headrace made it.
    """
    path = Path(directory) / MANIFEST
    try:
        raw: Any = msgspec.json.decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidInput(f"{directory} is not a corpus (no {MANIFEST}); ingest documents into it first") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path} is damaged: {error}; restore it from a backup") from error
    made = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(made, int) and made > FORMAT:
        raise InvalidInput(
            f"{directory} has corpus format {made}; this headrace reads up to {FORMAT}: upgrade headrace"
        )
    try:
        manifest = msgspec.convert(raw, _Manifest)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path} is damaged: {error}; restore it from a backup") from error
    return Corpus(Path(directory), manifest.config, manifest.format)
