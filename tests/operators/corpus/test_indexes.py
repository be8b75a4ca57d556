from contextlib import closing

from operators.corpus import feed
from operators.corpus.indexes import Indexes
from operators.corpus.manifest import open_corpus
from operators.corpus.store import Store


async def test_a_reader_that_is_overtaken_by_forgetting_begins_anew(shard, corpus: str, make, monkeypatch) -> None:
    await shard.write([make("a", "fox"), make("b", "whale"), make("c", "frog")])
    await shard.commit()
    here = open_corpus(corpus)
    folder = here.shard_directory(0)
    removed_keys = feed.removed_keys

    def forgotten_first(*arguments):
        with closing(Store(folder / "store.sqlite")) as writing:
            feed.forget(writing, writing.seq())
        return removed_keys(*arguments)

    with closing(Store(folder / "store.sqlite")) as store:
        reader = Indexes(folder, here.config, writable=False)
        reader.open(store)
        assert len(reader.dense) == 3
        await shard.delete(["a", "b"])
        monkeypatch.setattr(feed, "_FORGET_FROM", 1)
        monkeypatch.setattr(feed, "removed_keys", forgotten_first)
        reader.follow(store)
        assert (reader.dense.seq, feed.floor(store)) == (5, 5)
        assert reader.dense.keys().tolist() == shard._indexes.dense.keys().tolist()
        reader.close(store)
