"""Texts as token ids, put together into the rectangles that models take.

Shape legend: B = texts of one rectangle, T = tokens of its longest text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Final, Protocol

import msgspec
import numpy as np

MAX_PADDING: Final = 1 / 8  # share of a rectangle that may be padding: less makes more, smaller rectangles


class Tokens(Protocol):
    """Whatever holds the token ids of one text, or of a pair of texts."""

    @property
    def ids(self) -> Sized:
        """The ids."""
        ...


class TokenIds(msgspec.Struct, frozen=True, gc=False):
    """A text as a model reads it, special tokens included, not padded yet."""

    ids: list[int]
    types: list[int]  # token_type_ids; empty for models that take none


class Padding(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's tokenizer pads."""

    pad_id: int = 0
    pad_type: int = 0
    left: bool = False
    multiple: int = 1  # widths are multiples of it; 8 suits the matrix units of GPUs

    def pad(self, texts: Sequence[TokenIds]) -> dict[str, np.ndarray]:
        """The arrays that models take: int64[B, T] each; `token_type_ids` only if the texts have types.

        Example:
            >>> Padding().pad([TokenIds([101, 7, 102], []), TokenIds([101, 102], [])])["input_ids"].tolist()
            [[101, 7, 102], [101, 102, 0]]
        """
        width = -(-max(len(text.ids) for text in texts) // self.multiple) * self.multiple
        shape = (len(texts), width)
        arrays = {"input_ids": np.full(shape, self.pad_id, np.int64), "attention_mask": np.zeros(shape, np.int64)}
        if texts[0].types:
            arrays["token_type_ids"] = np.full(shape, self.pad_type, np.int64)
        for row, text in enumerate(texts):
            columns = slice(width - len(text.ids), width) if self.left else slice(len(text.ids))
            arrays["input_ids"][row, columns] = text.ids
            arrays["attention_mask"][row, columns] = 1
            if text.types:
                arrays["token_type_ids"][row, columns] = text.types
        return arrays


def rectangles(texts: Sequence[Tokens]) -> Iterator[list[int]]:
    """Indices, the longest text first, in runs that waste at most `MAX_PADDING` of their tokens on padding.

    Example:
        >>> list(rectangles([TokenIds([0] * n, []) for n in (30, 100, 80, 90)]))
        [[1, 3, 2], [0]]
    """
    run: list[int] = []
    width = tokens = 0
    for index in sorted(range(len(texts)), key=lambda i: len(texts[i].ids), reverse=True):
        length = len(texts[index].ids)
        area = width * (len(run) + 1)
        if run and area - tokens - length > MAX_PADDING * area:
            yield run
            run, tokens = [], 0
        width = width if run else length
        run.append(index)
        tokens += length
    if run:
        yield run
