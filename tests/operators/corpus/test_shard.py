import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import Cancelled, InvalidInput
from engine.scope import Scope, entered
from engine.trace import Trace
from operators.corpus.content import normalised
from operators.corpus.hnsw import DenseIndex
from operators.corpus.listing import CollectionStatistics
from operators.corpus.manifest import CorpusConfig, create_corpus, open_corpus
from operators.corpus.measures import MEASURES
from operators.corpus.merge import merge_passages, merge_rankings, merge_statistics
from operators.corpus.shard import Shard
from operators.filter_parse import parse_filter
from operators.messages import Deleted, Edit, Passage, Ranking, Written
from tests.operators.corpus.conftest import DIMENSION
from tests.until import until


async def found(shard: Shard, plan, question: str, vector, **options) -> tuple[list[str], list[str]]:
    """Texts that each leg finds, best first."""
    wanted = plan(question, **options)
    asked = vector(question)
    dense = await shard.fetch(wanted, asked, await shard.dense(wanted, asked))
    lexical = await shard.fetch(wanted, asked, await shard.lexical(wanted, None))
    return [p.text for p in dense], [p.text for p in lexical]


async def test_a_document_is_found_by_both_legs_as_soon_as_it_is_written(shard, make, plan, vector) -> None:
    assert await shard.write([make("a", "red fox"), make("b", "blue whale")]) == [
        Written("a", "added", 1),
        Written("b", "added", 1),
    ]
    dense, lexical = await found(shard, plan, "red fox", vector)
    assert dense == ["red fox", "blue whale"]
    assert lexical == ["red fox"]


async def test_an_empty_shard_answers_everything_with_nothing(shard, plan, vector) -> None:
    assert await found(shard, plan, "anything", vector) == ([], [])
    assert await shard.write([]) == []
    assert await shard.delete([]) == Deleted(0, 0)
    assert await shard.unchanged([]) == {}
    assert (await shard.statistics()).documents == 0


async def test_a_shard_that_was_searched_while_empty_finds_what_comes_later(shard, make, plan, vector) -> None:
    assert await found(shard, plan, "red fox", vector) == ([], [])
    await shard.write([make("a", "red fox")])
    assert await found(shard, plan, "red fox", vector) == (["red fox"], ["red fox"])


async def test_a_leg_that_the_plan_leaves_out_finds_nothing(shard, make, plan, vector) -> None:
    await shard.write([make("a", "red fox")])
    without = msgspec.structs.replace(plan("red fox"), legs=())
    assert len((await shard.dense(without, vector("red fox"))).keys) == 0
    assert len((await shard.lexical(without, None)).keys) == 0


async def test_a_passage_says_where_it_is_from(shard, make, plan, vector) -> None:
    await shard.write([make("a#1", chunks=["Zürich. ", "猫が好き。😀 ", "end"], title="T", year=2020, tags=["x"])])
    ranking = await shard.lexical(plan("猫"), None)
    ranking = msgspec.structs.replace(ranking, ranks={"lexical": [1], "dense": [0]})
    asked = vector("x")
    assert await shard.fetch(plan(), asked, ranking) == [
        Passage(
            chunk_id="a#1#1",
            document_id="a#1",
            title="T",
            text="猫が好き。😀 ",
            start=8,
            end=15,
            score=float(ranking.scores[0]),
            semantic=pytest.approx(normalised(asked) @ normalised(vector("猫が好き。😀 ")), abs=1e-6),
            ranks={"lexical": 1},
            metadata={"year": 2020, "tags": ["x"]},
        )
    ]


async def test_fetch_keeps_the_rankings_order_and_leaves_other_shards_hits_alone(shard, make, plan, vector) -> None:
    await shard.write([make(name, f"fox {name}") for name in "abcd"])
    ranking = await shard.lexical(plan("fox"), None)
    shuffled = Ranking("fused", ranking.keys[::-1], ranking.scores, np.array([0, 1, 0, 0], np.int32))
    whole = [p.document_id for p in await shard.fetch(plan(), vector(""), ranking)]
    assert [p.document_id for p in await shard.fetch(plan(), vector(""), shuffled)] == [whole[3], whole[1], whole[0]]


async def test_the_context_of_a_chunk_is_searched_and_is_no_part_of_its_text(shard, make, plan, vector) -> None:
    await shard.write([make("a", "It is 3 V.", title="Manual", context="Battery > Voltage")])
    _, lexical = await found(shard, plan, "battery voltage", vector)
    assert lexical == ["It is 3 V."]


async def test_a_replaced_document_is_found_by_its_new_words_only(shard, make, plan, vector) -> None:
    await shard.write([make("a", chunks=["old one ", "old two"]), make("b", "other")])
    assert await shard.write([make("a", "new one")]) == [Written("a", "replaced", 1)]
    dense, lexical = await found(shard, plan, "old one new", vector)
    assert (sorted(dense), lexical) == (["new one", "other"], ["new one"])
    state = await shard.statistics()
    assert (state.documents, state.chunks, state.dense_vectors, state.lexical_chunks) == (2, 2, 2, 2)


async def test_the_same_content_again_changes_nothing(shard, make) -> None:
    await shard.write([make("a", chunks=["x", "y"])])
    before = await shard.statistics()
    assert await shard.unchanged([make("a", chunks=["x", "y"]).document, make("b", "xy").document]) == {
        "a": True,
        "b": False,
    }
    assert await shard.write([make("a", chunks=["x", "y"])]) == [Written("a", "unchanged", 0)]
    assert await shard.statistics() == before


async def test_deleted_documents_are_gone_and_unknown_ones_reported(shard, make, plan, vector) -> None:
    await shard.write([make("a", "same words"), make("b", "same words")])
    assert await shard.delete(["b", "zz"]) == Deleted(1, 1, ("zz",))
    wanted = plan("same words")
    for ranking in (await shard.dense(wanted, vector("same words")), await shard.lexical(wanted, None)):
        assert [p.document_id for p in await shard.fetch(wanted, vector(""), ranking)] == ["a"]
    await shard.write([make("b", "same words")])
    assert len((await shard.lexical(wanted, None)).keys) == 2


async def test_a_hit_that_is_deleted_before_it_is_fetched_is_left_out(shard, make, plan, vector) -> None:
    await shard.write([make("a", "fox"), make("b", "fox")])
    ranking = await shard.lexical(plan("fox"), None)
    await shard.delete(["a"])
    assert [p.document_id for p in await shard.fetch(plan(), vector(""), ranking)] == ["b"]


async def test_both_legs_keep_to_filters_and_scope(shard, make, plan, vector) -> None:
    await shard.write([make(f"{kind}:{n}", f"fox {n}", kind=kind, n=n) for kind in ("x", "y") for n in range(20)])
    few = parse_filter({"n": {"$in": [1, 5, 99]}})
    kind = parse_filter({"kind": "y", "n": {"$in": [1, 5, 99]}})
    for options in ({"filters": kind}, {"filters": few, "scope_prefix": "y:"}):
        dense, lexical = await found(shard, plan, "fox", vector, limit=40, **options)
        assert sorted(dense) == sorted(lexical) == ["fox 1", "fox 5"]
    assert await found(shard, plan, "fox", vector, filters=parse_filter({"kind": "z"})) == ([], [])


async def test_a_filter_sees_documents_written_since_it_was_last_used(shard, make, plan, vector) -> None:
    for n in range(3):
        await shard.write([make(f"a{n}", f"fox {n}", kind="x")])
        dense, _ = await found(shard, plan, "fox", vector, filters=parse_filter({"kind": "x"}))
        assert len(dense) == n + 1


async def test_a_question_vector_that_does_not_fit_is_refused(shard, plan) -> None:
    for bad in (np.ones(3, np.float32), np.full(16, np.nan, np.float32)):
        with pytest.raises(InvalidInput, match="expected 16 finite ones, no longer than 1e.18, from the embedder"):
            await shard.dense(plan("x"), bad)


async def test_a_question_that_was_given_up_is_not_worked_on(shard, plan) -> None:
    scope = Scope()
    scope.cancel()
    with entered(scope), pytest.raises(Cancelled):
        await shard.lexical(plan("x"), None)


async def test_everything_is_there_after_reopening_and_nothing_needs_mending(open_shard, make, plan, vector) -> None:
    shard = await open_shard()
    await shard.write([make(f"d{n}", f"fox number {n}") for n in range(30)])
    await shard.delete(["d3"])
    expected, before = await found(shard, plan, "fox number 7", vector, limit=40), await shard.statistics()
    await shard.aclose()
    again = await open_shard()
    after = await again.statistics()
    assert await found(again, plan, "fox number 7", vector, limit=40) == expected
    assert (after.documents, after.seq, after.dense_seq, after.lexical_seq, after.notes) == (29, 31, 31, 31, ())
    assert after.updated == before.updated
    assert all(size > 0 for size in after.size_bytes.values())


@pytest.mark.parametrize("harm", ["dense.json", "dense-*.hnsw", "lexical/segments_*", "lexical/*.cf[se]"])
async def test_a_lost_index_is_made_anew_and_said_so(open_shard, corpus, make, plan, vector, harm: str) -> None:
    shard = await open_shard()
    await shard.write([make("a", "red fox"), make("b", "blue whale")])
    await shard.aclose()
    for path in open_corpus(corpus).shard_directory(0).glob(harm):
        path.unlink()
    again = await open_shard(writable=False)
    assert await found(again, plan, "red fox", vector) == (["red fox", "blue whale"], ["red fox"])
    assert (await again.statistics()).notes


@pytest.mark.parametrize("writable", [True, False])
async def test_an_older_database_under_newer_indexes_is_the_truth(
    open_shard, corpus, make, plan, vector, writable: bool
) -> None:
    database = open_corpus(corpus).shard_directory(0) / "store.sqlite"
    shard = await open_shard()
    await shard.write([make("a", "red fox")])
    await shard.aclose()
    older = database.read_bytes()
    shard = await open_shard()
    await shard.write([make("b", "blue whale"), make("c", "grey wolf")])
    await shard.delete(["a"])
    await shard.aclose()
    database.write_bytes(older)
    again = await open_shard(writable=writable)
    assert await found(again, plan, "red fox whale wolf", vector) == (["red fox"], ["red fox"])
    assert any("ahead of the database" in note for note in (await again.statistics()).notes)


async def test_a_shard_has_one_writer_and_any_number_of_readers(open_shard, make, plan, vector) -> None:
    writer, reader = await open_shard(), await open_shard(writable=False)
    with pytest.raises(InvalidInput, match=r"is being written by process \d+.*open the shard for reading"):
        await open_shard()
    with pytest.raises(InvalidInput, match="opened for reading"):
        await reader.write([make("a", "x")])
    for n in range(3):
        await writer.write([make(f"a{n}", f"red fox {n}")])
        await writer.delete([f"a{n - 1}"])
        await writer.commit()
        assert await found(reader, plan, "red fox", vector) == ([f"red fox {n}"], [f"red fox {n}"])
    await writer.aclose()
    await open_shard()


async def test_readers_and_a_writer_do_not_disturb_each_other(shard, make, plan, vector) -> None:
    await shard.write([make("fixed", "red fox")])

    async def read() -> None:
        for _ in range(30):
            dense, lexical = await found(shard, plan, "red fox", vector, limit=3)
            assert dense[0] == lexical[0] == "red fox"

    async def write() -> None:
        for n in range(30):
            await shard.write([make(f"d{n % 4}", chunks=[f"grey wolf {n} "] * (n % 3 + 1))])
            await shard.delete([f"d{(n + 1) % 4}"])

    await asyncio.gather(*(read() for _ in range(4)), write())


@pytest.mark.parametrize("measure", MEASURES)
async def test_any_number_of_shards_answers_like_one(tmp_path: Path, make, plan, vector, measure: str) -> None:
    rng = np.random.default_rng(1)
    words = [f"word{n}" for n in range(40)]

    def document(n: int, salt: str = "") -> object:
        return make(f"d{n}", " ".join(rng.choice(words, 12)) + salt, title=str(rng.choice(words)), kind=n % 2)

    history = [[document(n) for n in range(120)], [document(n, " again") for n in range(0, 120, 7)]]
    answers = []
    for count in (1, 2, 5):
        directory = str(tmp_path / f"{count}")
        corpus = create_corpus(directory, CorpusConfig(embedder="t", dimension=16, shards=count, measure=measure))
        shards = [Shard.open(directory, index, writable=True) for index in range(count)]
        for step in history:
            for index, shard in enumerate(shards):
                await shard.write([d for d in step if corpus.shard_of(d.document.id) == index])
        for index, shard in enumerate(shards):
            await shard.delete([f"d{n}" for n in range(0, 120, 11) if corpus.shard_of(f"d{n}") == index])
        answers.append(
            [
                await ask(shards, wanted, vector)
                for wanted in (plan("word1 word2 again", limit=15), plan("word7", filters=parse_filter({"kind": 1})))
            ]
        )
        for shard in shards:
            await shard.aclose()
    assert answers[0] == answers[1] == answers[2]
    assert all(len(passages) == limit for passages, limit in zip(answers[0][0], (15, 15), strict=True))


async def ask(shards: list[Shard], wanted, vector) -> list[list[Passage]]:
    statistics = merge_statistics([await s.term_statistics(wanted) for s in shards])
    dense = merge_rankings([await s.dense(wanted, vector(wanted.question)) for s in shards])
    lexical = merge_rankings([await s.lexical(wanted, statistics) for s in shards])
    asked = vector(wanted.question)
    return [merge_passages([await s.fetch(wanted, asked, found) for s in shards]) for found in (dense, lexical)]


async def test_own_statistics_serve_a_shard_that_is_alone(shard, make, plan) -> None:
    await shard.write([make(f"d{n}", "fox " * n + "dog", title="fox") for n in range(1, 9)])
    wanted = plan("fox dog")
    alone, told = await shard.lexical(wanted, None), await shard.lexical(wanted, await shard.term_statistics(wanted))
    assert (alone.keys.tolist(), alone.scores.tolist()) == (told.keys.tolist(), told.scores.tolist())


async def test_vectors_are_compared_as_the_measure_says(shard, make, plan, vector) -> None:
    await shard.write([make("a", "red fox")])
    ranking = await shard.dense(plan(""), 5 * vector("blue"))
    assert ranking.scores[0] == pytest.approx(normalised(vector("blue")) @ normalised(vector("red fox")), rel=1e-5)


def test_a_shard_runs_without_torch_and_pyserini(corpus: str) -> None:
    code = f"""
import asyncio, sys
from operators.corpus.shard import Shard
from operators.messages import Leg, Plan
async def main():
    shard = Shard.open({corpus!r}, 0, writable=True)
    plan = Plan(question="fox", strategy="", legs=(Leg("lexical", 1, 5),), limit=5, rerank_candidates=0, language="")
    await shard.lexical(plan, None)
    await shard.aclose()
asyncio.run(main())
print([m for m in ("torch", "pyserini", "transformers", "jnius") if m in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


async def test_a_filter_follows_every_kind_of_change(shard, make, plan, vector) -> None:
    only = {"filters": parse_filter({"kind": "x"})}
    await shard.write([make("a", "fox a", kind="x"), make("b", "fox b", kind="y"), make("c", chunks=["fox c ", "d"])])

    async def passing() -> list[str]:
        dense, lexical = await found(shard, plan, "fox d", vector, **only)
        assert sorted(dense) == sorted(lexical)
        return sorted(dense)

    assert await passing() == ["fox a"]
    assert await shard.change_metadata("b", {"kind": "x"}, replace=False)
    assert await passing() == ["fox a", "fox b"]
    assert await shard.change_metadata("c", {"kind": "x"}, replace=True)
    assert await passing() == ["d", "fox a", "fox b", "fox c "]
    await shard.delete_chunks(["c#0"])
    assert await passing() == ["d", "fox a", "fox b"]
    await shard.write([make("a", "fox a", kind="z")])
    await shard.delete_where(parse_filter({"document_id": "b"}))
    assert await passing() == ["d"]


async def test_a_changed_chunk_is_found_by_its_new_words(shard, make, plan, vector) -> None:
    await shard.write([make("a", chunks=["red fox ", "blue whale"])])
    assert await shard.change_chunk(Edit("a#1", 1, "green frog"), vector("green frog"))
    dense, lexical = await found(shard, plan, "green frog", vector)
    assert (dense[0], lexical) == ("green frog", ["green frog"])
    assert (await found(shard, plan, "whale", vector))[1] == []
    with pytest.raises(InvalidInput, match="expected a vector of 16 finite numbers"):
        await shard.change_chunk(Edit("a#1", 2, "x"), np.ones(3, np.float32))


async def test_the_trace_says_how_a_filtered_question_was_searched(shard, make, plan, vector) -> None:
    await shard.write([make(f"d{n}", f"fox {n}", n=n) for n in range(20)])
    scope = Scope(trace=Trace())
    with entered(scope):
        await shard.dense(plan("fox", filters=parse_filter({"n": 3})), vector("fox"))
    assert scope.trace is not None
    assert any("1 allowed of 20" in note for note in scope.trace.notes)


async def test_another_measure_than_the_corpuss_compares_every_vector(shard, make, plan, vector) -> None:
    texts = [f"fox {n}" for n in range(30)]
    await shard.write([make(text, text) for text in texts])
    ranking = await shard.dense(plan("fox", measure="l1"), vector("fox"))
    away = {text: np.abs(normalised(vector(text)) - vector("fox")).sum() for text in texts}
    passages = await shard.fetch(plan("fox", measure="l1"), vector("fox"), ranking)
    assert [p.document_id for p in passages] == sorted(texts, key=away.__getitem__)[:10]
    assert passages[0].semantic == pytest.approx(1 - min(away.values()), rel=1e-5)


async def test_a_deletion_by_filter_must_say_something(shard, make) -> None:
    for everything in ({}, {"chunk_order": 1}):
        with pytest.raises(InvalidInput, match="does not let everything through"):
            await shard.delete_where(parse_filter(everything))


async def test_statistics_are_true(shard, make) -> None:
    await shard.write([make("a", "née", n=1), make("b", chunks=["x", "y"])])
    await shard.change_collections(["a"], ["red"], [])
    state = await shard.statistics()
    assert (state.documents, state.chunks, state.indexed_chunks, state.text_bytes) == (2, 3, 3, 6)
    assert state.collections == {"red": CollectionStatistics(1, 1, 0)}
    assert (state.dense_vectors, state.lexical_chunks) == (3, 3)


async def test_a_batch_of_deletions_is_one_rebuild(shard, make, monkeypatch) -> None:
    rebuilt, removed = [], []
    rebuild, remove = DenseIndex.rebuild, DenseIndex.remove
    monkeypatch.setattr(DenseIndex, "rebuild", lambda self: (rebuilt.append(len(self)), rebuild(self))[1])
    monkeypatch.setattr(DenseIndex, "remove", lambda self, keys: (removed.append(len(keys)), remove(self, keys))[1])
    await shard.write([make(f"d{n}", f"text {n}") for n in range(3_000)], "")
    assert await shard.delete([f"d{n}" for n in range(2_500)]) == Deleted(2_500, 2_500)

    async def done() -> bool:
        return bool(rebuilt) and not any(t.name.startswith("dense-index") for t in threading.enumerate())

    await until(done, within_s=60)
    assert (rebuilt, removed) == ([500], [2_500])


async def test_a_reader_elsewhere_finds_by_words_what_is_written_soon_after(tmp_path, make, plan, monkeypatch) -> None:
    monkeypatch.setattr("operators.corpus.shard.PUBLISHED_WITHIN_S", 0.05)
    create_corpus(tmp_path / "corpus", CorpusConfig(embedder="test", dimension=DIMENSION))
    writer = Shard.open(str(tmp_path / "corpus"), 0, writable=True)
    reader = Shard.open(str(tmp_path / "corpus"), 0)

    async def found() -> int:
        return len((await reader.lexical(plan("fox"), None)).keys)

    assert await found() == 0
    for number in (1, 2):
        await writer.write([make(f"d{number}", f"fox {number}")])

        async def there(number: int = number) -> bool:
            return await found() == number

        await until(there, within_s=60)
    await writer.write([make("late", "fox")])  # closed before it is its time
    await writer.aclose()
    assert await found() == 3
    await reader.aclose()


def test_a_change_is_published_though_the_loop_of_the_one_before_has_ended(tmp_path, make, monkeypatch) -> None:
    monkeypatch.setattr("operators.corpus.shard.PUBLISHED_WITHIN_S", 0.05)
    create_corpus(tmp_path / "corpus", CorpusConfig(embedder="test", dimension=DIMENSION))
    shard = Shard.open(str(tmp_path / "corpus"), 0, writable=True)

    async def published() -> bool:
        return (await shard.statistics()).lexical_seq == 2

    async def write_and_wait() -> None:
        await shard.write([make("b", "y")])
        await until(published, within_s=60)

    asyncio.run(shard.write([make("a", "x")]))
    asyncio.run(write_and_wait())
    asyncio.run(shard.aclose())


async def test_the_weight_of_a_shard_is_that_of_its_first_documents_at_once(shard, make) -> None:
    assert shard.weight == 0
    await shard.write([make("a", "x"), make("b", "y")])
    assert shard.weight == 2
