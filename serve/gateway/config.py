"""Limits of the gateway, each with a default that suits one machine, and what it tells of its work."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.errors import InvalidInput
from serve.gateway.telemetry import TelemetryConfig


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a gateway takes on, and where it tells of it.

    Args:
        active: Requests that run at once, their streams included.
        waiting: Requests that may wait for one of these places; more are refused with a time to come back.
        body_bytes: Size of a request's body, at most.
        timeout_seconds: Time for a request that names none.
        longest_seconds: The longest time that a request may ask for.
        stall_seconds: How long a client may take nothing of its stream before the stream is given up.
        heartbeat_seconds: After so long without an event a stream sends a comment, so that dead clients are noticed.
        ahead: Events that a stream's producer may be ahead of its client.
        kept: Last events of a stream that can be sent again.
        resume_seconds: How long an ended stream can be resumed, and the longest that a running one may wait for its
            client to come back.
        log: What log lines look like: "text", for people, or "json", an object a line.
        telemetry: Where spans go; None records none.

    Raises:
        InvalidInput: A limit is not above 0.
    """

    active: int = 64
    waiting: int = 256
    body_bytes: int = 1 << 20
    timeout_seconds: float = 60.0
    longest_seconds: float = 600.0
    stall_seconds: float = 30.0
    heartbeat_seconds: float = 15.0
    ahead: int = 64
    kept: int = 1024
    resume_seconds: float = 60.0
    log: Literal["text", "json"] = "text"
    telemetry: TelemetryConfig | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not value > 0:
                raise InvalidInput(f"serve.{name} is {value!r}; expected a number above 0")
        if self.kept < self.ahead:
            raise InvalidInput(f"serve.kept is {self.kept}; expected at least serve.ahead, {self.ahead}")
