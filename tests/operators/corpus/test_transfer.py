from __future__ import annotations

import json
import shutil

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput
from operators.corpus import export as exporting
from operators.corpus import load as loading
from operators.corpus.export import export_collection, export_corpus
from operators.corpus.filter_sql import visible_to
from operators.corpus.load import load_corpus
from operators.corpus.manifest import create_corpus
from operators.corpus.store import Store
from operators.corpus.transfer import CHUNKS, DESCRIPTION, DOCUMENTS, Export, chunks_schema, documents_schema, file_of
from tests.truth import CONFIG, change, corpus_of, document, edit, ids_of, truth_of

LIBRARY = (
    document(
        "mill", "The mill ", "grinds rye.", owner="ann", collections=("north", "old"), year=1890, tags=["a", None]
    ),
    document("weir", "A weir of granite, 千鳥堰.", collections=("old",), nested={"depth": 2.5}),
    document("empty"),
    document("far", "near", "nowhere", "\u0000 \U0001f41f"),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus of two shards with all that can be in one."""
    corpus = corpus_of(tmp_path_factory.mktemp("transfer") / "corpus", *LIBRARY, shards=2)
    edit(corpus, "mill#1", 1, "grinds wheat now.")
    change(corpus, corpus.shard_of("weir"), lambda c: c.change_metadata("weir", {"checked": True}, replace=False))
    return corpus


@pytest.fixture(scope="module")
def export(corpus):
    export_corpus(corpus, corpus.directory.parent / "export")
    return corpus.directory.parent / "export"


@pytest.fixture
def exported(export, tmp_path):
    """A copy, which may be damaged."""
    return shutil.copytree(export, tmp_path / "export")


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_what_was_exported_is_imported_exactly(corpus, exported, tmp_path, shards):
    made = load_corpus(exported, tmp_path / "again", {"shards": shards})
    assert truth_of(made) == truth_of(corpus)
    assert made.config == msgspec.structs.replace(corpus.config, shards=shards)


def test_rows_land_in_the_shards_that_hold_them(exported, tmp_path):
    made = load_corpus(exported, tmp_path / "again", {"shards": 3})
    for shard in range(3):
        store = Store(made.shard_directory(shard) / "store.sqlite")
        assert all(made.shard_of(id_) == shard for (id_,) in store.db.execute("SELECT id FROM documents"))
        store.close()


def test_an_export_does_not_depend_on_shards(corpus, exported, tmp_path):
    made = load_corpus(exported, tmp_path / "again", {"shards": 5})
    export_corpus(made, tmp_path / "export again")
    for name in (DOCUMENTS, CHUNKS):
        assert (tmp_path / "export again" / name).read_bytes() == (exported / name).read_bytes()


def test_ingesting_the_same_into_the_imported_corpus_is_a_no_op(exported, tmp_path):
    made = load_corpus(exported, tmp_path / "again", {"shards": 1})
    store = Store(made.shard_directory(0) / "store.sqlite")
    unchanged = store.unchanged([d.document for d in LIBRARY], "cut so", visible_to(None))
    store.close()
    assert unchanged == [False, True, True, True]  # of the first a chunk was edited


def test_the_tables_are_ordinary_parquet(corpus, exported):
    documents, chunks = pq.read_table(exported / DOCUMENTS), pq.read_table(exported / CHUNKS)
    assert documents.schema.equals(documents_schema())
    assert chunks.schema.equals(chunks_schema(4))
    assert documents["id"].to_pylist() == ["empty", "far", "mill", "weir"]
    assert documents["collections"].to_pylist()[2] == ["north", "old"]
    assert chunks["document_id"].to_pylist() == ["far", "far", "far", "mill", "mill", "weir"]
    assert chunks["vector"].null_count == 1
    assert np.allclose(np.linalg.norm(chunks["vector"].to_pylist()[0]), 1)


@pytest.mark.parametrize("rows", [1, 2])
def test_row_groups_batches_and_transactions_do_not_show(corpus, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(exporting, "_ROW_GROUP_ROWS", rows)
    monkeypatch.setattr(loading, "_ROWS_AT_ONCE", rows)
    monkeypatch.setattr(loading, "_TRANSACTION_BYTES", 1)
    shares: list[float] = []
    export_corpus(corpus, tmp_path / "export", shares.append)
    made = load_corpus(tmp_path / "export", tmp_path / "again", {}, shares.append)
    assert truth_of(made) == truth_of(corpus)
    assert shares == [0.25, 0.5, 0.75, 1.0] * 2


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5),
        st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
        max_size=4,
    )
)
def test_any_texts_come_through(tmp_path_factory, parts_by_id):
    folder = tmp_path_factory.mktemp("any")
    corpus = corpus_of(folder / "corpus", *(document(id_, *parts) for id_, parts in parts_by_id.items()), shards=2)
    export_corpus(corpus, folder / "export")
    assert truth_of(load_corpus(folder / "export", folder / "again", {"shards": 3})) == truth_of(corpus)


def test_another_measure_brings_its_vectors_into_shape(tmp_path):
    config = msgspec.structs.replace(CONFIG, measure="l2")
    long = document("long", "text")
    corpus = corpus_of(tmp_path / "corpus", msgspec.structs.replace(long, vectors=3 * long.vectors), config=config)
    export_corpus(corpus, tmp_path / "export")
    made = load_corpus(tmp_path / "export", tmp_path / "again", {"measure": "cosine", "m": 32})
    vector = np.frombuffer(truth_of(made)[0][-1], np.float32)
    assert np.allclose(vector, long.vectors[0])
    assert made.config.m == 32


@pytest.mark.parametrize(
    ("changes", "said"), [({"ef": 3}, "ef_search"), ({"measure": "manhattan"}, "cosine"), ({"m": "many"}, "int")]
)
def test_settings_that_there_are_not_are_refused(exported, tmp_path, changes, said):
    with pytest.raises(InvalidInput, match=said):
        load_corpus(exported, tmp_path / "again", changes)
    assert not (tmp_path / "again").exists()


def refused(exported, tmp_path, said):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match=said):
        load_corpus(exported, tmp_path / "again", {})
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", [DOCUMENTS, CHUNKS])
def test_a_damaged_table_is_refused(exported, tmp_path, name):
    data = bytearray((exported / name).read_bytes())
    data[len(data) // 2] ^= 1
    (exported / name).write_bytes(data)
    refused(exported, tmp_path, "damaged or changed")
    (exported / name).unlink()
    refused(exported, tmp_path, "cannot read")


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "damaged"), ("[]", "damaged"), ('{"format": 1}', "damaged"), ('{"format": 99}', "upgrade")],
)
def test_a_wrong_description_is_refused(exported, tmp_path, text, said):
    (exported / DESCRIPTION).write_text(text)
    refused(exported, tmp_path, said)


def test_folders_that_are_no_export_are_refused(corpus, tmp_path):
    refused(tmp_path / "nowhere", tmp_path, "no exported corpus")
    refused(corpus.directory, tmp_path, "a corpus itself")


def described_anew(exported, **changes):
    """The export with a description that fits its files again."""
    export = msgspec.json.decode((exported / DESCRIPTION).read_bytes(), type=Export)
    files = {name: file_of(exported / name) for name in (DOCUMENTS, CHUNKS)}
    export = msgspec.structs.replace(export, files=files, **changes)
    (exported / DESCRIPTION).write_bytes(msgspec.json.encode(export))


def test_tables_that_do_not_fit_each_other_are_refused(exported, tmp_path):
    documents = pq.read_table(exported / DOCUMENTS)
    pq.write_table(documents.slice(0, 3), exported / DOCUMENTS)
    described_anew(exported)
    refused(exported, tmp_path, "do not fit each other")
    described_anew(exported, documents=3)
    refused(exported, tmp_path, "do not fit each other")


def test_tables_with_other_columns_are_refused(exported, tmp_path):
    pq.write_table(pq.read_table(exported / DOCUMENTS).drop_columns(["owner"]), exported / DOCUMENTS)
    described_anew(exported)
    refused(exported, tmp_path, "other columns")
    (exported / DOCUMENTS).write_text("no parquet")
    described_anew(exported)
    refused(exported, tmp_path, "cannot be read")


def test_chunks_that_are_not_in_their_documents_are_refused(exported, tmp_path):
    documents = pq.read_table(exported / DOCUMENTS)
    texts = documents["text"].to_pylist()
    changed = documents.set_column(2, "text", [[texts[0], texts[1] + "x", "x" + texts[2], texts[3]]])
    pq.write_table(changed.cast(documents_schema()), exported / DOCUMENTS)
    described_anew(exported)
    refused(exported, tmp_path, "is not the text from")


def test_a_document_that_comes_twice_is_refused(tmp_path):
    corpus = corpus_of(tmp_path / "corpus", document("one"), document("two"))
    export_corpus(corpus, tmp_path / "export")
    documents = pq.read_table(tmp_path / "export" / DOCUMENTS)
    pq.write_table(documents.take([0, 0]), tmp_path / "export" / DOCUMENTS)
    described_anew(tmp_path / "export")
    refused(tmp_path / "export", tmp_path, "'one' twice")


def test_folders_that_are_there_are_not_written_over(corpus, exported):
    with pytest.raises(InvalidInput, match="is there already"):
        export_corpus(corpus, exported)
    with pytest.raises(InvalidInput, match="is there already"):
        load_corpus(exported, corpus.directory, {})


def test_an_empty_corpus_is_exported_and_imported(tmp_path):
    corpus = create_corpus(tmp_path / "corpus", CONFIG)
    export = export_corpus(corpus, tmp_path / "export")
    assert (export.documents, export.chunks) == (0, 0)
    assert truth_of(load_corpus(tmp_path / "export", tmp_path / "again", {"shards": 2})) == []


def test_an_export_is_of_one_moment(tmp_path):
    """A document that is written while the export runs is not in it."""
    corpus = corpus_of(tmp_path / "corpus", document("one"), document("two"), shards=2)

    def write_beside(share: float) -> None:
        if share == 0.5:
            change(corpus, corpus.shard_of("zoo"), lambda c: c.write([document("zoo", "late")], ""))

    export_corpus(corpus, tmp_path / "export", write_beside)
    assert "zoo" in ids_of(truth_of(corpus))
    assert "zoo" not in pq.read_table(tmp_path / "export" / DOCUMENTS)["id"].to_pylist()


def test_a_corpus_becomes_a_json_collection(corpus, tmp_path):
    shares: list[float] = []
    assert export_collection(corpus, tmp_path / "collection", shares.append) == 6
    lines = [json.loads(line) for line in (tmp_path / "collection" / "docs00.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["far#0", "far#1", "far#2", "mill#0", "mill#1", "weir#0"]
    assert lines[4]["contents"] == "Title of mill\nHeading\ngrinds wheat now."
    assert shares[-1] == 1.0
    with pytest.raises(InvalidInput, match="is there already"):
        export_collection(corpus, tmp_path / "collection")
