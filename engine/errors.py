"""The errors that headrace raises.

::

    HeadraceError                  everything below; carries `step` and `request_id`; survives pickling
    ├── InvalidInput               a value from outside is wrong; also a ValueError; exit code 2
    │   └── GraphError             a graph is written wrongly; raised when it is defined, not when it runs
    │       └── GraphTypeError     an edge joins two types that do not fit
    ├── AccessDenied               whoever asks may not do that
    ├── StorageError               the disk refused a write: it is full, read-only or broken
    ├── RequestEnded               the request, not the step, is the reason
    │   ├── Cancelled              its caller went away
    │   └── DeadlineExceeded       its time is spent
    ├── QueueFull                  a bounded queue refused the work; carries `retry_after_s`
    ├── StepFailed                 a step's own code raised; carries the original's type and text
    ├── StageDied                  the process or actor behind a stage is gone
    ├── Incomplete                 too few shards answered in time; carries which, and what the others cover
    └── StreamError                a credit stream broke its protocol
        ├── StreamGap              a sequence number is missing
        └── LeaseExpired           nobody pulled for longer than the lease
"""

from __future__ import annotations

from typing import Any


class HeadraceError(Exception):
    """Root of the tree.

    Args:
        message: What happened, where, and what to do.
        step: Name of the step, as the graph's author wrote it.
        request_id: The request in whose scope it happened.
    """

    def __init__(self, message: str, *, step: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.step = step
        self.request_id = request_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild without calling __init__, so that subclasses may have any signature."""
        return _rebuild, (type(self), self.args, self.__dict__)

    def placed(self, step: str, request_id: str | None) -> HeadraceError:
        """Fill in step and request id where they are not known yet, and return self."""
        self.step = self.step or step
        self.request_id = self.request_id or request_id
        return self


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidInput(HeadraceError, ValueError):
    """A value from outside is wrong: the message names it, what was expected and what to do."""


class AccessDenied(HeadraceError):
    """Whoever asks may not do that; what they may not even see is reported as absent instead."""


class StorageError(HeadraceError):
    """The disk refused a write: it is full, read-only or broken. The message says what of it is stored.

    Args:
        message: What happened.
        in_doubt: The disk took the write and would not confirm it: it may be found when the store is opened again.
    """

    def __init__(
        self, message: str, *, in_doubt: bool = False, step: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message, step=step, request_id=request_id)
        self.in_doubt = in_doubt


class GraphError(InvalidInput):
    """A graph is written wrongly."""


class GraphTypeError(GraphError):
    """An edge joins two types that do not fit."""


class RequestEnded(HeadraceError):
    """The request, not the step, is the reason that work stopped."""


class Cancelled(RequestEnded):
    """The caller of the request went away."""


class DeadlineExceeded(RequestEnded):
    """The request's time is spent."""


class QueueFull(HeadraceError):
    """A bounded queue refused the work.

    Args:
        message: Which queue, how full.
        retry_after_s: Seconds until the queue is expected to have room, from measured service times.
    """

    def __init__(self, message: str, *, retry_after_s: float, step: str | None = None) -> None:
        super().__init__(message, step=step)
        self.retry_after_s = retry_after_s


class StepFailed(HeadraceError):
    """A step's own code raised.

    Args:
        step: The step.
        kind: Qualified name of the original exception's class, which need not exist in this process.
        text: The original's text.
        traceback: The original's formatted traceback, for logs.
        request_id: The request in whose scope it happened.
    """

    def __init__(self, step: str, *, kind: str, text: str, traceback: str = "", request_id: str | None = None) -> None:
        super().__init__(f"step {step!r} failed: {kind}: {text}", step=step, request_id=request_id)
        self.kind = kind
        self.text = text
        self.traceback = traceback


class StageDied(HeadraceError):
    """The process or actor behind a stage is gone."""


class Incomplete(HeadraceError):
    """Too few shards of a stage answered in time.

    Args:
        message: Which, and how many had to.
        shards: Those that did not.
        coverage: Share of the data, 0 to 1, that the others hold.
    """

    def __init__(self, message: str, *, shards: tuple[int, ...], coverage: float, step: str | None = None) -> None:
        super().__init__(message, step=step)
        self.shards = shards
        self.coverage = coverage


class StreamError(HeadraceError):
    """A credit stream broke its protocol."""


class StreamGap(StreamError):
    """A sequence number is missing from a credit stream."""


class LeaseExpired(StreamError):
    """Nobody pulled from a stream for longer than its lease, so its producer was stopped."""
