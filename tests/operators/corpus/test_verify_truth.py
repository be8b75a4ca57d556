from __future__ import annotations

import pytest

from operators.corpus.findings import Findings, Remedy
from operators.corpus.store import Store
from operators.corpus.verify_truth import TruthCheck
from tests.truth import CONFIG, change, corpus_of, document, edit


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A shard's database in which everything has happened that may happen."""
    library = [
        document("mill", "Rye. ", "Wheat.", owner="ann", collections=("old",), year=1890),
        document("weir", "Granite.", collections=("old",)),
        document("far", "near", "nowhere"),
        document("empty"),
        document("gone", "Soon."),
    ]
    corpus = corpus_of(tmp_path_factory.mktemp("truth") / "corpus", *library)
    edit(corpus, "mill#1", 1, "Barley.")
    change(corpus, 0, lambda c: c.write([document("weir", "Concrete. ", "Granite.")], ""))
    change(corpus, 0, lambda c: c.delete(["gone"]))
    change(corpus, 0, lambda c: c.delete_chunks(["weir#0"]))
    store = Store(corpus.shard_directory(0) / "store.sqlite")
    yield store
    store.close()


def findings_of(store, *damage):
    """What a check finds after the damage, which is undone."""
    findings = Findings()
    store.db.execute("BEGIN")
    try:
        for statement in damage:
            store.db.execute(statement)
        check = TruthCheck(store, CONFIG, shard=0, findings=findings, looked=lambda _: None)
        check.run()
        for _ in check.vectors():
            pass
    finally:
        store.db.execute("ROLLBACK")
    return findings.all()


def test_a_sound_database_is_clean(store):
    assert findings_of(store) == ()


def test_what_the_indexes_must_hold_are_the_chunks_with_a_vector(store):
    held = TruthCheck(store, CONFIG, shard=0, findings=Findings(), looked=lambda _: None).run()
    assert held.keys.tolist() == sorted(held.keys.tolist())
    assert len(held.keys) == len(held.prints) == 4


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM documents WHERE id = 'mill'", "chunks of no document"),
        ("DELETE FROM texts WHERE document = (SELECT number FROM documents WHERE id = 'mill')", "without a text"),
        ("INSERT INTO texts VALUES (99, 'stray')", "texts of no document"),
        ("INSERT INTO memberships VALUES ('c', 99)", "collections of no document"),
        ("INSERT INTO vectors SELECT 1, vector FROM vectors LIMIT 1", "vectors of no indexed chunk"),
        ("DELETE FROM vectors WHERE key = (SELECT key FROM chunks WHERE indexed)", "without a vector"),
        ("UPDATE vectors SET vector = X'00' WHERE key = (SELECT min(key) FROM vectors)", "another dimension"),
        ("UPDATE vectors SET vector = CAST(zeroblob(12) || X'0000C07F' AS BLOB)", "not finite"),
        ("UPDATE vectors SET vector = CAST(zeroblob(12) || X'00000040' AS BLOB)", "not of unit length"),
        ("UPDATE chunks SET text = text || '!'", "the text that they stand for"),
        ("UPDATE chunks SET text = 'Changed.' WHERE edited", "that was not written so"),
        ("UPDATE chunks SET context = 'Other'", "that was not written so"),
        ("UPDATE chunks SET start = 999", "outside their document"),
        ("UPDATE chunks SET parent = 7", "whose parent is not there"),
        ("UPDATE chunks SET key = 5 WHERE key = (SELECT min(key) FROM chunks)", "the key of another chunk"),
        ("UPDATE chunks SET seq = 999", "a later number of change than their document"),
        ("UPDATE documents SET touched = 999", "that was never given"),
        ("UPDATE documents SET metadata = '{' WHERE id = 'mill'", "metadata is no JSON"),
        ("UPDATE texts SET text = text || '!'", "another length"),
        (
            "INSERT OR REPLACE INTO removed_documents VALUES ('mill', 1)",
            "documents that are there and noted as removed",
        ),
        ("INSERT INTO removed_chunks SELECT key, 1 FROM chunks", "chunks that are there and noted as removed"),
        ("INSERT INTO removed_chunks VALUES (1, 999)", "removals with a number of change that was never given"),
    ],
)
def test_damage_is_found(store, statement, what):
    findings = findings_of(store, statement)
    assert any(what in finding.what for finding in findings), findings


def test_findings_count_and_give_an_example(store):
    (finding,) = findings_of(store, "UPDATE chunks SET parent = 7 WHERE ordinal = 0")
    assert (finding.part, finding.count) == ("database", 2)
    assert finding.example in {"mill#0", "far#0"}
    assert (finding.remedy, finding.repairable) == (Remedy.INGEST.value, False)


def test_every_vector_of_a_wrong_size_is_counted(store):
    (finding,) = findings_of(store, "UPDATE vectors SET vector = X'00'")
    assert (finding.what, finding.count) == ("vectors of another dimension", 4)
