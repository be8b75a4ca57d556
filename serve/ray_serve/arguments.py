"""What an application that serves a corpus is told in a Serve config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.errors import InvalidInput

IMPORT_PATH = "serve.ray_serve.application:build"
"""Of the application that takes them."""


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


def read_arguments(args: Mapping[str, Any]) -> ServeArguments:
    """The `args` of a file.

    Raises:
        InvalidInput: One is unknown or wrong.
    """
    try:
        return msgspec.convert(dict(args), ServeArguments)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"args: {error}; there are {', '.join(ServeArguments.__struct_fields__)}") from error


def is_ours(application: Mapping[str, Any]) -> bool:
    """Whether an application of a Serve config file, as it stands there, is the one that takes these arguments."""
    return str(application.get("import_path", "")).replace(":", ".") == IMPORT_PATH.replace(":", ".")
