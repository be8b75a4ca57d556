"""Vectors for texts and questions from a sentence-transformers model.

Shape legend: N = texts of one call, B = texts of one forward pass, D = dimension of the vectors.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from engine.batcher import Batcher, BatcherStatistics, BatchLimits
from engine.errors import InvalidInput, StageDied
from operators.corpus.content import chunk_hash
from operators.messages import Chunk, ChunkedDocument, EmbeddedDocument, KnownVectors, Plan
from operators.models.device import torch_device
from operators.models.model_files import PACKAGED, PACKAGED_LANGUAGES, content_hash, model_folder, model_name
from operators.models.padding import Padding, TokenIds, rectangles
from operators.models.token_measure import TokenMeasure
from operators.models.vector_cache import VectorCache

Dtype = Literal["auto", "float32", "float16", "bfloat16"]

_LONGEST_WORD = 128  # code points a token; text beyond window x this is dropped before it is tokenized


class EmbedderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which embedding model, and how it runs.

    Args:
        model: "packaged" (all-MiniLM-L6-v2, which is installed with headrace), a folder, or a hub name.
        device: "auto" takes CUDA, then Apple's MPS, then the CPU; else a name that torch knows, such as "cuda:1".
        dtype: Type of the weights; "auto" is float16 on CUDA and float32 elsewhere. Vectors are always float32.
        max_batch_tokens: Tokens of one batch, padding included. 8,192 keeps a small GPU busy; a CPU gains nothing.
        query_prefix: Put before questions, for models that want it ("query: " for E5). Empty: the model's own prompt
            for queries, which most have not.
        document_prefix: Put before documents, likewise.
        threads: Threads of torch's CPU operators, in the whole process.
        languages: ISO 639-1 codes of what the model was made for; the planner weighs its leg down for others. Empty:
            English for the packaged model, any language for others.

    Raises:
        InvalidInput: A value is out of its range.
    """

    model: str = PACKAGED
    device: str = "auto"
    dtype: Dtype = "auto"
    max_batch_tokens: int = 8192
    query_prefix: str = ""
    document_prefix: str = ""
    threads: int = 1
    languages: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Languages that the model was made for; none listed means any."""
        return self.languages or (PACKAGED_LANGUAGES if self.model == PACKAGED else ())

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InvalidInput(f"embedder.model is empty; give a folder, a hub name, or {PACKAGED!r}")
        if self.dtype not in get_args(Dtype):
            raise InvalidInput(f"embedder.dtype is {self.dtype!r}; expected one of {', '.join(get_args(Dtype))}")
        for name, low in (("max_batch_tokens", 16), ("threads", 1)):
            if getattr(self, name) < low:
                raise InvalidInput(f"embedder.{name} is {getattr(self, name)}; expected at least {low}")


class EmbedderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What an embedder has done since it was opened.

    The model read `texts`: chunks whose vectors were there already are not among them. `truncated` of `texts` were
    longer than the model's window, so their vectors say nothing of their ends: make chunks smaller if there are many.
    `tokens` were read, special ones included.
    """

    texts: int
    tokens: int
    truncated: int
    batcher: BatcherStatistics


def token_measure(config: EmbedderConfig) -> TokenMeasure:
    """The chunker's measure: tokens of this model, without loading its weights or torch.

    Raises:
        InvalidInput: There is no such model, or it has no fast tokenizer.
    """
    return TokenMeasure.open(model_folder(config.model))


def passage_text(title: str, chunk: Chunk) -> str:
    """What is embedded for a chunk: the title, the chunk's context and its text, each on its own line."""
    return "\n".join(part for part in (title, chunk.context, chunk.text) if part)


class Embedder:
    """Turns texts into vectors, many callers in one batch.

    Texts become tokens in one thread while the model runs in another, so that neither waits for the other. A text's
    vector does not depend on what else is in its batch, but for rounding (1e-6 in float32, 1e-3 in half precision).

    Args:
        model: A `SentenceTransformer` on its device.
        config: How it runs.
        identity: What a corpus records of the model that made its vectors: see `identity`.
    """

    def __init__(self, model: Any, config: EmbedderConfig, *, identity: str) -> None:
        self.identity = identity
        """Name and content hash of the model. Models that differ in a byte of weights or configuration differ in it;
        so do different document prefixes. Device and dtype do not count: their vectors differ by rounding only."""
        self.max_tokens = min(model.max_seq_length or 512, 1 << 20)
        """Tokens of a text that the model reads."""
        self._model = model
        self._prefixes = {
            "query": config.query_prefix or model.prompts.get("query") or "",
            "document": config.document_prefix or model.prompts.get("document") or "",
        }
        self._tokenizer = _own_tokenizer(model.tokenizer, self.max_tokens, config.model)
        self._has_types = "token_type_ids" in model.tokenizer.model_input_names
        self._padding = _padding(model)
        self._texts = self._tokens = self._truncated = 0
        self._cache = VectorCache(self.embed)
        self._closed = False
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="embedder-tokens")
        limits = BatchLimits(max_cost=config.max_batch_tokens)
        self._batcher = Batcher(self.run, limits=limits, cost=_cost, name="embedder")
        self.dimension = len(self.run(self._tokenize([""]))[0])  # the first pass also sets up what is set up lazily
        """Length of the vectors."""
        self._texts = self._tokens = 0

    @classmethod
    def open(cls, config: EmbedderConfig) -> Embedder:
        """Load the model; takes seconds.

        Raises:
            InvalidInput: There is no such model, it is no text embedder, or torch lacks the device.
        """
        import torch  # noqa: PLC0415 - heavy

        folder = model_folder(config.model)
        torch.set_num_threads(config.threads)
        device = torch_device(config.device, "embedder.device")
        dtype = ("float16" if device.startswith("cuda") else "float32") if config.dtype == "auto" else config.dtype
        model = _load(folder, device, config.model).to(getattr(torch, dtype)).eval()
        return cls(model, config, identity=identity_of(folder, config, model.prompts))

    async def embed(self, texts: list[str]) -> np.ndarray:
        """Vectors of texts as they are, without any prefix.

        Args:
            texts: Any number; each is cut to `max_tokens`.

        Returns:
            float32[N, D], of length 1, in the order of the texts; float32[0, D] for none.

        Raises:
            RuntimeError: The model failed, or gave a vector that is not finite; the message says what to do.
            Cancelled, DeadlineExceeded, QueueFull: As the batcher says.
            StageDied: The embedder is closed.
        """
        if self._closed:
            raise StageDied(f"the embedder {self.identity} is closed: open another one")
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(self._tokenizing, self._tokenize, texts)
        return np.stack(await self._batcher.submit(tokens))

    async def embed_question(self, plan: Plan) -> np.ndarray:
        """The vector of the plan's question: float32[D]; raises as `embed`."""
        vectors_ND = await self.embed([self._prefixes["query"] + plan.question])
        vector: np.ndarray = vectors_ND[0]
        return vector

    async def embed_documents(self, documents: list[ChunkedDocument], known: KnownVectors) -> list[EmbeddedDocument]:
        """One vector for each chunk of each document, from its title, context and text.

        The model reads each distinct text once, and none whose vector is known, was made a moment ago, or is being made
        for another call: see `VectorCache`. For calls from one event loop; raises as `embed`.

        Args:
            documents: Any number.
            known: Vectors by `chunk_hash`, made by this model with the same document prefix.
        """
        prefix = self._prefixes["document"]
        names = [[chunk_hash(d.document, chunk) for chunk in d.chunks] for d in documents]
        vectors = dict(zip(known.hashes, known.vectors, strict=True))
        texts = {
            name: prefix + passage_text(d.document.title, chunk)
            for d, its_names in zip(documents, names, strict=True)
            for name, chunk in zip(its_names, d.chunks, strict=True)
            if name not in vectors
        }
        vectors |= await self._cache.vectors(texts)
        return [
            EmbeddedDocument(d.document, d.chunks, self._matrix([vectors[name] for name in its_names]))
            for d, its_names in zip(documents, names, strict=True)
        ]

    def _matrix(self, vectors: list[np.ndarray]) -> np.ndarray:
        return np.stack(vectors) if vectors else np.empty((0, self.dimension), np.float32)

    def run(self, texts: list[TokenIds]) -> list[np.ndarray]:
        """Vectors of one batch, in its order: float32[D] each; blocks, so call it where blocking is allowed."""
        import torch  # noqa: PLC0415 - heavy

        runs = list(rectangles(texts))
        with torch.inference_mode():
            # No result is waited for before all rectangles are on their way: a GPU computes while the next is padded.
            passes = [self._forward([texts[i] for i in run]) for run in runs]
            rows = torch.cat(passes).cpu().numpy()
        if not np.isfinite(rows).all():
            raise RuntimeError(
                f"the embedder {self.identity} gave vectors that are not finite; "
                'set its dtype to "bfloat16" or "float32"'
            )
        vectors: list[np.ndarray] = [rows[0]] * len(texts)
        for row, index in enumerate(index for run in runs for index in run):
            vectors[index] = rows[row]
        return vectors

    def queued_seconds(self) -> float:
        """Seconds of work that waits."""
        return self._batcher.statistics().queued_seconds

    def statistics(self) -> EmbedderStatistics:
        """Counters since the embedder was opened."""
        return EmbedderStatistics(
            texts=self._texts, tokens=self._tokens, truncated=self._truncated, batcher=self._batcher.statistics()
        )

    async def counters(self) -> EmbedderStatistics:
        """As `statistics`, for a graph to ask."""
        return self.statistics()

    async def aclose(self) -> None:
        """Stop both threads; work that waits is refused. Repeating it is harmless."""
        self._closed = True
        await self._batcher.aclose()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    def _tokenize(self, texts: Sequence[str]) -> list[TokenIds]:
        """The texts as token ids, cut to the window; runs in the tokenizing thread."""
        longest = self.max_tokens * _LONGEST_WORD
        encodings = self._tokenizer.encode_batch([text[:longest] for text in texts])
        tokens = [TokenIds(e.ids, e.type_ids if self._has_types else []) for e in encodings]
        self._texts += len(texts)
        self._tokens += sum(map(_cost, tokens))
        self._truncated += sum(bool(e.overflowing) or len(t) > longest for e, t in zip(encodings, texts, strict=True))
        return tokens

    def _forward(self, texts: list[TokenIds]) -> Any:
        """Normalized vectors of one rectangle, a float32 tensor [B, D] on the model's device."""
        import torch  # noqa: PLC0415 - heavy

        device = self._model.device
        features = {name: torch.from_numpy(array) for name, array in self._padding.pad(texts).items()}
        if device.type == "cuda":  # pinned memory is copied while the GPU computes
            features = {name: tensor.pin_memory() for name, tensor in features.items()}
        features = {name: tensor.to(device, non_blocking=True) for name, tensor in features.items()}
        vectors = self._model(features)["sentence_embedding"].float()
        return torch.nn.functional.normalize(vectors, dim=1)


def _cost(tokens: TokenIds) -> int:
    return len(tokens.ids)


def _load(folder: Path, device: str, name: str) -> Any:
    """The model, without the progress bars that transformers draws on the terminal."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - heavy
    from transformers.utils import logging  # noqa: PLC0415 - heavy

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"embedder.model {name!r} cannot be loaded from {folder}: {reason}; give a sentence-transformers model, "
            f"download it again if it is one, or say {PACKAGED!r}"
        ) from error
    finally:
        if drawn:
            logging.enable_progress_bar()


def _own_tokenizer(tokenizer: Any, window: int, name: str) -> Any:
    """A copy of the model's tokenizer that cuts at the window and does not pad."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only this function needs it

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InvalidInput(f"embedder.model {name!r} has no fast tokenizer; give a text model that has one")
    own = Tokenizer.from_str(backend.to_str())
    own.no_padding()
    own.enable_truncation(window)
    return own


def _padding(model: Any) -> Padding:
    tokenizer = model.tokenizer
    return Padding(
        pad_id=tokenizer.pad_token_id or 0,
        pad_type=tokenizer.pad_token_type_id,
        left=tokenizer.padding_side == "left",
        multiple=8 if model.device.type == "cuda" else 1,
    )


def identity_of(folder: Path, config: EmbedderConfig, prompts: dict[str, str]) -> str:
    """What a corpus records of the model in `folder`; `prompts` are the model's own."""
    prefix = config.document_prefix or prompts.get("document") or ""
    suffix = f"+prefix-{hashlib.sha256(prefix.encode()).hexdigest()[:8]}" if prefix else ""
    return f"{model_name(config.model)}@{content_hash(folder)}{suffix}"
