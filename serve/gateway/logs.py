"""What a server's log lines look like: a sentence for people, or one JSON object a line for programs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, Literal

from engine.scope import current_request_id
from serve.gateway.frames import encode_json, one_line

Form = Literal["text", "json"]

FIELDS = ("request_id", "trace_id", "graph", "method", "path", "status", "milliseconds", "events")
_QUIET = ("uvicorn", "sentence_transformers")
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\t"}
_CONTROLS |= {0x2028: "\\u2028", 0x2029: "\\u2029"}  # line ends, too


class TextLines(logging.Formatter):
    r"""Time, sentence and the request's id; control characters, which a path may bring in, are escaped.

    >>> record = logging.makeLogRecord({"msg": "POST /a\nb", "request_id": "r1"})
    >>> print(TextLines("%(message)s").format(record))
    POST /a\x0ab r1
    """

    def __init__(self, fmt: str = "%(asctime)s %(message)s") -> None:
        super().__init__(fmt, "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line before the traceback, if any."""
        record.message = record.message.translate(_CONTROLS)
        id_ = _request_id(record)
        if id_ and id_ not in record.message:
            record.message += f" {id_}"
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and of FIELDS those that the record has.

    >>> record = logging.makeLogRecord({"msg": "ready", "levelname": "INFO", "name": "headrace", "created": 0.5})
    >>> JsonLines().format(record)
    '{"time":"1970-01-01T00:00:00.500Z","level":"info","logger":"headrace","message":"ready"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": _request_id(record),
            **{name: getattr(record, name, None) for name in FIELDS[1:]},
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        return one_line(encode_json({key: _whole(value) for key, value in line.items() if value is not None})).decode()


def _request_id(record: logging.LogRecord) -> str | None:
    """That of the line, else that of the request in whose scope it was written."""
    return getattr(record, "request_id", None) or current_request_id()


def _whole(value: Any) -> Any:
    """Text that UTF-8 can carry: a path may hold half of a surrogate pair, and no line is worth failing for."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def lines(form: Form) -> logging.Formatter:
    """The formatter of that form."""
    return JsonLines() if form == "json" else TextLines()


def log_to(handler: logging.Handler, form: Form) -> None:
    """Have everything that is logged in this process, Python's warnings too, go to `handler` in that form."""
    handler.setFormatter(lines(form))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
