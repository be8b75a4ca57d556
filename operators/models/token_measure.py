"""Length of texts in the tokens of an embedder, without loading the embedder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import InvalidInput
from operators.measure import Ruler, TokenRuler

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SLICE, _BATCH = 1 << 14, 16
"""Code points of a slice, and slices that are tokenized at once, on several threads if the tokenizers library may use
them. A token takes some hundred bytes until its offsets are copied out, so not all of a long text at once."""


class TokenMeasure:
    """Length in tokens.

    Args:
        tokenizer: A tokenizer that neither truncates nor pads.
    """

    unit = "tokens"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def open(cls, folder: Path) -> TokenMeasure:
        """Read the `tokenizer.json` of a model; some 10 ms, and no torch.

        Raises:
            InvalidInput: There is none that can be read.
        """
        from tokenizers import Tokenizer  # noqa: PLC0415 - only this function needs it

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidInput(
                f"{folder} holds no tokenizer.json, so chunks cannot be measured in tokens; set chunk.unit to "
                '"characters", or save the model again with its fast tokenizer'
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise InvalidInput(f"cannot read the tokenizer {path} ({error}); download the model again") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer)

    def ruler(self, text: str) -> Ruler:
        """Tokenize a text once; time and memory are linear in it."""
        return TokenRuler(self.offsets(text), len(text))

    def offsets(self, text: str) -> np.ndarray:
        """Start and end of each token in code points: int32[T, 2], without special tokens.

        Long texts are tokenized in slices that end before white space where there is any.
        """
        parts = [np.empty((0, 2), np.int32)]
        slices = _slices(text)
        while batch := list(itertools.islice(slices, _BATCH)):
            texts = [text[start:end] for start, end in batch]
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
            parts.extend(_array(e.offsets) + start for e, (start, _) in zip(encodings, batch, strict=True))
        return np.concatenate(parts)


def _array(offsets: list[tuple[int, int]]) -> np.ndarray:
    return np.fromiter(itertools.chain.from_iterable(offsets), np.int32, 2 * len(offsets)).reshape(-1, 2)


def _slices(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        end = min(len(text), start + _SLICE)
        if end < len(text):
            space = max(text.rfind("\n", start + _SLICE // 2, end), text.rfind(" ", start + _SLICE // 2, end))
            end = space if space > start else end
        yield start, end
        start = end
