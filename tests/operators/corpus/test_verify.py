from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest

from engine.errors import AccessDenied, InvalidInput
from engine.scope import Identity, Scope, entered
from operators.corpus.findings import Remedy
from operators.corpus.store import Store
from operators.corpus.verify import verify_file, verify_shard
from operators.messages import Edit


def found_in(verification):
    return {(finding.part, finding.what): finding.count for finding in verification.findings}


async def verified(shard, *, repair=False):
    (verification,) = await shard.verify(repair)
    return verification


@pytest.fixture
async def lived_in(shard, make, vector):
    """A shard in which everything has happened that may happen."""
    documents = [make(f"d{n}", chunks=[f"Chunk {n}. ", "Kelp and rye."], title="T", context="H") for n in range(6)]
    parent = make("parent", chunks=["all", "of it"])
    vectors = parent.vectors.copy()
    vectors[0] = np.nan
    nested = (parent.chunks[0], msgspec.structs.replace(parent.chunks[1], parent=0))
    await shard.write([*documents, msgspec.structs.replace(parent, chunks=nested, vectors=vectors)], "")
    await shard.write([make("d1", chunks=["Another text."])], "")
    await shard.delete(["d2"])
    await shard.change_metadata("d3", {"year": 1890}, replace=True)
    await shard.change_collections(["d3"], ["north"], [])
    await shard.change_chunk(Edit("d4#1", 1, "Edited.", 2), vector("Edited."))
    await shard.delete_chunks(["d5#0"])
    return shard


async def test_a_sound_shard_is_clean(lived_in, open_shard, corpus):
    verification = await verified(lived_in)
    assert verification.findings == ()
    assert (verification.documents, verification.chunks) == (6, 10)
    assert await lived_in.verified_share() == 1.0
    await lived_in.aclose()
    assert (await verified(await open_shard(writable=False))).findings == ()


async def test_an_empty_shard_is_clean(shard):
    assert (await verified(shard)).findings == ()
    assert (await verified(shard, repair=True)).findings == ()


def damage(shard, *statements):
    for statement in statements:
        shard._truth.db.execute(statement)


async def test_findings_count_and_give_an_example(lived_in):
    damage(lived_in, "UPDATE chunks SET parent = 7 WHERE text LIKE 'Chunk%'")
    (finding,) = (await verified(lived_in)).findings
    assert finding.count == 3
    assert finding.example in {"d0#0", "d3#0", "d4#0"}
    assert not finding.repairable
    assert finding.remedy == Remedy.INGEST.value


async def test_repair_removes_what_belongs_to_nothing(lived_in):
    damage(
        lived_in,
        "INSERT INTO texts VALUES (99, 'stray')",
        "INSERT INTO memberships VALUES ('c', 99)",
        "INSERT INTO removed_chunks SELECT key, 1 FROM chunks",
        "DELETE FROM documents WHERE id = 'd0'",
    )
    verification = await verified(lived_in, repair=True)
    assert verification.findings == ()
    assert len(verification.repaired) >= 4
    assert (verification.documents, verification.chunks) == (5, 8)
    assert (await verified(lived_in)).findings == ()


async def test_repair_keeps_its_hands_off_the_truth(lived_in):
    damage(lived_in, "UPDATE chunks SET start = 999 WHERE text LIKE 'Chunk%'")
    before = list(lived_in._truth.db.execute("SELECT * FROM chunks"))
    verification = await verified(lived_in, repair=True)
    assert found_in(verification) == {("database", "chunks that lie outside their document"): 3}
    assert list(lived_in._truth.db.execute("SELECT * FROM chunks")) == before


def keys_of(shard, document_id):
    sql = "SELECT key FROM chunks WHERE document = (SELECT number FROM documents WHERE id = ?) ORDER BY ordinal"
    return np.array([key for (key,) in shard._truth.db.execute(sql, (document_id,))], np.int64)


async def test_a_dense_index_that_lacks_something_is_found_and_made_anew(lived_in):
    lived_in._indexes.dense.remove(keys_of(lived_in, "d0"))
    assert found_in(await verified(lived_in)) == {("dense", "chunks that it lacks"): 2}
    verification = await verified(lived_in, repair=True)
    assert (verification.findings, len(verification.repaired)) == ((), 1)


async def test_a_dense_index_that_holds_something_otherwise_is_found_and_made_anew(lived_in, vector):
    key = keys_of(lived_in, "d0")[:1]
    other = vector("other")
    lived_in._indexes.dense.add(key, (other / np.linalg.norm(other))[None])
    lived_in._indexes.dense.add(np.array([77], np.int64), other[None])
    verification = await verified(lived_in)
    assert found_in(verification) == {
        ("dense", "chunks that are there no more"): 1,
        ("dense", "chunks that it holds otherwise"): 1,
    }
    assert {finding.example for finding in verification.findings} == {"d0#0", "77"}
    assert (await verified(lived_in, repair=True)).findings == ()


async def test_a_lexical_index_that_lacks_something_is_found_and_made_anew(lived_in, plan):
    lived_in._indexes.lexical.remove("d0")
    lived_in._indexes.lexical.refresh()
    assert found_in(await verified(lived_in)) == {("lexical", "chunks that it lacks"): 2}
    verification = await verified(lived_in, repair=True)
    assert (verification.findings, len(verification.repaired)) == ((), 1)
    assert len((await lived_in.lexical(plan("kelp"), None)).keys) == 3


async def test_a_lexical_index_that_holds_something_otherwise_is_found_and_made_anew(lived_in):
    keys = keys_of(lived_in, "d0").tolist()
    lived_in._indexes.lexical.add("d0", keys, ["T H", "T H"], ["Chunk 0. ", "Barley."])
    lived_in._indexes.lexical.add("ghost", [77], [""], ["Boo."])
    lived_in._indexes.lexical.refresh()
    assert found_in(await verified(lived_in)) == {
        ("lexical", "chunks that are there no more"): 1,
        ("lexical", "chunks that it holds otherwise"): 1,
    }
    assert (await verified(lived_in, repair=True)).findings == ()


async def test_what_was_repaired_stays_so_when_the_shard_is_opened_again(lived_in, open_shard):
    lived_in._indexes.dense.remove(keys_of(lived_in, "d0"))
    lived_in._indexes.lexical.remove("d0")
    lived_in._indexes.lexical.refresh()
    await lived_in.verify(True)
    await lived_in.aclose()
    again = await open_shard()
    assert (await verified(again)).findings == ()
    assert (await again.statistics()).notes == ()


async def test_an_index_that_is_ahead_of_an_older_database_is_found_and_made_anew(lived_in):
    damage(lived_in, "UPDATE state SET seq = 8", "UPDATE documents SET seq = number, touched = number")
    damage(lived_in, "UPDATE chunks SET seq = 1", "UPDATE removed_chunks SET seq = 1")
    found = found_in(await verified(lived_in))
    assert ("dense", "an index of a later day than the database") in found
    assert (await verified(lived_in, repair=True)).findings == ()


async def test_a_document_in_another_shard_is_found(lived_in):
    config = msgspec.structs.replace(lived_in._config, shards=2)
    store = Store(lived_in._folder / "store.sqlite")
    findings = verify_shard(store, lived_in._indexes, config, 0)
    store.close()
    assert [finding.what for finding in findings] == ["documents that belong to another shard"]


async def test_a_torn_database_is_found_without_being_opened(lived_in, tmp_path):
    await lived_in.commit()
    await lived_in.aclose()
    path = lived_in._folder / "store.sqlite"
    assert verify_file(path, 0).findings == ()
    data = bytearray(path.read_bytes())
    for page in range(1, len(data) // 4096):
        data[4096 * page : 4096 * page + 64] = bytes(64)
    path.write_bytes(data)
    (finding,) = verify_file(path, 0).findings
    assert (finding.part, finding.remedy) == ("database", Remedy.RESTORE.value)
    path.write_bytes(b"no database" * 1000)
    (finding,) = verify_file(path, 0).findings
    assert "not a database" in finding.example
    (finding,) = verify_file(tmp_path / "nowhere", 0).findings
    assert "unable to open" in finding.example


async def test_a_check_beside_a_writer_blames_nothing_on_what_changes_meanwhile(lived_in, open_shard, make):
    reader = await open_shard(writable=False)
    done = False

    async def write() -> None:
        for n in range(24):
            await lived_in.write([make(f"d{n % 7}", chunks=[f"Version {n}. ", f"Rye {n % 3}."])], "")
            if n % 5 == 0:
                await lived_in.delete([f"d{(n + 3) % 7}"])
            if n % 8 == 0:
                await lived_in.commit()
        nonlocal done
        done = True

    async def check(shard) -> None:
        while not done:
            assert (await verified(shard)).findings == ()

    await asyncio.gather(write(), check(lived_in), check(reader))


async def test_a_corpus_is_verified_by_whoever_runs_it(shard):
    with entered(Scope(identity=Identity("ann"))), pytest.raises(AccessDenied):
        await shard.verify(False)


async def test_a_repair_needs_the_writer(shard, open_shard):
    reader = await open_shard(writable=False)
    with pytest.raises(InvalidInput, match="opened for reading"):
        await reader.verify(True)
