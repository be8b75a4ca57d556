"""The embedder on the packaged model, against sentence-transformers' own encode."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.errors import InvalidInput, StageDied
from operators.corpus.content import chunk_hash
from operators.messages import Chunk, ChunkedDocument, Document, KnownVectors, Leg, Plan
from operators.models.embedder import Embedder, EmbedderConfig, passage_text, token_measure
from operators.models.model_files import content_hash, model_folder, model_name
from operators.models.padding import Padding, TokenIds, rectangles

TEXTS = [
    "A frame whose hash was seen is never sent again.",
    "",
    "北京大学位于海淀区。",
    "The hash table holds 4,096 recent frames, and the oldest one goes when a new one comes. " * 3,
    "  leading and trailing space  ",
    "Wörld of naïve façades 😀👨‍👩‍👧",
    "word " * 400,
]

NOTHING_KNOWN = KnownVectors([], np.empty((0, 0), np.float32))


@pytest.fixture(scope="module")
def opened() -> Iterator[Embedder]:
    embedder = Embedder.open(EmbedderConfig())
    yield embedder
    asyncio.run(embedder.aclose())


@pytest.fixture
def embedder(opened: Embedder) -> Embedder:
    return opened


@pytest.fixture(scope="module")
def reference(opened: Embedder) -> np.ndarray:
    return opened._model.encode(TEXTS, normalize_embeddings=True, show_progress_bar=False)


def plan(question: str) -> Plan:
    leg = Leg("dense", 1.0, 10)
    return Plan(question=question, strategy="dense", legs=(leg,), limit=5, rerank_candidates=0, language="en")


def chunked(name: str, title: str, *chunks: Chunk) -> ChunkedDocument:
    return ChunkedDocument(Document(id=name, title=title, text="".join(c.text for c in chunks)), chunks)


async def test_vectors_equal_those_of_sentence_transformers(embedder: Embedder, reference: np.ndarray) -> None:
    vectors = await embedder.embed(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), embedder.dimension) == (7, 384)
    np.testing.assert_allclose(vectors, reference, atol=1e-5)


async def test_vectors_have_length_one(embedder: Embedder) -> None:
    np.testing.assert_allclose(np.linalg.norm(await embedder.embed(TEXTS[:3]), axis=1), 1, atol=1e-6)


async def test_a_batch_gives_the_vectors_of_one_by_one(embedder: Embedder) -> None:
    together = await embedder.embed(TEXTS)
    alone = np.concatenate([await embedder.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)


async def test_concurrent_callers_each_get_their_own_vectors(embedder: Embedder, reference: np.ndarray) -> None:
    batches = embedder.statistics().batcher.batches
    rows = await asyncio.gather(*(embedder.embed([text]) for text in TEXTS * 2))
    np.testing.assert_allclose(np.concatenate(rows), np.concatenate([reference] * 2), atol=1e-5)
    assert embedder.statistics().batcher.batches - batches < len(rows)


async def test_no_texts_give_an_empty_array_with_the_dimension(embedder: Embedder) -> None:
    vectors = await embedder.embed([])
    assert vectors.shape == (0, 384)
    assert vectors.dtype == np.float32


async def test_a_question_is_embedded_as_its_text(embedder: Embedder, reference: np.ndarray) -> None:
    vector = await embedder.embed_question(plan(TEXTS[0]))
    assert vector.shape == (384,)
    np.testing.assert_allclose(vector, reference[0], atol=1e-5)


async def test_a_chunk_is_embedded_with_title_and_context(embedder: Embedder) -> None:
    full = Chunk(ordinal=0, text="It never repeats.", start=0, end=17, context="Protocol > Frames")
    bare = Chunk(ordinal=0, text="It never repeats.", start=0, end=17)
    documents = [chunked("a", "Zephyr", full), chunked("b", ""), chunked("c", "", bare, full)]
    embedded = await embedder.embed_documents(documents, NOTHING_KNOWN)
    texts = [
        "Zephyr\nProtocol > Frames\nIt never repeats.",
        "It never repeats.",
        "Protocol > Frames\nIt never repeats.",
    ]
    expected = await embedder.embed(texts)
    assert [e.document.id for e in embedded] == ["a", "b", "c"]
    assert [e.vectors.shape for e in embedded] == [(1, 384), (0, 384), (2, 384)]
    np.testing.assert_allclose(np.concatenate([e.vectors for e in embedded]), expected, atol=1e-5)


async def test_no_documents_give_no_documents(embedder: Embedder) -> None:
    assert await embedder.embed_documents([], NOTHING_KNOWN) == []


def piece(text: str, ordinal: int = 0) -> Chunk:
    return Chunk(ordinal=ordinal, text=text, start=0, end=len(text))


async def test_a_known_vector_is_taken_as_it_is_and_the_model_is_not_asked(embedder: Embedder) -> None:
    old, new = piece("A text that the corpus knows."), piece("One that it does not know.", 1)
    document = chunked("a", "Zephyr", old, new)
    theirs = np.arange(embedder.dimension, dtype=np.float32)
    known = KnownVectors([chunk_hash(document.document, old)], theirs[None])
    before = embedder.statistics()
    (embedded,) = await embedder.embed_documents([document], known)
    assert (embedded.vectors[0] == theirs).all()
    np.testing.assert_allclose(embedded.vectors[1], (await embedder.embed(["Zephyr\n" + new.text]))[0], atol=1e-5)
    assert embedder.statistics().texts - before.texts == 1 + 1  # the new one, and the line above
    between = embedder.statistics()
    await embedder.embed_documents([chunked("b", "Zephyr", old)], known)
    assert embedder.statistics() == between  # not one call


async def test_equal_content_under_other_ids_is_embedded_once(embedder: Embedder) -> None:
    same = [piece("Said twice in one document.", n) for n in range(2)]
    before = embedder.statistics().texts
    documents = [chunked("a", "T", *same), chunked("b", "T", same[0])]
    first, second = await embedder.embed_documents(documents, NOTHING_KNOWN)
    (third,) = await embedder.embed_documents([chunked("c", "T", same[0])], NOTHING_KNOWN)
    assert embedder.statistics().texts - before == 1
    assert (np.concatenate([first.vectors, second.vectors, third.vectors]) == first.vectors[0]).all()


async def test_another_title_or_context_is_another_content(embedder: Embedder) -> None:
    chunk = piece("The same words under other headings.")
    placed = msgspec.structs.replace(chunk, context="Heading")
    before = embedder.statistics().texts
    await embedder.embed_documents(
        [chunked("a", "T", chunk), chunked("b", "U", chunk), chunked("c", "T", placed)], NOTHING_KNOWN
    )
    assert embedder.statistics().texts - before == 3


async def test_pipelined_calls_with_equal_content_embed_it_once(embedder: Embedder) -> None:
    before = embedder.statistics().texts
    calls = [[chunked(name, "", piece("In flight in each of four calls."))] for name in "abcd"]
    done = await asyncio.gather(*(embedder.embed_documents(call, NOTHING_KNOWN) for call in calls))
    assert embedder.statistics().texts - before == 1
    assert [d.document.id for (d,) in done] == list("abcd")


async def test_counters_cross_a_hop(embedder: Embedder) -> None:
    assert await embedder.counters() == embedder.statistics()


def test_passage_text_leaves_out_what_is_empty() -> None:
    assert passage_text("", Chunk(ordinal=0, text="x", start=0, end=1)) == "x"


async def test_texts_beyond_the_window_are_counted(embedder: Embedder) -> None:
    before = embedder.statistics()
    fits = "word " * (embedder.max_tokens - 2)  # two special tokens
    await embedder.embed([fits, fits + "word", "word", "x" * 1_000_000])
    after = embedder.statistics()
    assert embedder.max_tokens == 256
    assert after.texts - before.texts == 4
    assert after.truncated - before.truncated == 2
    assert after.tokens - before.tokens == 256 + 256 + 3 + 3


async def test_a_prefix_stands_before_questions_or_documents(embedder: Embedder) -> None:
    config = EmbedderConfig(query_prefix="query: ", document_prefix="passage: ")
    other = Embedder(embedder._model, config, identity="x")
    chunk = Chunk(ordinal=0, text="frames", start=0, end=6)
    expected = await embedder.embed(["query: frames", "passage: frames"])
    np.testing.assert_allclose(await other.embed_question(plan("frames")), expected[0], atol=1e-5)
    (document,) = await other.embed_documents([chunked("a", "", chunk)], NOTHING_KNOWN)
    np.testing.assert_allclose(document.vectors[0], expected[1], atol=1e-5)
    await other.aclose()


async def test_work_after_closing_is_refused(embedder: Embedder) -> None:
    other = Embedder(embedder._model, EmbedderConfig(), identity="x")
    await other.aclose()
    with pytest.raises(StageDied, match="is closed"):
        await other.embed(["x"])


def test_the_identity_names_the_packaged_model_and_its_content(embedder: Embedder) -> None:
    assert embedder.identity == f"all-MiniLM-L6-v2@{content_hash(model_folder('packaged'))}"


def copied(folder: Path) -> Path:
    shutil.copytree(model_folder("packaged"), folder)
    return folder


def test_the_content_hash_is_that_of_the_files_not_of_their_place(tmp_path: Path) -> None:
    copy = copied(tmp_path / "copy")
    (copy / "README.md").write_text("other words")
    assert content_hash(copy) == content_hash(model_folder("packaged"))
    assert model_name(str(copy)) == "copy"


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json", "tokenizer.json"])
def test_the_content_hash_changes_with_one_byte(tmp_path: Path, name: str) -> None:
    copy = copied(tmp_path / "copy")
    file = copy / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert content_hash(copy) != content_hash(model_folder("packaged"))


@pytest.mark.parametrize(
    "model", ["/no/such/folder", "./nowhere", "a/b/c", "nobody/such-model-exists", "no-such-model-anywhere"]
)
def test_a_model_that_is_not_there_is_named(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InvalidInput, match="packaged") as caught:
        Embedder.open(EmbedderConfig(model=model))
    assert repr(model) in str(caught.value)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(InvalidInput, match="is a file"):
        Embedder.open(EmbedderConfig(model=str(file)))


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        Embedder.open(EmbedderConfig(model=str(tmp_path)))


def test_a_device_that_torch_lacks_is_named() -> None:
    with pytest.raises(InvalidInput, match="warp:0"):
        Embedder.open(EmbedderConfig(device="warp:0"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model": " "}, "embedder.model is empty"),
        ({"dtype": "int4"}, "embedder.dtype is 'int4'"),
        ({"max_batch_tokens": 1}, "embedder.max_batch_tokens is 1"),
        ({"threads": 0}, "embedder.threads is 0"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        EmbedderConfig(**values)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="modle"):
        msgspec.json.decode(json.dumps({"modle": "x"}), type=EmbedderConfig)


def test_the_measure_loads_no_torch_and_pickles() -> None:
    code = (
        "import pickle, sys\n"
        "from operators.models.embedder import EmbedderConfig, token_measure\n"
        "measure = pickle.loads(pickle.dumps(token_measure(EmbedderConfig())))\n"
        "print(measure.offsets('héllo wörld 北京').tolist(), 'torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[[0, 5], [6, 11], [12, 13], [13, 14]] False False\n"


def test_the_measure_counts_what_the_model_reads(embedder: Embedder) -> None:
    measure = token_measure(EmbedderConfig())
    for text in TEXTS[:4]:
        assert len(measure.offsets(text)) + 2 == len(embedder._tokenize([text])[0].ids)


async def test_another_document_prefix_is_another_identity_and_opening_is_silent(
    embedder: Embedder, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Embedder.open(EmbedderConfig(document_prefix="passage: "))
    assert other.identity.startswith(embedder.identity + "+prefix-")
    await other.aclose()
    assert capfd.readouterr() == ("", "")


def test_a_hub_name_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--sentence-transformers--some-model"
    snapshot = copied(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert model_folder("some-model") == model_folder("sentence-transformers/some-model") == snapshot
    assert model_name("sentence-transformers/some-model") == "sentence-transformers/some-model"


def test_the_configuration_pickles() -> None:
    config = EmbedderConfig(threads=2)
    assert pickle.loads(pickle.dumps(config)) == config


def test_left_padding_puts_the_text_at_the_end() -> None:
    arrays = Padding(pad_id=9, left=True, multiple=4).pad([TokenIds([1, 2], [5, 5]), TokenIds([3], [6])])
    assert arrays["input_ids"].tolist() == [[9, 9, 1, 2], [9, 9, 9, 3]]
    assert arrays["attention_mask"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]
    assert arrays["token_type_ids"].tolist() == [[0, 0, 5, 5], [0, 0, 0, 6]]


def test_rectangles_hold_every_text_once_and_little_padding() -> None:
    lengths = [3, 250, 17, 250, 16, 90, 89, 1]
    runs = list(rectangles([TokenIds([0] * n, []) for n in lengths]))
    assert sorted(index for run in runs for index in run) == list(range(len(lengths)))
    for run in runs:
        area = max(lengths[i] for i in run) * len(run)
        assert area - sum(lengths[i] for i in run) <= area / 8
    assert list(rectangles([])) == []
