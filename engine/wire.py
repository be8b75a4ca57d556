"""How values cross a hop: msgpack by msgspec, arrays as raw bytes, Arrow tables as IPC streams.

Frames of the data plane, each a msgpack array::

    Request   scope, id, method, credits, args      one call, or the opening of a stream
    Pull      id, ack, credits, traced              more of a stream
    Close     id, reason                            a call or a stream nobody wants any more
    Reply     queued_s, served_s, value, error, notes, weight, epoch, batch, spans   the end of a call
    ChunkWire seq0, items, done, queued_s, served_s, error, spans

Peers are processes that this program started: errors travel as pickles.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from engine.errors import HeadraceError
from engine.scope import ScopeWire
from engine.spans import SpanRecord


class Request(msgspec.Struct, array_like=True, frozen=True):
    """One call, or the opening of a stream."""

    scope: ScopeWire
    id: str
    method: str
    credits: int
    args: msgspec.Raw


class Pull(msgspec.Struct, array_like=True, frozen=True):
    """A request for more of a stream."""

    id: str
    ack: int
    credits: int
    traced: bool = False  # whether the caller knows where spans go


class Close(msgspec.Struct, array_like=True, frozen=True):
    """Nobody wants the call or stream any more."""

    id: str
    reason: str


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The end of a call: a value or an error."""

    queued_s: float
    served_s: float
    value: msgspec.Raw
    error: bytes | None
    notes: list[str] = []  # what the step had to say for the trace
    weight: float = 1.0
    epoch: int = 0
    batch: int = 0
    spans: list[SpanRecord] = []  # whatever the endpoint has, for a caller that knows where they go


class ChunkWire(msgspec.Struct, array_like=True, frozen=True):
    """Some items of a stream."""

    seq0: int
    items: msgspec.Raw
    done: bool
    queued_s: float
    served_s: float
    error: bytes | None
    spans: list[SpanRecord] = []


def _to_builtin(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__module__.startswith("pyarrow"):
        return _arrow_bytes(value)
    raise NotImplementedError(f"{type(value).__name__} cannot cross a hop; use msgspec structs, arrays or Arrow tables")


def _from_builtin(kind: type, raw: Any) -> Any:
    if kind is np.ndarray:
        dtype, shape, data = raw
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    if kind.__module__.startswith("pyarrow"):
        return _arrow_table(raw)
    raise NotImplementedError(f"{kind.__name__} cannot cross a hop")


def _arrow_bytes(value: Any) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - only ingest moves tables; questions need not pay for the import

    table = value if isinstance(value, pa.Table) else pa.Table.from_batches([value])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _arrow_table(raw: bytes) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - as above

    return pa.ipc.open_stream(raw).read_all()


_encoder = msgspec.msgpack.Encoder(enc_hook=_to_builtin)
encode = _encoder.encode


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of a type; array contents are read-only views into the message."""
    made: msgspec.msgpack.Decoder[Any] = _decoder(kind)
    return made


@lru_cache(maxsize=512)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_from_builtin)


NOTHING = msgspec.Raw(encode(None))


def encode_error(error: HeadraceError) -> bytes:
    """An error as bytes; its cause stays behind."""
    return pickle.dumps(error)


def decode_error(raw: bytes) -> HeadraceError:
    """The error that `encode_error` packed."""
    error = pickle.loads(raw)
    if not isinstance(error, HeadraceError):
        raise TypeError(f"a peer sent {type(error).__name__} where an error was expected")
    return error
