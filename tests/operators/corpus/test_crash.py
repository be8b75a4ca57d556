"""A writer that is killed in the middle leaves what it acknowledged, whole, in the database and in both indexes."""

import random
import signal
import subprocess
import sys

from operators.corpus.manifest import open_corpus
from operators.corpus.store import Store

WRITER = """
import asyncio, sys
import numpy as np
from operators.corpus.shard import Shard
from operators.messages import Chunk, Document, EmbeddedDocument

def document(id, version):
    text = f"{id} version v{version}"
    chunks = tuple(Chunk(ordinal=n, text=text, start=0, end=len(text)) for n in range(version % 3 + 1))
    vectors = np.random.default_rng(version).standard_normal((len(chunks), 16))
    return EmbeddedDocument(Document(id=id, title="", text=text), chunks, vectors.astype(np.float32))

async def main():
    shard = Shard.open(sys.argv[1], 0, writable=True)
    for version in range(int(sys.argv[2]), 1_000_000):
        await shard.write([document(f"d{n}", version) for n in range(4)])
        await shard.delete([f"d{version % 4}"])
        print(version, flush=True)
        if version % 5 == 0:
            await shard.commit()
asyncio.run(main())
"""


async def test_a_killed_writer_leaves_what_it_acknowledged(open_shard, corpus: str, plan, vector) -> None:
    acknowledged, chance = -1, random.Random(5)
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, corpus, str(acknowledged + 1)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(chance.randint(2, 12)):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.stdout.close()

        shard = await open_shard()
        state = await shard.statistics()
        assert state.dense_vectors == state.lexical_chunks == state.chunks
        assert state.seq == state.lexical_seq == state.dense_seq
        texts = {}
        for ranking in (
            await shard.dense(plan(limit=50), vector("")),
            await shard.lexical(plan("version", limit=50), None),
        ):
            passages = await shard.fetch(ranking)
            texts[ranking.leg] = sorted((p.chunk_id, p.text) for p in passages)
        assert texts["dense"] == texts["lexical"]
        versions = {text.rsplit(" v")[-1] for _, text in texts["dense"]}
        assert len(versions) == 1, "a write of four documents is there wholly or not at all"
        version = int(versions.pop())
        assert version in (acknowledged, acknowledged + 1)
        assert len(texts["dense"]) == state.documents * (version % 3 + 1)
        assert state.documents == 3 if version == acknowledged else state.documents in (3, 4)
        acknowledged = version
        await shard.aclose()
    assert Store(open_corpus(corpus).shard_directory(0) / "store.sqlite")._one("PRAGMA integrity_check") == "ok"
