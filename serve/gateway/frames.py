"""Server-sent events as bytes (WHATWG HTML, "Server-sent events")."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

HEARTBEAT = b":\n\n"
_LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}  # some clients end a line at these


def encode_json(value: Any) -> bytes:
    """A value as JSON, arrays as lists."""
    return msgspec.json.encode(value, enc_hook=_as_builtin)


def _as_builtin(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def frame(id: str, event: str, data: bytes) -> bytes:
    r"""One event: whole characters, and no line end but those of the framing.

    >>> frame("r1:3", "text", encode_json({"text": "a\u2028b"}))
    b'id: r1:3\nevent: text\ndata: {"text":"a\\u2028b"}\n\n'
    """
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id.encode(), event.encode(), one_line(data))


def one_line(data: bytes) -> bytes:
    """JSON that no reader breaks into lines, whatever it takes for a line's end."""
    for character, escaped in _LINE_ENDS.items():
        data = data.replace(character.encode(), escaped.encode())
    return data


def event_name(item: Any) -> str:
    """How an item of a stream is called: its struct's tag, else "item"."""
    tag = getattr(getattr(type(item), "__struct_config__", None), "tag", None)
    return str(tag) if tag is not None else "item"
