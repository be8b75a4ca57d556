"""Generated documents, vectors and questions that look like real ones where a search engine would feel a difference.

Shape legend: N = chunks, D = dimensions.

Words follow a Zipf-Mandelbrot law (the most common are English stop words); a quarter of a chunk's words
come from its topic, so that words go together as they do in prose. A vector is its topic's centre plus noise, a centre
that of its field plus noise, all of unit length. Everything is made anew from the seed, block by block: it is the same
in every process, and never held as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from operators.messages import Chunk, Document, EmbeddedDocument

STOP_WORDS = [
    "the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "at",
    "are", "this", "or", "an", "they", "but", "which", "will", "their", "if", "then", "there", "no", "such", "into",
]  # fmt: skip
BLOCK = 1_000  # chunks made at once
_TOPIC_WORDS = 200
_TOPIC_SHARE = 0.25
_TOPICS_OF_FIELD = 30
_NEAR = 0.8  # cosine of a topic and its field, a chunk and its topic, a question and the chunk that it asks for


def vocabulary(size: int, rng: np.random.Generator) -> list[str]:
    """Different pronounceable words, the most common first, which are stop words; common words are shorter."""
    syllables = np.array([c + v + e for c in "bcdfgklmnprstvz" for v in "aeiou" for e in ("", "n", "r", "l")])
    words = dict.fromkeys(STOP_WORDS)
    while len(words) < size:
        parts = syllables[rng.integers(len(syllables), size=2 + (len(words) > 1_000) + (len(words) > 20_000))]
        words["".join(parts)] = None
    return list(words)


def zipf(size: int) -> np.ndarray:
    """Cumulated probabilities of ranks, float64[size]: Zipf-Mandelbrot with exponent 1.05 and shift 2.7."""
    weights = 1 / (np.arange(size) + 2.7) ** 1.05
    return np.cumsum(weights) / weights.sum()


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length, float32."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Collection:
    """Documents of `chunks_each` chunks; a document is about one topic.

    Their metadata are made for filters: `half` is 0 or 1, `hundredth` 0 to 99, `number` the document's own.

    Args:
        chunks: N.
        seed: Of everything.
        dimension: D.
        words: Fewest and most words of a chunk.
        topics: Different ones; 0: vectors are uniform on the sphere and texts know no topics.
        chunks_each: Chunks of a document.
        vocabulary_size: Different words.
    """

    chunks: int
    seed: int
    dimension: int = 384
    words: tuple[int, int] = (60, 120)
    topics: int = 1_000
    chunks_each: int = 10
    vocabulary_size: int = 50_000

    @property
    def documents(self) -> int:
        """How many there are."""
        return -(-self.chunks // self.chunks_each)

    @cached_property
    def _words(self) -> np.ndarray:
        return np.array(vocabulary(self.vocabulary_size, self._rng(0)), object)

    @cached_property
    def _common(self) -> np.ndarray:
        return zipf(self.vocabulary_size)

    @cached_property
    def _centres(self) -> np.ndarray:
        rng = self._rng(1)
        fields = unit(rng.standard_normal((-(-self.topics // _TOPICS_OF_FIELD), self.dimension)))
        noise = unit(rng.standard_normal((self.topics, self.dimension)))
        return self._near(fields[np.arange(self.topics) // _TOPICS_OF_FIELD], noise)

    @cached_property
    def _topic_words(self) -> np.ndarray:
        low = min(300, self.vocabulary_size // 2)  # the most common words belong to no topic
        return self._rng(2).integers(low, self.vocabulary_size, size=(max(1, self.topics), _TOPIC_WORDS))

    @cached_property
    def _topic_common(self) -> np.ndarray:
        return zipf(_TOPIC_WORDS)

    def _rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *numbers])

    def topic(self, document: int) -> int:
        """What a document is about."""
        return int(self._rng(3, document).integers(max(1, self.topics)))

    # Documents

    @staticmethod
    def name(number: int) -> str:
        """The id of a document."""
        return f"doc-{number:07d}"

    def blocks(self, begin: int = 0) -> Iterator[list[EmbeddedDocument]]:
        """All documents from number `begin` on, about `BLOCK` chunks at a time."""
        each = max(1, BLOCK // self.chunks_each)
        for start in range(begin, self.documents, each):
            yield [self.document(number) for number in range(start, min(start + each, self.documents))]

    def document(self, number: int, *, version: int = 0, extra: str = "") -> EmbeddedDocument:
        """One document; another version has other words and vectors, and `extra` is added to each chunk's text."""
        count = self._size(number)
        rng, topic = self._rng(4, number, version), self.topic(number)
        texts = [f"{self._text(rng, topic)} {extra}".strip() for _ in range(count)]
        starts = np.cumsum([0, *(len(text) + 2 for text in texts)]).tolist()
        document = Document(
            id=self.name(number),
            title=" ".join(self._words[self._topic_words[topic, rng.integers(50, size=4)]]),
            text="\n\n".join(texts),
            metadata={"number": number, "half": number % 2, "hundredth": number % 100},
        )
        chunks = tuple(
            Chunk(ordinal=ordinal, text=text, start=start, end=start + len(text))
            for ordinal, (text, start) in enumerate(zip(texts, starts, strict=False))
        )
        return EmbeddedDocument(document, chunks, self._vectors(number, version, count))

    def _size(self, number: int) -> int:
        """Chunks of a document: all have the same number but the last; those beyond it can be made, too."""
        left = self.chunks - number * self.chunks_each
        return min(self.chunks_each, left) if left > 0 else self.chunks_each

    def _text(self, rng: np.random.Generator, topic: int) -> str:
        length = int(rng.integers(self.words[0], self.words[1] + 1))
        ranks = np.searchsorted(self._common, rng.random(length))
        if self.topics:
            of_topic = rng.random(length) < _TOPIC_SHARE
            drawn = np.searchsorted(self._topic_common, rng.random(length))
            ranks = np.where(of_topic, self._topic_words[topic, drawn], ranks)
        return " ".join(self._words[ranks])

    def _vectors(self, number: int, version: int, count: int) -> np.ndarray:
        noise = unit(self._rng(5, number, version).standard_normal((count, self.dimension)))
        return self._near(self._centres[self.topic(number)], noise) if self.topics else noise

    @staticmethod
    def _near(vector: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return unit(_NEAR * vector + np.sqrt(1 - _NEAR**2) * noise)

    def vectors(self) -> np.ndarray:
        """Those of all chunks in order, float32[N, D]."""
        return np.concatenate([self._vectors(number, 0, self._size(number)) for number in range(self.documents)])

    # Questions

    def questions(self, count: int) -> tuple[list[str], np.ndarray]:
        """Questions about random chunks: texts, and vectors float32[count, D] near the chunks'.

        A text holds four to eight words of the chunk that are no stop words, and three that are.
        """
        rng, texts, vectors = self._rng(6), [], []
        for number in rng.integers(self.documents, size=count).tolist():
            found = self.document(number)
            place = int(rng.integers(len(found.chunks)))
            own = [word for word in set(found.chunks[place].text.split()) if word not in STOP_WORDS]
            asked = rng.permutation(sorted(own))[: rng.integers(4, 9)].tolist()
            texts.append(" ".join([*rng.choice(STOP_WORDS, 3).tolist(), *asked]))
            noise = unit(rng.standard_normal(self.dimension))
            vectors.append(self._near(found.vectors[place], noise))
        return texts, np.stack(vectors)
