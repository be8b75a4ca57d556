from __future__ import annotations

from engine.run import Session
from graphs.ingest import ingest
from graphs.parts import Parts, Profile
from graphs.search import search
from operators.corpus.manifest import open_corpus
from operators.messages import Document, Question
from tests.corpora import ingested


async def test_a_new_version_replaces_the_old_and_the_same_one_costs_nothing(tmp_path):
    import asyncio

    empty = tmp_path / "files"
    empty.mkdir()
    (empty / "a.txt").write_text("The gate opens at dawn.", encoding="utf-8")
    folder = tmp_path / "corpus"
    await asyncio.to_thread(ingested, folder, empty)
    parts = Parts(Profile(open_corpus(folder)), writable=True)
    session = Session()
    try:
        write, ask = await session.start(ingest(parts)), await session.start(search(parts))
        old = Document(id="b", title="b", text="The lamp is lit by Ida.")
        new = Document(id="b", title="b", text="The lamp is lit by Otto.")
        assert [w.outcome for w in await write([old])] == ["added"]
        assert [w.outcome for w in await write([old])] == ["unchanged"]
        assert [w.outcome for w in await write([new])] == ["replaced"]
        found = await ask(Question("Who lights the lamp?"))
        assert found.passages[0].text == "The lamp is lit by Otto."
        assert not any("Ida" in p.text for p in found.passages)
    finally:
        await session.aclose()


def test_a_second_run_finds_everything_unchanged(tmp_path):
    first = ingested(tmp_path / "corpus")
    again = ingested(tmp_path / "corpus")
    assert (first.added, first.unchanged) == (3, 0)
    assert (again.added, again.unchanged, again.replaced) == (0, 3, 0)
