from __future__ import annotations

import math

import msgspec
import pytest

from engine.errors import InvalidInput
from operators.corpus.manifest import MAX_SCORE
from operators.extract import ExtractConfig
from operators.messages import Settings
from operators.models.cross_encoder import CrossEncoderConfig
from operators.models.llamacpp import LlamaCppConfig
from operators.models.model_files import model_folder
from operators.models.openai_compatible import OpenAIConfig
from serve.session_config import RagConfig, RagRetrievalOptions, embedder_window
from serve.session_documents import RagDocument, as_documents, batches

NOTHING = RagRetrievalOptions()
EVERY = -MAX_SCORE  # a threshold that every passage reaches


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"embedding_model_id": ""}, "embedder.model is empty"),
        ({"embedding_dimension": 0}, "embedding_dimension is 0"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 1_001}, "from 1 to 1000"),
        ({"top_k": "5"}, "top_k is '5'"),
        ({"top_k": True}, "top_k is True"),
        ({"score_threshold": 1.1}, "score_threshold is 1.1"),
        ({"score_threshold": -0.1}, "score_threshold is -0.1"),
        ({"score_threshold": math.nan}, "score_threshold is nan"),
        ({"chunk_size": 0}, "chunk_size is 0"),
        ({"chunk_overlap": -1}, "chunk_overlap is -1"),
        ({"chunk_size": 50, "chunk_overlap": 50}, "chunk_overlap is 50 and chunk_size 50"),
        ({"max_context_tokens": 0}, "max_context_tokens is 0"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"prompt_template": "Only {query}"}, "lacks {context}"),
        ({"prompt_template": "Only {context}"}, "lacks {query}"),
        ({"prompt_template": "{context} {query} {mood}"}, "unknown placeholder {mood}"),
        ({"rerank_results": True}, "rerank_results needs a cross-encoder"),
        ({"enable_multi_query": True}, "enable_multi_query needs a language model"),
        ({"enable_multi_query": True, "generator": "extractive"}, "enable_multi_query needs a language model"),
        ({"generator": "magic"}, 'expected "extractive" or a generator'),
        ({"generator": "extractive", "llm_model_id": "packaged"}, "both say who answers"),
        ({"generator": 5}, 'generator is 5; expected "extractive" or a generator'),
        ({"embedding_model_id": None}, "embedding_model_id is None; expected a text"),
        ({"llm_model_id": None}, "llm_model_id is None; expected a text"),
        ({"prompt_template": 5}, "prompt_template is 5; expected a text"),
        ({"index": None}, "index is None; expected an IndexConfig"),
        ({"reranker": "model", "rerank_results": True}, "reranker is 'model'; expected a CrossEncoderConfig or None"),
        ({"rerank_results": "no"}, "rerank_results is 'no'; expected True or False"),
        ({"enable_multi_query": None}, "enable_multi_query is None; expected True or False"),
    ],
)
def test_a_wrong_configuration_is_refused_when_it_is_written(given, said):
    with pytest.raises(InvalidInput, match=said):
        RagConfig(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"top_k": -1}, "top_k is -1"),
        ({"score_threshold": 2.0}, "score_threshold is 2.0"),
        ({"max_output_tokens": 0}, "max_output_tokens is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": math.nan}, "timeout_s is nan"),
        ({"timeout_s": "5"}, "timeout_s is '5'; expected seconds above 0, or None"),
        ({"timeout_s": True}, "timeout_s is True"),
        ({"scope_prefix": None}, "scope_prefix is None; expected a text"),
        ({"scope_prefix": "kelp\udcff"}, "scope_prefix is 'kelp.*half a character"),
        ({"scope_prefix": "kelp\0"}, "scope_prefix is 'kelp.*NUL"),
        ({"filters": None}, "filters is None; expected a mapping"),
        ({"filters": {"a": {"$foo": 1}}}, "there is no operator '\\$foo'"),
        ({"enable_multi_query": "no"}, "enable_multi_query is 'no'; expected True, False or None"),
        ({"multi_query_count": 2.5}, "multi_query_count is 2.5"),
    ],
)
def test_a_wrong_option_is_refused_when_it_is_written(given, said):
    with pytest.raises(InvalidInput, match=said):
        RagRetrievalOptions(**given)


@pytest.mark.parametrize(
    ("size", "overlap", "cut"),
    [
        (None, None, (200, 25)),  # the packaged embedder reads 256 tokens
        (512, None, (512, 64)),
        (50, None, (50, 6)),  # the default overlap follows the size
        (64, 8, (64, 8)),
        (64, 0, (64, 0)),
        (1, None, (1, 0)),
        (None, 64, (200, 64)),
    ],
)
def test_size_and_overlap_are_checked_together_only_when_both_are_given(size, overlap, cut):
    chunks = RagConfig(chunk_size=size, chunk_overlap=overlap).chunks()
    assert (chunks.size, chunks.overlap) == cut


def test_an_overlap_that_the_default_size_cannot_hold_is_refused():
    with pytest.raises(InvalidInput, match="chunk_overlap is 300 and chunk_size 200"):
        RagConfig(chunk_overlap=300).chunks()


def test_an_embedder_that_reads_more_gets_larger_chunks(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model_folder("packaged").iterdir():
        (folder / file.name).symlink_to(file)
    assert (RagConfig(embedding_model_id=str(folder)).chunks().size, embedder_window(str(folder))) == (200, 256)
    (folder / "sentence_bert_config.json").unlink()
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8192}')
    chunks = RagConfig(embedding_model_id=str(folder)).chunks()
    assert (chunks.size, chunks.overlap) == (512, 64)
    (folder / "sentence_bert_config.json").unlink()
    assert embedder_window(str(folder)) == 512


def test_who_answers():
    hosted = OpenAIConfig(base_url="https://host/v1", model="m")
    assert RagConfig().answering is None
    assert RagConfig(generator="extractive").answering == ExtractConfig()
    assert RagConfig(generator=hosted).answering == hosted
    local = RagConfig(llm_model_id="packaged", max_context_tokens=1000, max_output_tokens=100).answering
    assert isinstance(local, LlamaCppConfig)
    assert (local.model, local.context_tokens) == ("packaged", 2124)
    assert [c.has_language_model for c in (RagConfig(), RagConfig(generator="extractive"))] == [False, False]
    assert RagConfig(generator=hosted, enable_multi_query=True).has_language_model


def test_a_cross_encoder_is_used_only_when_it_is_asked_for():
    encoder = CrossEncoderConfig(model="folder")
    assert RagConfig(reranker=encoder).profile(None).reranker is None
    assert RagConfig(reranker=encoder, rerank_results=True).profile(None).reranker == encoder


def test_a_template_of_ones_own_keeps_the_instructions():
    template = RagConfig(prompt_template="{context}\n\nSo: {query}").template
    assert template.user == "{context}\n\nSo: {query}"
    assert "You answer questions from sources" in template.system
    assert template.name == "prompt_template"
    assert template.hash != RagConfig(prompt_template="{context} {query}").template.hash


@pytest.mark.parametrize(
    ("session", "query", "settings"),
    [
        ({}, {}, {"limit": 5, "score_threshold": None}),
        ({"top_k": 7}, {}, {"limit": 7}),
        ({"top_k": 7}, {"top_k": 2}, {"limit": 2}),
        ({"top_k": 7}, {"top_k": 0}, {"limit": 7}),
        ({"top_k": 300}, {}, {"limit": 300, "candidates": 300}),
        ({"score_threshold": 0.95}, {}, {"score_threshold": 0.95}),
        ({"score_threshold": 0.95}, {"score_threshold": 0.2}, {"score_threshold": 0.2}),
        ({"score_threshold": 0.95}, {"score_threshold": 0.0}, {"score_threshold": EVERY}),  # given, though falsy
        ({"score_threshold": 0.0}, {}, {"score_threshold": EVERY}),
        ({}, {"scope_prefix": "kelp:", "filters": {"year": 1}}, {"scope_prefix": "kelp:", "filters": {"year": 1}}),
        ({"max_output_tokens": 64}, {}, {"max_answer_tokens": 64}),
        ({"max_output_tokens": 64}, {"max_output_tokens": 9}, {"max_answer_tokens": 9}),
    ],
)
def test_a_querys_option_wins_over_the_sessions_and_that_over_the_default(session, query, settings):
    expected = msgspec.structs.replace(Settings(limit=5), **settings)
    assert RagConfig(**session).settings(RagRetrievalOptions(**query)).score_threshold == expected.score_threshold
    got = msgspec.structs.asdict(RagConfig(**session).settings(RagRetrievalOptions(**query)))
    assert {name: got[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("session", "query", "count"),
    [
        ({}, {}, 0),
        ({}, {"enable_multi_query": True}, 3),
        ({}, {"enable_multi_query": True, "multi_query_count": 9}, 8),
        ({}, {"enable_multi_query": True, "multi_query_count": -1}, 3),
        ({"multi_query_count": 5}, {"enable_multi_query": True}, 5),
        ({"multi_query_count": 5}, {"enable_multi_query": True, "multi_query_count": 0}, 3),
        ({"enable_multi_query": True}, {}, 3),
        ({"enable_multi_query": True}, {"enable_multi_query": False}, 0),
    ],
)
def test_multi_query_is_switched_by_session_and_query(session, query, count):
    config = RagConfig(llm_model_id="packaged", **session)
    assert config.variants(RagRetrievalOptions(**query)) == count


def test_multi_query_for_one_question_needs_a_language_model_too():
    with pytest.raises(InvalidInput, match="needs a language model"):
        RagConfig(generator="extractive").variants(RagRetrievalOptions(enable_multi_query=True))
    assert RagConfig().variants(NOTHING) == 0


# Documents


def test_texts_get_ids_from_their_words():
    one, same, other = as_documents("a b"), as_documents(" a\n b "), as_documents("a c")
    assert one[0].id == same[0].id
    assert one[0].id != other[0].id
    assert one[0].id.startswith("text-")


def test_of_texts_without_id_that_differ_in_white_space_only_the_last_stands():
    documents = as_documents(["a b", "c", " a\n b ", RagDocument("a\tb")])
    assert [document.text for document in documents] == ["a\tb", "c"]
    with pytest.raises(InvalidInput, match="two documents without id have the same text and differ otherwise.*'a b'"):
        as_documents([RagDocument("a b", metadata={"year": 1}), RagDocument("a b", metadata={"year": 2})])
    with pytest.raises(InvalidInput, match="two different documents have the id 'x'"):
        as_documents([RagDocument("a b", "x"), RagDocument("a  b", "x")])


def test_documents_keep_their_order_and_one_given_twice_is_one():
    guide, note = RagDocument("Close the gate.", id="guide", metadata={"year": 2026}), "Open it."
    documents = as_documents(iter([note, guide, note, guide]))
    assert [d.text for d in documents] == ["Open it.", "Close the gate."]
    assert (documents[1].id, documents[1].metadata) == ("guide", {"year": 2026})
    assert as_documents([]) == []


def test_batches_keep_order_and_bounds():
    sizes = [1_000, 63_000, 1, 200_000, *[10] * 70]
    documents = as_documents(RagDocument("x" * size, id=str(i)) for i, size in enumerate(sizes))
    cut = list(batches(documents))
    assert [d for batch in cut for d in batch] == documents
    assert [len(batch) for batch in cut] == [2, 1, 1, 64, 6]
    assert list(batches([])) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (" \n", "text of a document without id is empty"),
        ([RagDocument("a", id="x"), RagDocument("b", id="x")], "two different documents have the id 'x'"),
        ([b"bytes"], "cannot ingest a bytes"),
        (None, "cannot ingest a NoneType"),
    ],
)
def test_wrong_documents_are_refused(given, said):
    with pytest.raises(InvalidInput, match=said):
        as_documents(given)


def test_an_empty_document_is_refused_when_it_is_written():
    with pytest.raises(InvalidInput, match="text of document 'x' is empty"):
        RagDocument("  ", id="x")
    with pytest.raises(InvalidInput, match="metadata of document 'x' are a list"):
        RagDocument("a", id="x", metadata=["year"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": None}, "text of a document without id is None; expected a text"),
        ({"id": 5}, "id of document 5 is 5; expected a text"),
        ({"id": None}, "id of a document without id is None; expected a text"),
        ({"owner": None, "id": "x"}, "owner of document 'x' is None; expected a text"),
        ({"title": 1}, "title of a document without id is 1"),
        ({"collections": "sea"}, "collections of a document without id are 'sea'; expected a tuple of texts"),
        ({"collections": (5,)}, "collections of a document without id are .5,.; expected a tuple of texts"),
    ],
)
def test_what_is_no_text_is_refused_when_the_document_is_written(given, said):
    with pytest.raises(InvalidInput, match=said):
        RagDocument(**({"text": "a"} | given))


def test_a_file_is_read_with_its_name_as_id(tmp_path):
    (tmp_path / "guide.md").write_text("# The gate\n\nClose it.", encoding="utf-8")
    guide = RagDocument.file(tmp_path / "guide.md")
    assert (guide.id, guide.title, guide.media_type) == ("guide.md", "The gate", "text/markdown")
    assert guide.metadata == {"source": str(tmp_path / "guide.md")}
    (tmp_path / "noise.bin").write_bytes(b"\0\1\2")
    for name in ("noise.bin", "missing.txt", "."):
        with pytest.raises(InvalidInput, match=str(tmp_path)):
            RagDocument.file(tmp_path / name)
