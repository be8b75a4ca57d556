"""The gateway's interface as an OpenAPI document, for clients and for tests that make requests up."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from serve.gateway.asked import Body

_PROBLEMS = {
    "400": "The request is wrong.",
    "403": "Whoever asks may not do that.",
    "404": "There is no such graph.",
    "409": "The request id is taken.",
    "410": "The stream cannot be resumed from there.",
    "413": "The body is too long.",
    "503": "Not now; Retry-After says when.",
    "504": "The request's time is spent.",
}


def openapi(bodies: Mapping[str, Body]) -> dict[str, Any]:
    """An OpenAPI 3.1 document.

    Args:
        bodies: What each graph takes, by its name.
    """
    definitions: dict[str, Any] = {"Problem": _PROBLEM}
    paths: dict[str, Any] = {}
    for name, body in bodies.items():
        schema = _moved(body.schema)
        definitions |= schema.pop("$defs", {})
        paths[f"/v1/graphs/{name}"] = {"post": _run(name, schema, streams=body.streams), "get": _get("A graph.")}
    paths |= {
        "/v1/graphs": {"get": _get("All graphs.")},
        "/health": {"get": _get("Whether the process lives.")},
        "/ready": {"get": _get("Whether the graphs have started.", "503")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "headrace", "version": version("headrace")},
        "paths": paths,
        "components": {"schemas": definitions},
    }


_PROBLEM = {
    "type": "object",
    "required": ["message", "error_type", "request_id", "detail"],
    "properties": {
        "message": {"type": "string"},
        "error_type": {"type": "string"},
        "request_id": {"type": "string"},
        "step": {"type": ["string", "null"]},
        "detail": {"type": "object"},
        "partial": {"type": "object"},
    },
}


def _run(name: str, schema: dict[str, Any], *, streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {}  # events; no schema says what one is
    return {
        "summary": f"Run the graph {name}.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer.", "content": content}, **_problems(*_PROBLEMS)},
    }


def _get(summary: str, *problems: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "summary": summary,
        "responses": {"200": {"description": "It.", "content": content}, **_problems(*problems)},
    }


def _problems(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": _PROBLEMS[status], "content": content} for status in statuses}


def _moved(schema: Any) -> Any:
    """The schema with its references pointing to where OpenAPI keeps definitions."""
    if isinstance(schema, dict):
        return {
            k: v.replace("#/$defs/", "#/components/schemas/") if k == "$ref" else _moved(v) for k, v in schema.items()
        }
    return [_moved(part) for part in schema] if isinstance(schema, list) else schema
