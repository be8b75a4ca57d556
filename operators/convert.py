"""HTML, PDF and office files as Markdown, through markitdown."""

from __future__ import annotations

import io
import logging
import warnings
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from operators.decode import NotText, decode

_UNPACKED = 16  # times the size limit that the XML parts of an office file may unpack to
_CONVERTERS = {
    ".html": "HtmlConverter",
    ".htm": "HtmlConverter",
    ".xhtml": "HtmlConverter",
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".pptx": "PptxConverter",
    ".xlsx": "XlsxConverter",
}
_MISSING = "needs a converter that is not installed; run: pip install 'headrace[files]'"


class Converted(NamedTuple):
    """A file as Markdown, and the title that it gives itself, if any."""

    text: str
    title: str


def convert(path: Path, *, max_bytes: int) -> Converted:
    """Turn a file into Markdown.

    The converter is chosen by the end of the name. It gets the bytes and nothing else: no network, no plug-ins, no
    guessing of types, which would load a neural network. Its warnings are not shown.

    Args:
        path: A file whose suffix is one of `file_types.CONVERTED`.
        max_bytes: The most that an office file may unpack to is a multiple of it.

    Raises:
        NotText: It cannot be converted; the message says why, and what to do.
        OSError: It cannot be read.
    """
    try:
        from markitdown import MissingDependencyException, StreamInfo, converters  # noqa: PLC0415 - optional and heavy
    except ImportError:
        raise NotText(_MISSING) from None
    suffix = path.suffix.lower()
    data = path.read_bytes()
    if suffix in {".html", ".htm", ".xhtml"}:
        data = decode(data, path.name).encode()
    elif suffix != ".pdf":
        _check_archive(data, path.name, limit=_UNPACKED * max_bytes)
    converter = getattr(converters, _CONVERTERS[suffix])()
    info = StreamInfo(extension=suffix, charset="utf-8", filename=path.name)
    try:
        result = _quietly(converter, data, info)
    except MissingDependencyException as error:
        raise NotText(_MISSING) from error
    except Exception as error:  # parsers of broken files raise anything; re-raised as what it means
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise NotText(_damaged(suffix, reason)) from error
    return Converted(_clean(result.markdown), _clean(result.title or "").strip())


def _quietly(converter: Any, data: bytes, info: Any) -> Any:
    """Run a converter without what it and its parsers say on the terminal."""
    for parser in ("pdfminer", "pdfplumber", "mammoth", "openpyxl"):
        logging.getLogger(parser).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return converter.convert(io.BytesIO(data), info)


def _damaged(suffix: str, reason: str) -> str:
    kind = suffix.removeprefix(".")
    return (
        f"cannot be read as {kind} ({reason}); it may be damaged, protected by a password, or no {kind}: "
        "open it, save it again, and try that file"
    )


def _check_archive(data: bytes, name: str, *, limit: int) -> None:
    """Refuse what is no archive, and one whose text parts would unpack to more than the machine should hold."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(part.file_size for part in archive.infolist() if part.filename.endswith((".xml", ".rels")))
    except zipfile.BadZipFile as error:
        raise NotText(_damaged(Path(name).suffix.lower(), "it is no office file inside")) from error
    if size > limit:
        raise NotText(f"unpacks to {size >> 20:,} MiB, above the limit of {limit >> 20:,} MiB; split it")


def _clean(text: str) -> str:
    """Converted text without carriage returns, NUL, and halves of surrogate pairs, which some PDFs yield."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return text.encode("utf-8", "replace").decode("utf-8")
