"""A cross-encoder: a transformer that reads question and passage together and says how well they fit.

Shape legend: N = pairs of one request, B = pairs of one bucket, T = tokens of its longest pair.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from engine.batcher import Batcher, BatcherStatistics, BatchLimits
from engine.errors import InvalidInput
from operators.models.device import torch_device
from operators.models.padding import rectangles

GPU_WIDTH_MULTIPLE: Final = 8  # half-precision matrix units want sizes that 8 divides
_INTEGERS: Final = {"max_length": (16, 1 << 20), "max_batch_tokens": (16, 1 << 30), "threads": (1, 1024)}
_DTYPES: Final = ("auto", "float32", "float16", "bfloat16")


class CrossEncoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cross-encoder, and how it runs.

    Args:
        model: A folder with a sequence-classification model of one label and its tokenizer, or such a model's name on
            the Hugging Face hub, for example "cross-encoder/ms-marco-MiniLM-L6-v2" or "BAAI/bge-reranker-base".
        device: "auto" takes CUDA, then Apple's MPS, then the CPU; else a name that torch knows, such as "cuda:1".
        dtype: "auto" is float16 on CUDA and float32 elsewhere. Models trained in bfloat16 may overflow float16: their
            scores then are not finite, which is reported; say "bfloat16" for those.
        max_length: Tokens of a pair that are read; the longer of the two texts is cut first. Lowered to what the
            model was trained for.
        max_batch_tokens: Tokens of one batch, padding included; more is faster on a large GPU until its memory ends.
        threads: Threads of torch's CPU operators, in the whole process.

    Raises:
        InvalidInput: A value is out of its range.
    """

    model: str
    device: str = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    max_length: int = 512
    max_batch_tokens: int = 16_384
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InvalidInput("cross_encoder.model is empty; give a folder or a name on the Hugging Face hub")
        if self.dtype not in _DTYPES:
            raise InvalidInput(f"cross_encoder.dtype is {self.dtype!r}; expected one of {', '.join(_DTYPES)}")
        for name, (low, high) in _INTEGERS.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidInput(f"cross_encoder.{name} is {getattr(self, name)}; expected {low} to {high:,}")
        if self.max_batch_tokens < self.max_length:
            raise InvalidInput(
                f"cross_encoder.max_batch_tokens is {self.max_batch_tokens}, below max_length {self.max_length}: "
                "the longest pair would fit in no batch; raise the one or lower the other"
            )


class TokenPair(msgspec.Struct, frozen=True, gc=False):
    """A question and a passage as the model reads them, not padded yet: arrays, so that padding is only copying."""

    ids: np.ndarray  # int64[T]
    types: np.ndarray  # int64[T], token_type_ids; empty for models that have none


class CrossEncoder:
    """Scores passages against a question, many requests in one batch.

    Texts become tokens in one thread while the model runs in another, so that neither waits for the other. A batch is
    sorted by length and cut into buckets in which at most `MAX_PADDING` of the tokens are padding.

    Args:
        model: A `PreTrainedModel` with one label, on its device and in eval mode.
        tokenizer: Its tokenizer.
        config: How it runs; `device` and `dtype` are the model's own by now.
    """

    def __init__(self, model: Any, tokenizer: Any, config: CrossEncoderConfig) -> None:
        self.config = config
        self.model = model
        self.tokenizer = tokenizer
        self._max_length = min(config.max_length, _positions(model, tokenizer))
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="cross-encoder-tokens")
        limits = BatchLimits(max_cost=config.max_batch_tokens)
        self._batcher = Batcher(self.run, limits=limits, cost=_tokens, name="cross-encoder")

    @classmethod
    def open(cls, config: CrossEncoderConfig) -> CrossEncoder:
        """Load the weights; takes seconds.

        Raises:
            InvalidInput: There is no such model, it is no cross-encoder with one label, or torch lacks the device.
        """
        import torch  # noqa: PLC0415 - heavy
        from sentence_transformers import CrossEncoder as Loaded  # noqa: PLC0415 - heavy

        torch.set_num_threads(config.threads)
        device = torch_device(config.device, "cross_encoder.device")
        dtype = ("float16" if device.startswith("cuda") else "float32") if config.dtype == "auto" else config.dtype
        _check_folder(config.model)
        try:
            loaded = Loaded(config.model, device=device)
        except (OSError, ValueError, RuntimeError) as error:
            raise InvalidInput(
                f"cannot load the cross-encoder {config.model!r}: {error}; give a folder or a name on the hub"
            ) from error
        model = loaded.model
        _check_scores(config.model, model)
        return cls(model.to(getattr(torch, dtype)).eval(), loaded.tokenizer, config)

    async def score(self, question: str, passages: Sequence[str]) -> np.ndarray:
        """How well each passage fits the question.

        Args:
            question: What a person asked.
            passages: Texts, in any number.

        Returns:
            float64[N], the sigmoid of the model's logit, in [0, 1]: 0.5 is a logit of 0, and higher fits better. What
            else shares the batch moves a score by rounding only (about 1e-6 in float32, 1e-2 in half precision).

        Raises:
            RuntimeError: The model failed, or gave a score that is not finite; the message says what to do.
            Cancelled, DeadlineExceeded, QueueFull, StageDied: As the batcher says.
        """
        if not passages:
            return np.empty(0)
        loop = asyncio.get_running_loop()
        pairs = await loop.run_in_executor(self._tokenizing, self.tokenize, question, list(passages))
        logits = np.array(await self._batcher.submit(pairs), np.float64)
        if not np.isfinite(logits).all():
            raise RuntimeError(
                f"the cross-encoder {self.config.model!r} gave scores that are not finite; "
                'set its dtype to "bfloat16" or "float32"'
            )
        return 0.5 * (1 + np.tanh(0.5 * logits))  # the sigmoid, in a form that cannot overflow

    def tokenize(self, question: str, passages: list[str]) -> list[TokenPair]:
        """The pairs as token ids, cut to `max_length`; safe in any one thread at a time."""
        encoded = self.tokenizer(
            [question] * len(passages),
            passages,
            truncation="longest_first",
            max_length=self._max_length,
            return_attention_mask=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        types: list[list[int]] = encoded.get("token_type_ids") or [[]] * len(ids)
        return [TokenPair(np.array(i, np.int64), np.array(t, np.int64)) for i, t in zip(ids, types, strict=True)]

    def run(self, pairs: list[TokenPair]) -> list[float]:
        """The logits of one batch, in its order; blocks, so call it where blocking is allowed."""
        import torch  # noqa: PLC0415 - heavy

        runs = list(rectangles(pairs))
        with torch.inference_mode():
            # The results of all buckets are copied back once: each copy waits until the GPU is done.
            logits = [self._forward([pairs[i] for i in bucket]) for bucket in runs]
            flat = torch.cat(logits).float().cpu().tolist() if logits else []
        scores = [0.0] * len(pairs)
        for i, logit in zip(chain.from_iterable(runs), flat, strict=True):
            scores[i] = logit
        return scores

    def _forward(self, pairs: list[TokenPair]) -> Any:
        """Logits of one bucket, a tensor [B] on the model's device."""
        import torch  # noqa: PLC0415 - heavy

        device = self.model.device
        on_gpu = device.type == "cuda"
        arrays = pad(
            pairs,
            multiple=GPU_WIDTH_MULTIPLE if on_gpu else 1,
            pad_id=self.tokenizer.pad_token_id or 0,
            pad_type=self.tokenizer.pad_token_type_id,
            left=self.tokenizer.padding_side == "left",
        )
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if on_gpu:  # pinned memory is copied while the GPU computes
            tensors = {name: t.pin_memory().to(device, non_blocking=True) for name, t in tensors.items()}
        else:
            tensors = {name: t.to(device) for name, t in tensors.items()}
        return self.model(**tensors).logits[:, 0]

    def queued_seconds(self) -> float:
        """Seconds of work that waits."""
        return self._batcher.statistics().queued_seconds

    def statistics(self) -> BatcherStatistics:
        """Counters of the batcher."""
        return self._batcher.statistics()

    async def aclose(self) -> None:
        """Stop both threads, after what they are at; requests that wait end with StageDied."""
        await asyncio.to_thread(self._tokenizing.shutdown)
        await self._batcher.aclose()


def pad(
    pairs: Sequence[TokenPair], *, multiple: int = 1, pad_id: int = 0, pad_type: int = 0, left: bool = False
) -> dict[str, np.ndarray]:
    """One bucket as the arrays that models take: int64[B, T] each; `token_type_ids` only if the pairs have types."""
    lengths_B = np.array([len(pair.ids) for pair in pairs])
    width = math.ceil(lengths_B.max() / multiple) * multiple
    columns_T, lengths_B1 = np.arange(width), lengths_B[:, None]
    held_BT = columns_T >= width - lengths_B1 if left else columns_T < lengths_B1
    arrays = {"input_ids": np.full(held_BT.shape, pad_id, np.int64), "attention_mask": held_BT.astype(np.int64)}
    arrays["input_ids"][held_BT] = np.concatenate([pair.ids for pair in pairs])
    if len(pairs[0].types):
        arrays["token_type_ids"] = np.full(held_BT.shape, pad_type, np.int64)
        arrays["token_type_ids"][held_BT] = np.concatenate([pair.types for pair in pairs])
    return arrays


def _tokens(pair: TokenPair) -> int:
    return len(pair.ids)


def _positions(model: Any, tokenizer: Any) -> int:
    """Tokens that the model has positions for. RoBERTa's kind counts positions from its padding id + 1 on."""
    positions: int = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    if model.config.model_type in {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"}:
        positions -= (tokenizer.pad_token_id or 0) + 1
    return min(positions, int(tokenizer.model_max_length))


def _check_folder(model: str) -> None:
    """What looks like a path must be a folder, so that a typing error is not looked up on the hub."""
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or len(path.parts) > 2 or path.exists()
    if looks_like_path and not (path / "config.json").is_file():
        raise InvalidInput(f"cross_encoder.model is {model!r}: no folder with a config.json is there")


def _check_scores(name: str, model: Any) -> None:
    """Refuse what would score at random (no trained head: transformers makes one up) or not with one number."""
    architectures = getattr(model.config, "architectures", None) or [type(model).__name__]
    if not architectures[0].endswith("ForSequenceClassification") or model.config.num_labels != 1:
        raise InvalidInput(
            f"{name!r} is a {architectures[0]} with {model.config.num_labels} labels, not a cross-encoder with one; "
            'use a reranking model such as "cross-encoder/ms-marco-MiniLM-L6-v2"'
        )
