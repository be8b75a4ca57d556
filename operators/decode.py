"""Bytes of a text file as text, whatever their encoding."""

from __future__ import annotations

import codecs
from pathlib import PurePath

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_LATIN = frozenset({"cp1250", "cp1254", "cp1257", "cp1258", "mac_latin2"}) | {
    f"iso8859_{n}" for n in (2, 3, 4, 9, 10, 13, 14, 16)
}
_SAMPLE = 1 << 16  # bytes from which an unmarked encoding is guessed


class NotText(ValueError):
    """The bytes are no text that can be read; the message says why, and what to do."""


def decode(data: bytes, name: str = "") -> str:
    r"""The text, with every line ending as `\n`.

    A byte order mark decides; else it is UTF-8 if it can be; else the encoding is guessed from the first 64 KiB with
    charset-normalizer if that is installed.

    Args:
        data: The whole file.
        name: The file's name, for the message.

    Raises:
        NotText: It holds NUL bytes, or no encoding fits.

    Example:
        >>> decode("naïve\r\ncafé".encode("utf-16"))
        'naïve\ncafé'
    """
    encoding = next((encoding for bom, encoding in _BOMS if data.startswith(bom)), None)
    if encoding is None:
        if is_binary(data):
            raise NotText(binary_reason(name))
        encoding = "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise NotText(f"begins like {encoding} but is not; save it again as UTF-8") from error
        text = _guessed(data)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def is_binary(data: bytes) -> bool:
    """Whether bytes without a byte order mark hold a NUL, which no text does."""
    return b"\0" in data and not data.startswith(tuple(bom for bom, _ in _BOMS))


def binary_reason(name: str) -> str:
    """What to tell of a binary file."""
    kind = PurePath(name).suffix.lower()
    what = f"a binary file ({kind})" if kind else "a binary file"
    return f"{what}, not text; export it as PDF, HTML or text if it holds something to read"


def _guessed(data: bytes) -> str:
    try:
        from charset_normalizer import from_bytes  # noqa: PLC0415 - optional
    except ImportError:
        raise NotText("not UTF-8; save it as UTF-8, or pip install charset-normalizer to have it guessed") from None
    matches = from_bytes(data[:_SAMPLE])
    best = matches.best()
    if best is None:
        raise NotText("in no encoding that can be recognized; save it as UTF-8")
    # Western European text reads well in Baltic and Central European tables, too; the commonest of equals is cp1252.
    western = [match for match in matches if "cp1252" in match.could_be_from_charset]
    is_western = best.encoding in _LATIN and any(match.coherence >= best.coherence for match in western)
    encoding = "cp1252" if is_western else _widened(best.encoding)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise NotText(f"looks like {encoding} at first but is not throughout; save it as UTF-8") from error


def _widened(encoding: str) -> str:
    """The encoding that reads everything the guessed one does, and more: a sample may lack the rarer characters."""
    return {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "ascii": "cp1252"}.get(encoding, encoding)
