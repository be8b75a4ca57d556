"""Random histories of a corpus against a plain dictionary: whatever was done, it answers what the dictionary says.

A long run: `python -m tests.operators.corpus.test_model 1000` (examples of thirty steps each).
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.errors import InvalidInput
from engine.scope import Identity, Scope, entered
from operators import ingest
from operators.corpus import merge
from operators.corpus.content import chunk_hash, normalised
from operators.corpus.keys import chunk_id, key_of_chunk_id
from operators.corpus.manifest import CorpusConfig, create_corpus
from operators.corpus.measures import semantic_scores
from operators.corpus.shard import Shard
from operators.filter_parse import parse_filter
from operators.filter_tree import EVERYTHING, Filter
from operators.messages import Deleted, DocumentPage, Edit, EmbeddedDocument, Leg, Listing, Plan, Ranking, Written
from tests.corpus_model import (
    GROUPS,
    IDS,
    WORDS,
    Row,
    comparisons,
    documents,
    filters_of,
    findable,
    groups,
    metadata,
    of_chunks,
    ordinals,
    passing,
    row_of,
    some_ids,
    words,
)
from tests.filter_model import matches
from tests.operators.corpus.conftest import DIMENSION, vector_of

Call = Callable[..., Awaitable[Any]]
WATCHED = [parse_filter(f) for f in ({"n": {"$gte": 1}}, {"collections": "g1"}, {"text": {"$contains": "ggg"}})]


class CorpusMachine(RuleBasedStateMachine):
    """A corpus of some shards, and the dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory(prefix="model-")
        self.rows: dict[str, Row] = {}
        self.shards: list[Shard] = []
        self.steps = 0

    @initialize(count=st.sampled_from([1, 2, 5]), measure=st.sampled_from(["cosine", "l2", "ip"]))
    def create(self, count: int, measure: str) -> None:
        self.measure, self.count = measure, count
        self.directory = str(Path(self.folder.name) / "corpus")
        create_corpus(self.directory, CorpusConfig(embedder="test", dimension=DIMENSION, shards=count, measure=measure))
        self.shards = self.opened()

    def opened(self, *, writable: bool = True) -> list[Shard]:
        return [Shard.open(self.directory, n, writable=writable) for n in range(self.count)]

    def teardown(self) -> None:
        try:
            if self.shards:
                self.look_everywhere(self.shards)
        finally:
            self.close(self.shards)
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            self.folder.cleanup()

    def close(self, shards: list[Shard]) -> None:
        for shard in shards:
            self.loop.run_until_complete(shard.aclose())

    def ask(self, call: Callable[[Shard], Awaitable[Any]], shards: list[Shard] | None = None) -> list[Any]:
        """What each shard answers."""

        async def everyone() -> list[Any]:
            return list(await asyncio.gather(*(call(shard) for shard in shards or self.shards)))

        return self.loop.run_until_complete(everyone())

    def tell(self, method: Call, split: Callable[..., list[Any]], *arguments: Any) -> list[Any]:
        """What those shards answer that get a part of the arguments."""

        async def some() -> list[Any]:
            parts = split(len(self.shards), *arguments)
            calls = (method(s, *part) for s, part in zip(self.shards, parts, strict=True) if part is not None)
            return list(await asyncio.gather(*calls))

        return self.loop.run_until_complete(some())

    # Changes

    @rule(batch=st.lists(documents(), min_size=1, max_size=3, unique_by=lambda d: d.document.id),
          chunking=st.sampled_from(["", "", "other"]))  # fmt: skip
    def write(self, batch: list[EmbeddedDocument], chunking: str) -> None:
        self.check_what_is_known(batch, chunking)
        answers = self.tell(Shard.write, ingest.embedded_by_shard, batch, chunking)
        written = {w.document_id: w for w in ingest.merge_written(answers)}
        for one in batch:
            old = self.rows.get(one.document.id)
            if old and old.is_as(one.document, chunking):
                assert written[one.document.id] == Written(one.document.id, "unchanged", 0)
                continue
            outcome = "replaced" if old else "added"
            assert written[one.document.id] == Written(one.document.id, outcome, len(one.chunks))
            self.rows[one.document.id] = row_of(one, chunking, old)

    def check_what_is_known(self, batch: list[EmbeddedDocument], chunking: str) -> None:
        """What ingesting asks first: which documents are as they were, and which vectors need not be made."""
        given = [d.document for d in batch]
        flags = ingest.merge_flags(self.tell(Shard.unchanged, ingest.documents_by_shard, given, chunking))
        for one in batch:
            old = self.rows.get(one.document.id)
            assert flags[one.document.id] == bool(old and old.is_as(one.document, chunking))
        stored = {h: text for row in self.rows.values() for h, text in row.hashes().items()}
        hashes = list({chunk_hash(d.document, c) for d in batch for c in d.chunks})
        found = merge.merge_known(self.ask(lambda shard: shard.known_vectors(hashes)))
        assert set(found.hashes) == set(hashes) & set(stored), "a vector is embedded again, or invented"
        for digest, vector in zip(found.hashes, found.vectors, strict=True):
            assert np.allclose(vector, self.vector(stored[digest]), atol=1e-6)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def write_the_same_again(self, data: st.DataObject) -> None:
        row = self.rows[data.draw(st.sampled_from(sorted(self.rows)))]
        if not row.edited:
            nothing = np.full(DIMENSION, np.nan)
            vectors = [vector_of(c.text) if n in row.indexed else nothing for n, c in row.chunks.items()]
            matrix = np.array(vectors, np.float32).reshape(-1, DIMENSION)
            self.write([EmbeddedDocument(row.document, tuple(row.chunks.values()), matrix)], row.chunking)

    @rule(ids=some_ids)
    def delete(self, ids: list[str]) -> None:
        there = [id for id in dict.fromkeys(ids) if id in self.rows]
        chunks = sum(len(self.rows[id].chunks) for id in there)
        deleted = merge.merge_deleted(self.tell(Shard.delete, ingest.ids_by_shard, ids))
        assert (deleted.documents, deleted.chunks) == (len(there), chunks)
        assert sorted(deleted.missing) == sorted(set(ids) - set(there))
        for id in there:
            del self.rows[id]

    @rule(raw=filters_of(comparisons))
    def delete_where(self, raw: dict[str, Any]) -> None:
        filters = parse_filter(raw)
        if filters == EVERYTHING:
            return
        gone = [id for id, row in self.rows.items() if matches(filters, row.view())]
        chunks = sum(len(self.rows[id].chunks) for id in gone)
        deleted = merge.merge_deleted(self.ask(lambda shard: shard.delete_where(filters)))
        assert deleted == Deleted(len(gone), chunks)
        for id in gone:
            del self.rows[id]

    @rule(id=st.sampled_from(IDS), changes=metadata, replace=st.booleans())
    def change_metadata(self, id: str, changes: dict[str, Any], replace: bool) -> None:
        answers = self.tell(Shard.change_metadata, ingest.metadata_by_shard, id, changes, replace)
        assert answers == [id in self.rows]
        if row := self.rows.get(id):
            row.metadata = changes if replace else {**row.metadata, **changes}

    @rule(ids=some_ids, add=groups, remove=groups)
    def change_collections(self, ids: list[str], add: list[str], remove: list[str]) -> None:
        answers = self.tell(Shard.change_collections, ingest.collections_by_shard, ids, add, remove)
        assert sorted(id for part in answers for id in part) == sorted(set(ids) - set(self.rows))
        for id in set(ids) & set(self.rows):
            self.rows[id].collections = (self.rows[id].collections | set(add)) - set(remove)

    @rule(id=st.sampled_from(IDS), ordinal=ordinals, text=words, late=st.booleans())
    def change_chunk(self, id: str, ordinal: int, text: str, late: bool) -> None:
        row = self.rows.get(id)
        edit = Edit(chunk_id(id, ordinal), (row.version if row else 1) - late, text, len(text.split()))
        if row is None or ordinal not in row.chunks:
            assert self.tell(Shard.change_chunk, ingest.edit_by_shard, edit, vector_of(text)) == [False]
        elif late:
            with pytest.raises(InvalidInput):
                self.tell(Shard.change_chunk, ingest.edit_by_shard, edit, vector_of(text))
        else:
            assert self.tell(Shard.change_chunk, ingest.edit_by_shard, edit, vector_of(text)) == [True]
            row.change_chunk(edit, ordinal)

    @rule(names=st.lists(st.tuples(st.sampled_from(IDS), ordinals), min_size=1, max_size=3))
    def delete_chunks(self, names: list[tuple[str, int]]) -> None:
        ids = [chunk_id(*name) for name in names]
        documents, chunks, missing = 0, 0, []
        for id, ordinal in dict.fromkeys(names):
            row = self.rows.get(id)
            if row is None or ordinal not in row.chunks:
                missing.append(chunk_id(id, ordinal))
                continue
            chunks += 1
            row.forget_chunk(ordinal)
            if not row.chunks:
                del self.rows[id]
                documents += 1
        deleted = merge.merge_deleted(self.tell(Shard.delete_chunks, ingest.chunk_ids_by_shard, ids))
        assert (deleted.documents, deleted.chunks) == (documents, chunks)
        assert sorted(deleted.missing) == sorted(missing)

    @rule()
    def commit(self) -> None:
        self.ask(Shard.commit)

    @rule()
    def reopen(self) -> None:
        self.close(self.shards)
        self.shards = self.opened()

    @rule()
    def open_for_reading(self) -> None:
        """What the writer has committed is what another process finds."""
        self.ask(Shard.commit)
        readers = self.opened(writable=False)
        try:
            self.look_everywhere(readers)
        finally:
            self.close(readers)

    # Questions

    @invariant()
    def answers_like_the_dictionary(self) -> None:
        if not self.shards:
            return
        self.check_statistics()
        self.check_lists(self.shards, EVERYTHING, "")
        self.check_dense(self.shards, EVERYTHING, limit=100)
        for filters in WATCHED:
            self.check_dense(self.shards, filters, limit=100)
        self.check_words(self.shards, [WORDS[self.steps % len(WORDS)], "fox"], EVERYTHING)
        self.steps += 1

    @rule(
        raw=filters_of(st.one_of(comparisons, of_chunks)),
        prefix=st.sampled_from(["", "a/", "b#", "文", "%"]),
        limit=st.integers(1, 4),
        person=st.sampled_from([None, Identity("ann", ("g1",)), Identity("bob")]),
    )
    def look(self, raw: dict[str, Any], prefix: str, limit: int, person: Identity | None) -> None:
        filters = parse_filter(raw)
        with entered(Scope(identity=person)):
            self.check_lists(self.shards, filters, prefix, person)
            self.check_dense(self.shards, filters, prefix, person, limit=limit)
            self.check_words(self.shards, ["fox", WORDS[limit]], filters, prefix, person)

    def look_everywhere(self, shards: list[Shard]) -> None:
        self.check_lists(shards, EVERYTHING, "")
        self.check_dense(shards, EVERYTHING, limit=100)
        self.check_words(shards, [*WORDS, "fox", "bbb jjj"], EVERYTHING)

    def vector(self, text: str) -> np.ndarray:
        return normalised(vector_of(text)) if self.measure == "cosine" else vector_of(text)

    def check_statistics(self) -> None:
        states = self.ask(Shard.statistics)
        rows = self.rows.values()
        chunks, indexed = sum(len(r.chunks) for r in rows), sum(len(r.indexed) for r in rows)
        for name, expected in (
            ("documents", len(rows)),
            ("chunks", chunks),
            ("indexed_chunks", indexed),
            ("dense_vectors", indexed),
            ("lexical_chunks", indexed),
            ("tokens", sum(r.tokens() for r in rows)),
            ("text_bytes", sum(len(r.document.text.encode()) for r in rows)),
        ):
            assert sum(getattr(s, name) for s in states) == expected, name
        for group in GROUPS:
            inside = [r for r in rows if group in r.collections]
            found = [s.collections[group] for s in states if group in s.collections]
            assert sum(c.documents for c in found) == len(inside)
            assert sum(c.chunks for c in found) == sum(len(r.chunks) for r in inside)
            assert sum(c.tokens for c in found) == sum(r.tokens() for r in inside)

    def check_lists(self, shards: list[Shard], filters: Filter, prefix: str, person: Identity | None = None) -> None:
        whole = Listing(filters=filters, scope_prefix=prefix, limit=1_000, include_vectors=True)
        passed = passing(self.rows, filters, prefix, person)
        chunks = merge.merge_chunks(self.ask(lambda s: s.chunks(whole), shards))
        assert chunks.total == len(passed)
        assert [msgspec.structs.replace(c, vector=None) for c in chunks.chunks] == [
            passed[key].chunk_info(key[1]) for key in sorted(passed)
        ]
        for c in chunks.chunks:
            assert (c.vector is not None) == (c.ordinal in self.rows[c.document_id].indexed)
            assert c.vector is None or np.allclose(c.vector, self.vector(c.text), atol=1e-6)
        found = merge.merge_documents(self.ask(lambda s: s.documents(whole), shards))
        assert found.total == len(found.documents)
        for d in found.documents:
            assert d == self.rows[d.id].document_info(created=d.created, updated=d.updated)
        seen = {id for id, row in self.rows.items() if id.startswith(prefix) and row.visible_to(person)}
        empty = {id for id in seen if not self.rows[id].chunks}  # of which only filters on documents can speak
        assert {d.id for d in found.documents} - empty == {id for id, _ in passed}
        if filters == EVERYTHING:
            assert {d.id for d in found.documents} == seen
        self.check_page(shards, msgspec.structs.replace(whole, limit=3, offset=self.steps % 2), found)

    def check_page(self, shards: list[Shard], listing: Listing, whole: DocumentPage) -> None:
        async def pages() -> list[DocumentPage]:
            wanted = merge.up_to_page(len(shards), listing)
            return [await shard.documents(*own) for shard, own in zip(shards, wanted, strict=True) if own]

        found = merge.cut_documents(listing, merge.merge_documents(self.loop.run_until_complete(pages())))
        assert found == DocumentPage(whole.documents[listing.offset :][: listing.limit], whole.total)

    def check_dense(
        self, shards: list[Shard], filters: Filter, prefix: str = "", person: Identity | None = None, *, limit: int
    ) -> None:
        wanted, query = _plan("", limit, filters, prefix), vector_of(f"question {self.steps}")
        found = merge.merge_rankings(self.ask(lambda s: s.dense(wanted, query), shards))
        texts = findable(self.rows, filters, prefix, person)
        self.check_ranking(found, texts, limit)
        if self.measure == "cosine":
            query = normalised(query)
        vectors = np.array([self.vector(text) for text in texts.values()], np.float32).reshape(len(texts), DIMENSION)
        scores = dict(zip(texts, semantic_scores(vectors, query, self.measure).tolist(), strict=True))
        assert np.allclose(found.scores, [scores[key] for key in found.keys.tolist()], atol=1e-5)
        left_out = [scores[key] for key in set(scores) - set(found.keys.tolist())]
        assert not left_out or max(left_out) <= found.scores[-1] + 1e-5
        passages = merge.merge_passages(self.ask(lambda s: s.fetch(wanted, query, found), shards))
        assert [key_of_chunk_id(p.chunk_id) for p in passages] == found.keys.tolist()
        for p in passages:
            row = self.rows[p.document_id]
            assert p.text == texts[key_of_chunk_id(p.chunk_id)]
            assert (p.metadata, set(p.collections)) == (row.metadata, row.collections)
            assert p.semantic == pytest.approx(p.score, abs=1e-5)

    def check_words(
        self, shards: list[Shard], words: list[str], filters: Filter, prefix: str = "", person: Identity | None = None
    ) -> None:
        texts = findable(self.rows, filters, prefix, person)
        for word in words:
            wanted = _plan(word, 100, filters, prefix)
            terms = merge.merge_statistics(self.ask(lambda s, wanted=wanted: s.term_statistics(wanted), shards))
            found = merge.merge_rankings(
                self.ask(lambda s, wanted=wanted, terms=terms: s.lexical(wanted, terms), shards)
            )
            asked = set(word.split())
            self.check_ranking(found, {key: text for key, text in texts.items() if asked & set(text.split())}, 100)

    def check_ranking(self, found: Ranking, texts: dict[int, str], limit: int) -> None:
        keys = found.keys.tolist()
        assert set(keys) <= set(texts)
        assert len(set(keys)) == len(keys) == min(limit, len(texts))
        assert keys == [key for _, key in sorted(zip((-found.scores).tolist(), keys, strict=True))]


def _plan(question: str, limit: int, filters: Filter, prefix: str) -> Plan:
    legs = (Leg("dense", 1.0, limit), Leg("lexical", 1.0, limit))
    return Plan(question=question, strategy="hybrid", legs=legs, limit=limit, rerank_candidates=0, language="",
                filters=filters, scope_prefix=prefix)  # fmt: skip


def profile(examples: int, steps: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=slow,
        report_multiple_bugs=False,
    )


TestCorpus = CorpusMachine.TestCase
TestCorpus.settings = profile(12, 20)

if __name__ == "__main__":
    run_state_machine_as_test(CorpusMachine, settings=profile(int(sys.argv[1]), 30))
