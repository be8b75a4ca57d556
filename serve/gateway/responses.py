"""What the gateway answers in one piece: JSON, and refusals in the form of problems.py."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from engine.errors import HeadraceError
from engine.scope import Scope
from engine.supervise import as_step_failure
from serve.gateway.frames import encode_json
from serve.gateway.problems import Refused, body_of, retry_after, status_of

_log = logging.getLogger("headrace")


def json_response(body: bytes, headers: dict[str, str] | None = None, *, status: int = 200) -> Response:
    """JSON that is encoded already."""
    return Response(body, status, headers, media_type="application/json")


def failure_response(error: Exception, request_id: str) -> Response:
    """What went wrong; a step's own failure is logged, too."""
    failure = error if isinstance(error, HeadraceError) else as_step_failure(error, "gateway", request_id)
    status = status_of(failure)
    if status == 500:
        _log.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
    headers = {"x-request-id": request_id, **retry_after(failure)}
    return json_response(encode_json(body_of(failure, request_id)), headers, status=status)


async def refused_by_http(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: unknown paths and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"{request.method} {request.url.path}: {getattr(error, 'detail', error)}; see /openapi.json"
    refused = failure_response(Refused(status, text), request.headers.get("x-request-id", "") or Scope().id)
    if status == 405:
        refused.headers["Allow"] = ", ".join(_methods(request))
    return refused


def _methods(request: Request) -> list[str]:
    """With which a path can be asked; Starlette names those of its first route only."""
    routes = (route for route in request.app.routes if isinstance(route, Route))
    matching = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in matching for method in route.methods or ()})
