"""People who may see some documents each, and whoever runs the corpus, who may see all: for tests of who may do what.

Ann is in the group "team", Bob in "team" and "board", Eve in one without documents. What is promised: nobody sees a
document, or that it is there, unless it is theirs or in one of their groups; nobody changes a document that is not
theirs. Two things show that something hidden is there, and nothing of what it is: a taken id cannot be written, and
BM25's statistics are those of the whole corpus, so scores change with documents that one does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from engine.scope import Identity, Scope, entered
from operators.corpus.shard import Shard
from operators.messages import EmbeddedDocument, Listing, Plan, Ranking

MakePlan = Callable[..., Plan]
Vector = Callable[[str], np.ndarray]

ANN, BOB, EVE = Identity("ann", ("team",)), Identity("bob", ("board", "team")), Identity("eve", ("chess",))
OPERATOR = None
EVERY = {
    "ann/diary": ("ann", (), "fox amber diary"),
    "ann/plan": ("ann", ("team",), "fox basalt plan"),
    "bob/notes": ("bob", ("team",), "fox cobalt notes"),
    "bob/diary": ("bob", (), "fox dolomite diary"),
    "bob/minutes": ("bob", ("board",), "fox emerald minutes"),
    "wiki": ("", ("team",), "fox flint wiki"),
    "orphan": ("", (), "fox garnet orphan"),
}
VISIBLE: dict[str, set[str]] = {
    "ann": {"ann/diary", "ann/plan", "bob/notes", "wiki"},
    "bob": {"ann/plan", "bob/notes", "bob/diary", "bob/minutes", "wiki"},
    "eve": set(),
}
HIDDEN = {name: set(EVERY) - seen for name, seen in VISIBLE.items()}


@contextmanager
def asking(person: Identity | None) -> Iterator[None]:
    """Whose questions and changes those inside the block are."""
    with entered(Scope(identity=person)):
        yield


def owned(document: EmbeddedDocument, owner: str = "", collections: tuple[str, ...] = ()) -> EmbeddedDocument:
    """The document as someone's, in some collections."""
    return msgspec.structs.replace(
        document, document=msgspec.structs.replace(document.document, owner=owner, collections=collections)
    )


def every_document(make: Callable[..., EmbeddedDocument]) -> dict[str, EmbeddedDocument]:
    """The documents of EVERY."""
    return {
        id: owned(make(id, text, kind=id.partition("/")[0], n=n), owner, collections)
        for n, (id, (owner, collections, text)) in enumerate(EVERY.items())
    }


async def contents(shard: Shard) -> bytes:
    """Everything that is stored, as whoever runs the corpus sees it."""
    documents, chunks = await shard.documents(Listing()), await shard.chunks(Listing(include_vectors=True))
    return msgspec.msgpack.encode((documents, [(c.chunk_id, c.text, repr(c.vector)) for c in chunks.chunks]))


async def legs(shard: Shard, plan: MakePlan, question: str, vector: Vector, **options: Any) -> list[Ranking]:
    """The rankings of both legs."""
    wanted = plan(question, limit=50, **options)
    return [await shard.dense(wanted, vector(question)), await shard.lexical(wanted, None)]


async def seen(shard: Shard, plan: MakePlan, vector: Vector, question: str = "fox", **options: Any) -> list[set[str]]:
    """Ids of the documents that each way of looking finds."""
    wanted, found = plan(question, limit=50, **options), []
    for ranking in await legs(shard, plan, question, vector, **options):
        passages = await shard.fetch(wanted, vector(question), ranking)
        assert len(passages) == len(ranking.keys)
        found.append({p.document_id for p in passages})
    listing = Listing(filters=wanted.filters, scope_prefix=wanted.scope_prefix)
    documents, chunks = await shard.documents(listing), await shard.chunks(listing)
    assert (documents.total, chunks.total) == (len(documents.documents), len(chunks.chunks))
    return [*found, {d.id for d in documents.documents}, {c.document_id for c in chunks.chunks}]
