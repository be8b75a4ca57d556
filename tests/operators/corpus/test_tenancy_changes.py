"""Attempts to change what is someone else's, or to learn of it by trying; see tests/tenants.py."""

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.errors import AccessDenied, HeadraceError
from engine.scope import Identity, current_scope
from operators.corpus.shard import Shard
from operators.filter_parse import parse_filter
from operators.messages import Deleted, Edit, Listing
from tests.tenants import ANN, BOB, EVE, EVERY, HIDDEN, VISIBLE, asking, contents, every_document, owned, seen


@pytest.fixture
async def full(shard: Shard, make) -> Shard:
    """A shard with every document, to be changed."""
    await shard.write(list(every_document(make).values()), "")
    return shard


# Changing

CHANGES = {
    "delete": lambda s, id: s.delete([id]),
    "change_metadata": lambda s, id: s.change_metadata(id, {"n": -1}, False),
    "replace_metadata": lambda s, id: s.change_metadata(id, {}, True),
    "join": lambda s, id: s.change_collections([id], list(current_scope().identity.groups[:1]), []),
    "leave": lambda s, id: s.change_collections([id], [], list(current_scope().identity.groups[:1])),
    "change_chunk": lambda s, id: s.change_chunk(Edit(f"{id}#0", 1, "fox stolen", 2), np.ones(16, np.float32)),
    "delete_chunks": lambda s, id: s.delete_chunks([f"{id}#0"]),
}


def missing(answer: Any, id: str) -> bool:
    """Whether an answer says that the document is not there."""
    if isinstance(answer, bool):
        return not answer
    return any(name in (id, f"{id}#0") for name in (answer if isinstance(answer, list) else answer.missing))


@pytest.mark.parametrize("change", list(CHANGES))
async def test_what_is_hidden_is_absent_and_what_is_not_ones_own_is_refused(full, change: str) -> None:
    before = await contents(full)
    for person in (ANN, BOB, EVE):
        with asking(person):
            for id in HIDDEN[person.user]:
                assert missing(await CHANGES[change](full, id), id)
            for id in VISIBLE[person.user]:
                if EVERY[id][0] != person.user:
                    with pytest.raises(AccessDenied):
                        await CHANGES[change](full, id)
    assert await contents(full) == before


@pytest.mark.parametrize("change", list(CHANGES))
async def test_what_is_hidden_is_reported_as_what_does_not_exist(full, change: str) -> None:
    with asking(EVE):
        hidden, nowhere = await CHANGES[change](full, "ann/diary"), await CHANGES[change](full, "ann/nowhere")
    assert msgspec.json.encode(hidden).replace(b"diary", b"nowhere") == msgspec.json.encode(nowhere)


@pytest.mark.parametrize("change", list(CHANGES))
async def test_ones_own_documents_can_be_changed(full, change: str) -> None:
    before = await contents(full)
    with asking(ANN):
        assert not missing(await CHANGES[change](full, "ann/plan"), "ann/plan")
    if change != "join":  # it is there already
        assert await contents(full) != before


async def test_a_call_that_names_one_document_of_others_changes_nothing(full) -> None:
    before = await contents(full)
    with asking(ANN):
        for call in (
            full.delete(["ann/diary", "bob/notes"]),
            full.delete_chunks(["ann/diary#0", "bob/notes#0"]),
            full.change_collections(["ann/diary", "bob/notes"], ["team"], []),
        ):
            with pytest.raises(AccessDenied):
                await call
    assert await contents(full) == before


async def test_a_deletion_by_filter_takes_only_ones_own(full, plan, vector) -> None:
    with asking(ANN):
        deleted = await full.delete_where(parse_filter({"n": {"$gte": 0}}))
    assert deleted.documents == 2
    assert await seen(full, plan, vector) == [set(EVERY) - {"ann/diary", "ann/plan"}] * 4
    with asking(EVE):
        assert (await full.delete_where(parse_filter({"owner": {"$ne": "eve"}}))).documents == 0


async def test_nobody_writes_over_a_document_of_others(full, make) -> None:
    """The id is taken, which must be said; what is there stays, and what it is does not show."""
    before = await contents(full)
    for person in (ANN, EVE):
        with asking(person):
            for id in ("bob/notes", "bob/diary", "wiki", "orphan"):
                with pytest.raises(AccessDenied) as refusal:
                    await full.write([make("mine", "fox mine"), make(id, "fox stolen")], "")
                told = str(refusal.value)
                assert not any(word in told for word in EVERY[id][2].split() if word not in id)
                assert "bob" not in told.replace(id, "")
    assert await contents(full) == before


async def test_the_same_content_under_an_id_of_others_is_refused_like_any(full, make) -> None:
    (n, (_, _, text)) = next((n, EVERY[id]) for n, id in enumerate(EVERY) if id == "bob/diary")
    with asking(EVE):
        for guess in (make("bob/diary", text, kind="bob", n=n), make("bob/diary", "another")):
            with pytest.raises(AccessDenied):
                await full.write([guess], "")


async def test_what_a_person_writes_is_theirs(full, make, plan, vector) -> None:
    with asking(EVE):
        await full.write([make("eve/1", "fox hematite")], "")
        assert await seen(full, plan, vector) == [{"eve/1"}] * 4
        with pytest.raises(AccessDenied):
            await full.write([owned(make("eve/2", "fox"), "bob")], "")
    with asking(ANN):
        assert "eve/1" not in (await seen(full, plan, vector))[0]


async def test_nobody_puts_a_document_into_a_group_that_is_not_theirs(full, make) -> None:
    before = await contents(full)
    with asking(ANN):
        for call in (
            full.write([owned(make("ann/new", "fox"), "ann", ("board",))], ""),
            full.write([owned(make("ann/plan", "fox"), "ann", ("team", "board"))], ""),
            full.change_collections(["ann/plan"], ["board"], []),
            full.change_collections(["ann/plan"], ["team", "board"], []),
            full.change_collections([], ["board"], []),
        ):
            with pytest.raises(AccessDenied):
                await call
    assert await contents(full) == before


async def test_leaving_a_group_hides_a_document_at_once_and_joining_shows_it(full, plan, vector) -> None:
    filters = parse_filter({"n": {"$gte": 0}})
    with asking(BOB):
        assert "ann/plan" in (await seen(full, plan, vector, filters=filters))[0]
    with asking(ANN):
        await full.change_collections(["ann/plan"], [], ["team"])
    with asking(BOB):
        assert await seen(full, plan, vector, filters=filters) == [VISIBLE["bob"] - {"ann/plan"}] * 4
        assert await seen(full, plan, vector) == [VISIBLE["bob"] - {"ann/plan"}] * 4
    await full.change_collections(["orphan"], ["board"], [])
    with asking(BOB):
        assert await seen(full, plan, vector) == [VISIBLE["bob"] - {"ann/plan"} | {"orphan"}] * 4


async def test_a_document_given_to_someone_else_is_theirs_at_once(full, make, plan, vector) -> None:
    await full.write([owned(make("ann/diary", "fox amber diary"), "bob")], "")
    with asking(ANN):
        assert await seen(full, plan, vector) == [VISIBLE["ann"] - {"ann/diary"}] * 4
    with asking(BOB):
        assert await seen(full, plan, vector) == [VISIBLE["bob"] | {"ann/diary"}] * 4


MALFORMED = ["", "#", "#0", "ann/plan", "ann/plan#", "ann/plan#x", "ann/plan#-1", "ann/plan#00", "ann/plan#0#0",
             "ann/plan#²", "ann/plan#٠", "ann/plan#99999999999999999999"]  # fmt: skip


async def test_a_malformed_chunk_id_names_nothing(full) -> None:
    before = await contents(full)
    for name in MALFORMED:
        assert await full.delete_chunks([name]) == Deleted(0, 0, (name,)), name
        assert await full.change_chunk(Edit(name, 1, "x", 1), np.ones(16, np.float32)) is False, name
    assert await contents(full) == before


async def test_an_error_inside_one_persons_call_leaves_the_others_alone(full, make) -> None:
    """Writes that wait together share a transaction; a refused one is undone by itself."""

    async def write(person: Identity, id: str) -> Any:
        with asking(person):
            try:
                return (await full.write([make(id, f"fox {id}")], ""))[0].outcome
            except HeadraceError as error:
                return type(error)

    calls = [(ANN, "ann/x"), (EVE, "bob/diary"), (BOB, "bob/x"), (EVE, "eve/x"), (ANN, "wiki")]
    outcomes = await asyncio.gather(*(write(*call) for call in calls))
    assert outcomes == ["added", AccessDenied, "added", "added", AccessDenied]
    owners = {d.id: d.owner for d in (await full.documents(Listing())).documents}
    assert [owners.get(id) for id in ("ann/x", "bob/x", "eve/x", "bob/diary")] == ["ann", "bob", "eve", "bob"]
