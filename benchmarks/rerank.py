"""How many pairs/s does the cross-encoder score, and what share of what its matrix products allow?

A pair is a question of 32 tokens and a passage of 128 to 256. Texts are made of a seeded vocabulary that a real
WordPiece tokenizer reads, and weights are random, so nothing is downloaded and speed is that of the real thing.
Measured in turn, round after round:

- engine: questions of 50 passages each, 16 at a time, through `CrossEncoder.score`: tokenizer, batcher, model, scores;
- worker: what the batcher's thread does, without event loop or tokenizer: padding, copying, model, scores;
- bare: only the model's forward on padded batches that lie on the device, sorted by length, one wait at the end;
- products: only its dense matrix products (query, key, value, output, up, down) on the same number of real tokens.

bare / worker is the most that preparing one batch while another runs could bring.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from benchmarks.report import Figure, emit, percentile
from operators.models.cross_encoder import CrossEncoder, CrossEncoderConfig, TokenPair, pad

QUESTION = "How many pairs/s does the cross-encoder score, and what share of what its matrix products allow?"
VOCABULARY = 30_522
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
QUESTION_TOKENS, PASSAGE_TOKENS = 32, (128, 256)
PASSAGES = 50  # a question
CLIENTS = 16

Request = tuple[str, list[str]]


@dataclass(frozen=True)
class Size:
    """A BERT: all-MiniLM-L6, base, large."""

    layers: int
    hidden: int
    heads: int

    @property
    def feed_forward(self) -> int:
        return 4 * self.hidden


SIZES = {"minilm": Size(6, 384, 12), "base": Size(12, 768, 12), "large": Size(24, 1024, 16)}


def vocabulary(rng: random.Random) -> dict[str, int]:
    """Special tokens, then stems of 3 to 8 letters; every fifth entry is a suffix."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    entries = dict.fromkeys(SPECIAL)
    while len(entries) < VOCABULARY:
        word = "".join(rng.choices(letters, k=rng.randint(3, 8)))
        entries["##" + word[:3] if len(entries) % 5 == 0 else word] = None
    return {entry: number for number, entry in enumerate(entries)}


def tokenizer_of(words: dict[str, int]) -> PreTrainedTokenizerFast:
    """BERT's own: normaliser, splitting, WordPiece, [CLS] question [SEP] passage [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])],
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, model_input_names=inputs, **special
    )


def questions(words: dict[str, int], count: int, rng: random.Random) -> list[Request]:
    stems = [word for word in words if not word.startswith(("##", "["))]
    suffixes = [word[2:] for word in words if word.startswith("##")]

    def text(tokens: int) -> str:
        """About that many tokens: one word in five is a stem and a suffix, the rest are stems."""
        return " ".join(
            rng.choice(stems) + (rng.choice(suffixes) if i % 5 == 0 else "") for i in range(round(tokens / 1.2))
        )

    return [
        (text(QUESTION_TOKENS), [text(rng.randint(*PASSAGE_TOKENS)) for _ in range(PASSAGES)]) for _ in range(count)
    ]


def model_of(size: Size, device: str, dtype: torch.dtype, seed: int) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        num_labels=1,
    )
    with torch.device(device):
        return BertForSequenceClassification(config).to(dtype).eval()


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def timed(device: str, work: Callable[[], Any]) -> float:
    synchronize(device)
    began = time.perf_counter()
    with torch.inference_mode():
        work()
    synchronize(device)
    return time.perf_counter() - began


def through_engine(encoder: CrossEncoder, requests: list[Request], clients: int) -> tuple[float, list[float]]:
    """Seconds for all, and for each question."""

    async def drive() -> tuple[float, list[float]]:
        engine = CrossEncoder(encoder.model, encoder.tokenizer, encoder.config)  # a batcher belongs to one event loop
        waiting, latencies = iter(requests), []

        async def client() -> None:
            for question, passages in waiting:
                began = time.perf_counter()
                await engine.score(question, passages)
                latencies.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        seconds = time.perf_counter() - began
        await engine.aclose()
        return seconds, latencies

    return asyncio.run(drive())


def by_length(pairs: list[TokenPair], limit: int) -> Iterator[list[TokenPair]]:
    """All pairs, longest first, in batches of at most `limit` padded tokens."""
    ordered = sorted(pairs, key=lambda pair: len(pair.ids), reverse=True)
    while ordered:
        count = max(1, limit // len(ordered[0].ids))
        yield ordered[:count]
        ordered = ordered[count:]


def matrix_products(size: Size, tokens: int, device: str, dtype: torch.dtype) -> Callable[[], None]:
    """The dense products of one forward over that many tokens, in the layout of torch.nn.Linear, into fixed outputs."""
    shapes = [(size.hidden, size.hidden)] * 4 + [(size.hidden, size.feed_forward), (size.feed_forward, size.hidden)]
    with torch.device(device):
        weights = [[torch.randn(o, i, dtype=dtype) / i**0.5 for i, o in shapes] for _ in range(size.layers)]
        inputs = {width: torch.randn(tokens, width, dtype=dtype) for width in (size.hidden, size.feed_forward)}
        outputs = {width: torch.empty(tokens, width, dtype=dtype) for width in inputs}

    def run() -> None:
        for layer in weights:
            for weight in layer:
                torch.matmul(inputs[weight.shape[1]], weight.t(), out=outputs[weight.shape[0]])

    return run


class Measured:
    """Pairs/s of each side over the rounds, for one model and one batch limit."""

    def __init__(self, label: str, encoder: CrossEncoder, size: Size, requests: list[Request], clients: int) -> None:
        self.label, self.encoder, self.size, self.requests, self.clients = label, encoder, size, requests, clients
        self.rates: dict[str, list[float]] = {}
        self.alone_ms: list[float] = []
        device, limit = str(encoder.model.device), encoder.config.max_batch_tokens
        self.pairs = [pair for request in requests for pair in encoder.tokenize(*request)]
        self.batches = list(by_length(self.pairs, limit))
        self.padded = [
            {name: torch.from_numpy(array).to(device) for name, array in pad(batch, multiple=8).items()}
            for batch in self.batches
        ]
        self.tokens = sum(len(pair.ids) for pair in self.pairs)
        self.product_tokens = min(limit, self.tokens)
        self.products = matrix_products(size, self.product_tokens, device, encoder.model.dtype)
        self.device = device

    def round(self) -> None:
        pairs, model = len(self.pairs), self.encoder.model
        engine_s, _ = through_engine(self.encoder, self.requests, self.clients)
        worker_s = timed(self.device, lambda: [self.encoder.run(batch) for batch in self.batches])
        bare_s = timed(self.device, lambda: [model(**arrays).logits for arrays in self.padded])
        repeats = max(1, round(self.tokens / self.product_tokens))
        products_s = timed(self.device, lambda: [self.products() for _ in range(repeats)]) / repeats
        tokenizer_s = timed("cpu", lambda: [self.encoder.tokenize(*request) for request in self.requests])
        seconds = {
            "engine": engine_s,
            "worker": worker_s,
            "bare": bare_s,
            "products": products_s * self.tokens / self.product_tokens,
            "tokenizer alone": tokenizer_s,
        }
        for side, taken in seconds.items():
            self.rates.setdefault(side, []).append(pairs / taken)
        _, latencies = through_engine(self.encoder, self.requests[:32], 1)
        self.alone_ms.append(percentile(latencies, 50) * 1e3)

    def figures(self) -> Iterator[Figure]:
        for side, rates in self.rates.items():
            yield Figure.over_runs(f"{self.label}: {side}", rates, "pairs/s", lower_is_better=False)
        for below, above in (("engine", "products"), ("bare", "products"), ("engine", "bare"), ("worker", "bare")):
            shares = [a / b for a, b in zip(self.rates[below], self.rates[above], strict=True)]
            yield Figure.over_runs(f"{self.label}: {below} / {above}", shares, "share", lower_is_better=False)
        yield Figure.over_runs(f"{self.label}: one question of {PASSAGES} passages, p50", self.alone_ms, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", help=f"of {', '.join(SIZES)}; all on a GPU, minilm on a CPU")
    parser.add_argument("--batch-tokens", help="limits of a batch; 16384,65536 on a GPU, 16384 on a CPU")
    parser.add_argument("--questions", type=int, help=f"of {PASSAGES} passages each; 64 on a GPU, 2 on a CPU")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()

    on_gpu = options.device.startswith("cuda")
    dtype = torch.float16 if on_gpu else torch.float32
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rng = random.Random(options.seed)
    words = vocabulary(rng)
    requests = questions(words, options.questions or (64 if on_gpu else 2), rng)
    figures: list[Figure] = []
    for name in (options.sizes or ("minilm,base,large" if on_gpu else "minilm")).split(","):
        model = model_of(SIZES[name], options.device, dtype, options.seed)
        for limit in map(int, (options.batch_tokens or ("16384,65536" if on_gpu else "16384")).split(",")):
            config = CrossEncoderConfig(model=name, max_batch_tokens=limit)
            encoder = CrossEncoder(model, tokenizer_of(words), config)
            side = Measured(f"{name}, {limit} tokens", encoder, SIZES[name], requests, CLIENTS)
            side.round()
            side.rates, side.alone_ms = {}, []  # the first round warmed up
            for _ in range(options.runs):
                side.round()
            figures += side.figures()
    emit(
        QUESTION,
        figures,
        seed=options.seed,
        warm_up="one whole round per model and limit",
        runs=f"{options.runs} rounds, the sides in turn, {len(requests)} questions of {PASSAGES} passages each",
        as_json=options.json,
        packages=("torch", "transformers", "tokenizers", "msgspec", "numpy"),
        notes=[
            f"{options.device}, {dtype}, {torch.get_num_threads()} threads",
            "tokens come from a real WordPiece tokenizer over a seeded vocabulary, weights are random",
            "products: dense products only, attention's own products are left out, so their share is a lower bound",
        ],
    )


if __name__ == "__main__":
    main()
