"""What an application that serves a corpus is told in a Serve config file."""

from __future__ import annotations

from typing import Literal

import msgspec


class ServeArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `args` of the application in a Serve config file.

    Args:
        corpus: Folder of the corpus; it must be there on every node that may run a shard.
        config: Path of a headrace configuration file; None for the defaults.
        gateways: Replicas of the gateway. A stream can be resumed at the one that began it only.
        log: Form of log lines, "text" or "json"; None for what the configuration file says.
    """

    corpus: str | None = None
    config: str | None = None
    gateways: int = 1
    log: Literal["text", "json"] | None = None
