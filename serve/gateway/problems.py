"""What went wrong, as HTTP says it."""

from __future__ import annotations

import math
from typing import Any

from engine.errors import (
    AccessDenied,
    Cancelled,
    DeadlineExceeded,
    HeadraceError,
    Incomplete,
    InvalidInput,
    LeaseExpired,
    QueueFull,
    StageDied,
    StorageError,
)

_STATUS: tuple[tuple[type[HeadraceError], int], ...] = (
    (InvalidInput, 400),
    (AccessDenied, 403),
    (DeadlineExceeded, 504),
    (Cancelled, 499),  # nginx's: the client has closed the request
    (QueueFull, 503),
    (Incomplete, 503),
    (StageDied, 503),
    (LeaseExpired, 503),
    (StorageError, 507),
)
_SHORTLY_S = 1.0


class Refused(InvalidInput):
    """A request that HTTP itself has a word for.

    Args:
        status: 404, 405, 410, 413 or the like.
        message: What was wrong and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: HeadraceError) -> int:
    """The status that tells a program what kind of failure it was; 500 for a step's own."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def retry_after(error: HeadraceError) -> dict[str, str]:
    """The header that says when to come back, for what passes by itself."""
    if isinstance(error, QueueFull):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    return {"retry-after": str(math.ceil(_SHORTLY_S))} if status_of(error) == 503 else {}


def body_of(error: HeadraceError, request_id: str) -> dict[str, Any]:
    """What a program and a person read; `detail` holds the message again, where clients of R2R look for it."""
    body: dict[str, Any] = {
        "message": error.message,
        "error_type": type(error).__name__,
        "request_id": request_id,
        "step": error.step,
        "detail": {"message": error.message},
    }
    if isinstance(error, Incomplete):
        body["partial"] = {"missing": error.shards, "coverage": error.coverage}
    return body
