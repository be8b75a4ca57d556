"""How long a call waited in queues behind its step, and in whose company it ran, so that hops can be told from both."""

from __future__ import annotations

from contextvars import ContextVar, Token


class Meter:
    """Seconds that one call spent queued, and the items of the largest batch that it ran in."""

    __slots__ = ("batch", "queued_s")

    def __init__(self) -> None:
        self.queued_s = 0.0
        self.batch = 0


_current: ContextVar[Meter | None] = ContextVar("headrace_meter", default=None)


class metered:
    """Collect what queues report inside the block."""

    __slots__ = ("_token",)
    _token: Token[Meter | None]

    def __enter__(self) -> Meter:
        meter = Meter()
        self._token = _current.set(meter)
        return meter

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)


def report_queued(seconds: float, batch: int = 0) -> None:
    """Called by a queue: what the current call waited for stood in it for `seconds`, and ran with `batch` items."""
    meter = _current.get()
    if meter is not None:
        meter.queued_s += seconds
        meter.batch = max(meter.batch, batch)
