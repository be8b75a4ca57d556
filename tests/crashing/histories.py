"""Random histories of a corpus: operations, what they make of a plain dictionary, and what a shard made of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from operators.corpus.content import normalised
from operators.corpus.keys import chunk_id, chunk_key, shard_of
from operators.corpus.shard import Shard
from operators.filter_parse import parse_filter
from operators.messages import Chunk, Document, Edit, EmbeddedDocument, Leg, Listing, Plan
from tests.operators.corpus.conftest import DIMENSION, vector_of

EVERYTHING = Listing(limit=100_000, include_vectors=True)
COMMON = "fox"  # a word of every chunk
_LETTERS = str.maketrans("0123456789.", "bdfghjklmnp")  # words that no analyzer cuts or stems
SHARDS = 4  # of a corpus with several lanes
_IDS_OF_A_LANE = 6
_TITLE = "T"


class Row(NamedTuple):
    """A stored document as a dictionary's value; chunks are texts by ordinal."""

    version: int
    owner: str
    collections: frozenset[str]
    metadata: dict[str, Any]
    chunks: dict[int, str]


Rows = dict[str, Row]


class Operation(NamedTuple):
    """One call that changes a shard; `number` makes what it writes unlike everything else."""

    kind: str
    ids: tuple[str, ...]
    number: int


def operation(seed: int, lane: int, number: int) -> Operation:
    """The operation of that number in a lane's history: always the same one."""
    chance = random.Random(f"{seed}/{lane}/{number}")
    kinds = {
        "write": 40, "delete": 8, "delete_where": 4, "patch": 8, "metadata": 4, "collections": 8, "chunk": 8,
        "delete_chunks": 5, "commit": 5,
    }  # fmt: skip
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    some = chance.sample(_ids(lane), chance.randint(1, 3) if kind in ("write", "delete", "collections") else 1)
    return Operation(kind, tuple(some), number)


@cache
def _ids(lane: int) -> list[str]:
    """A lane's documents, which one shard holds."""
    ids = (f"{lane}.{n}" for n in count())
    return list(islice((id for id in ids if shard_of(id, SHARDS) == lane % SHARDS), _IDS_OF_A_LANE))


def row(id: str, number: int) -> Row:
    """What a write of that number stores under an id; its last chunk is like other documents'."""
    texts = [f"{COMMON} {_word(f'{id}w{number}c{n}')} " for n in range(number % 3)]
    texts.append(f"{COMMON} {_word(f'q{number % 4}')}")
    group = f"g{number % 3}"
    metadata = {"lane": id.partition(".")[0], "turn": number % 3, "number": number}
    return Row(1, f"owner{number % 2}", frozenset({group}), metadata, dict(enumerate(texts)))


def embedded(id: str, row: Row) -> EmbeddedDocument:
    """The document whose stored form is that row."""
    texts = list(row.chunks.values())
    starts = np.cumsum([0, *map(len, texts)]).tolist()
    document = Document(
        id=id, title=_TITLE, text="".join(texts), owner=row.owner, collections=tuple(sorted(row.collections)),
        metadata=row.metadata,
    )  # fmt: skip
    chunks = (
        Chunk(ordinal=n, text=text, start=start, end=start + len(text))
        for n, (text, start) in enumerate(zip(texts, starts, strict=False))
    )
    vectors = np.stack([vector_of(text) for text in texts]) if texts else np.empty((0, DIMENSION), np.float32)
    return EmbeddedDocument(document, tuple(chunks), vectors)


def _edited(operation: Operation) -> str:
    return f"{COMMON} {_word(f'{operation.ids[0]}t{operation.number}')}"


def _word(name: str) -> str:
    return name.translate(_LETTERS)


def applied(rows: Rows, operation: Operation) -> Rows:
    """The rows after an operation."""
    rows, lane = dict(rows), operation.ids[0].partition(".")[0]
    if operation.kind == "delete_where":
        wanted = {"lane": lane, "turn": operation.number % 3}
        return {id: r for id, r in rows.items() if wanted.items() - r.metadata.items()}
    for id in operation.ids:
        new = _row_after(operation, id, rows.pop(id, None))
        if new is not None:
            rows[id] = new
    return rows


def _row_after(operation: Operation, id: str, old: Row | None) -> Row | None:
    """What one document is after an operation that names it; None: not there."""
    if operation.kind == "write":
        return row(id, operation.number)._replace(version=old.version + 1 if old else 1)
    if operation.kind == "delete" or old is None:
        return None
    return _changed(operation, id, old)


def _changed(operation: Operation, id: str, old: Row) -> Row | None:
    kind, number = operation.kind, operation.number
    if kind == "patch":
        return old._replace(metadata={**old.metadata, "patched": number})
    if kind == "metadata":
        return old._replace(metadata={"lane": id.partition(".")[0], "turn": number % 3})
    if kind == "collections":
        return old._replace(collections=(old.collections | {f"h{number % 2}"}) - {f"g{number % 3}"})
    if kind == "chunk" and 0 in old.chunks:
        return old._replace(version=old.version + 1, chunks={**old.chunks, 0: _edited(operation)})
    if kind == "delete_chunks":
        kept = {n: text for n, text in old.chunks.items() if n < max(old.chunks)}
        return old._replace(version=old.version + 1, chunks=kept) if kept else None  # it goes with its last chunk
    return old


async def carry_out(shard: Shard, operation: Operation, rows: Rows) -> None:
    """Makes the call; `rows` is what the shard holds before it."""
    kind, ids, number = operation
    first, old = ids[0], rows.get(ids[0])
    if kind == "write":
        await shard.write([embedded(id, row(id, number)) for id in ids], "")
    elif kind == "delete":
        await shard.delete(list(ids))
    elif kind == "delete_where":
        await shard.delete_where(parse_filter({"lane": first.partition(".")[0], "turn": number % 3}))
    elif kind == "patch":
        await shard.change_metadata(first, {"patched": number}, False)
    elif kind == "metadata":
        await shard.change_metadata(first, {"lane": first.partition(".")[0], "turn": number % 3}, True)
    elif kind == "collections":
        await shard.change_collections(list(ids), [f"h{number % 2}"], [f"g{number % 3}"])
    elif kind == "chunk":
        text = _edited(operation)
        edit = Edit(chunk_id(first, 0), old.version if old else 1, text, 0)
        await shard.change_chunk(edit, vector_of(text))
    elif kind == "delete_chunks":
        await shard.delete_chunks([chunk_id(first, max(old.chunks) if old else 0)])
    else:
        await shard.commit()


# What a shard holds


async def stored(shard: Shard) -> Rows:
    """The rows that a shard lists."""
    page, chunks = await shard.documents(EVERYTHING), await shard.chunks(EVERYTHING)
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    for chunk in chunks.chunks:
        texts[chunk.document_id][chunk.ordinal] = chunk.text
        expected = normalised(vector_of(chunk.text))
        assert chunk.vector is not None, f"vector of {chunk.chunk_id}"
        assert np.array_equal(chunk.vector, expected), f"vector of {chunk.chunk_id}"
    assert set(texts) <= {d.id for d in page.documents}, "chunks without a document"
    return {d.id: Row(d.version, d.owner, frozenset(d.collections), d.metadata, texts[d.id]) for d in page.documents}


async def check_indexes(shard: Shard, rows: Rows) -> None:
    """Both indexes hold exactly those rows: `verify` says so, and searches do, by vectors and by every word."""
    (verification,) = await shard.verify(False)
    assert verification.findings == (), verification.findings
    texts = {chunk_key(id, n): text for id, r in rows.items() for n, text in r.chunks.items()}
    state = await shard.statistics()
    counts = (state.documents, state.chunks, state.indexed_chunks, state.dense_vectors, state.lexical_chunks)
    assert counts == (len(rows), *[len(texts)] * 4), f"counts {counts}: {len(rows)} documents, {len(texts)} chunks"
    query = vector_of("question")
    dense = await shard.dense(plan("", limit=len(texts) + 10), query)
    assert sorted(dense.keys.tolist()) == sorted(texts), "keys of the dense index"
    expected = [float(normalised(query) @ normalised(vector_of(texts[key]))) for key in dense.keys.tolist()]
    assert np.allclose(dense.scores, expected, atol=1e-5), "vectors of the dense index"
    keys_of_word: dict[str, set[int]] = defaultdict(set)
    for key, text in texts.items():
        for word in text.split():
            keys_of_word[word].add(key)
    for word, keys in keys_of_word.items():
        lexical = await shard.lexical(plan(word, limit=len(texts) + 10), None)
        assert set(lexical.keys.tolist()) == keys, f"the lexical index on {word!r}"
    found = await shard.lexical(plan(COMMON, limit=10_000), None)
    assert set(found.keys.tolist()) == set(texts), "keys of the lexical index"


def plan(question: str, *, limit: int, legs: Sequence[str] = ("dense", "lexical"), **options: Any) -> Plan:
    """A plan that asks each leg for `limit` hits."""
    return Plan(
        question=question, strategy="hybrid", legs=tuple(Leg(name, 1.0, limit) for name in legs), limit=limit,
        rerank_candidates=0, language="", **options,
    )  # fmt: skip


def difference(expected: Rows, found: Rows) -> str:
    """The first document that differs, in words."""
    for id in sorted({*expected, *found}):
        if expected.get(id) != found.get(id):
            return f"document {id}: expected {expected.get(id)}, found {found.get(id)}"
    return ""


def of_lane(rows: Rows, lane: int) -> Rows:
    """The rows of one lane's documents."""
    return {id: r for id, r in rows.items() if id.partition(".")[0] == str(lane)}
