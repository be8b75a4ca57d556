import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.errors import InvalidInput
from operators.corpus.manifest import FORMAT, CorpusConfig, create_corpus, open_corpus

CONFIG = CorpusConfig(embedder="minilm", dimension=384, shards=3, chunking="recursive 256")


def test_a_corpus_opens_as_it_was_created(tmp_path: Path) -> None:
    create_corpus(tmp_path / "c", CONFIG)
    assert open_corpus(tmp_path / "c").config == CONFIG


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"embedder": ""}, "embedder"),
        ({"dimension": 0}, "dimension is 0"),
        ({"shards": 0}, "shards is 0"),
        ({"measure": "cosin"}, "cosine, l2, ip"),
        ({"k1": float("nan")}, "k1 is nan"),
        ({"b": 1.5}, "expected 0 to 1"),
        ({"title_boost": -1.0}, "title_boost is -1.0"),
        ({"m": 1}, "m is 1"),
        ({"ef_construction": 8}, "expected 16 to"),
        ({"ef_search": 0}, "ef_search is 0"),
        ({"analyzer": "klingon"}, "mixed, anserini-english"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        msgspec.structs.replace(CONFIG, **change)


def test_a_folder_without_manifest_is_told_from_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"not a corpus.*ingest documents into it first"):
        open_corpus(tmp_path)
    with pytest.raises(InvalidInput, match="not a corpus"):
        open_corpus(tmp_path / "absent")


def test_a_corpus_is_not_created_over_another(tmp_path: Path) -> None:
    create_corpus(tmp_path, CONFIG)
    with pytest.raises(InvalidInput, match="a corpus already"):
        create_corpus(tmp_path, CONFIG)


def test_a_corpus_is_not_created_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.md").write_text("mine")
    with pytest.raises(InvalidInput, match=r"thesis\.md"):
        create_corpus(tmp_path, CONFIG)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.md"]


def test_a_shard_that_lost_its_manifest_is_not_taken_for_leftovers(tmp_path: Path) -> None:
    corpus = create_corpus(tmp_path, CONFIG)
    (corpus.shard_directory(1) / "store.sqlite").write_bytes(b"documents")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match=r"shards/0001/store\.sqlite"):
        create_corpus(tmp_path, CONFIG)


def test_leftovers_of_a_creation_that_was_cut_off_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "shards" / "0000").mkdir(parents=True)
    (tmp_path / "manifest.json.unfinished").write_text('{"form')
    create_corpus(tmp_path, CONFIG)
    assert open_corpus(tmp_path).config == CONFIG


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    create_corpus(tmp_path, CONFIG)
    (tmp_path / "manifest.json").write_text(f'{{"format": {FORMAT + 1}, "config": {{}}, "tomorrow": true}}')
    with pytest.raises(InvalidInput, match="upgrade"):
        open_corpus(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"format": 1}', '{"format": 1, "config": {"embedder": "x", "dimention": 3}}']
)
def test_a_damaged_manifest_is_named(tmp_path: Path, text: str) -> None:
    create_corpus(tmp_path, CONFIG)
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"manifest\.json is damaged"):
        open_corpus(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot create a corpus"):
        create_corpus(tmp_path / "file" / "corpus", CONFIG)


def test_another_embedder_is_refused(tmp_path: Path) -> None:
    corpus = create_corpus(tmp_path, CONFIG)
    corpus.require_embedder("minilm", 384)
    with pytest.raises(InvalidInput, match=r"'minilm' \(384 dimensions\), not with 'bge' \(384\)"):
        corpus.require_embedder("bge", 384)
    with pytest.raises(InvalidInput, match="not with 'minilm'"):
        corpus.require_embedder("minilm", 768)


def test_a_shard_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shards 0 to 2; there is no shard 3"):
        create_corpus(tmp_path, CONFIG).shard_directory(3)


def test_the_manifest_is_read_without_heavy_imports() -> None:
    code = (
        "import sys, operators.corpus.manifest, operators.corpus.merge, operators.corpus.shard;"
        "print([m for m in ('torch', 'pyserini', 'jpype', 'hnswlib') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
