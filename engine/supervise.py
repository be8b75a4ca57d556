"""The supervisor boundary: the one place where any exception of a step becomes one of ours."""

from __future__ import annotations

import traceback

from engine.errors import HeadraceError, StepFailed


def as_step_failure(error: Exception, step: str, request_id: str | None) -> HeadraceError:
    """`error` with step and request id; an exception that is not ours is wrapped, its type, text and trace kept."""
    if isinstance(error, HeadraceError):
        return error.placed(step, request_id)
    failure = StepFailed(
        step,
        kind=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        text=str(error),
        traceback="".join(traceback.format_exception(error)),
        request_id=request_id,
    )
    failure.__cause__ = error
    return failure
