"""Kubernetes' own schemas, which the package kubernetes-validate brings, for checks without a cluster."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from serve.schema_errors import errors_in, meant

if TYPE_CHECKING:
    from referencing import Registry

VERSION = "1.34"
"""Of the schemas that are used: old enough for the clusters that there are, and a field that is in is in newer ones."""
URN = "urn:kubernetes"
"""What a schema refers to them by: urn:kubernetes#/$defs/io.k8s.api.core.v1.Pod."""

_QUANTITY = {  # the package's takes any text; a cluster takes this pattern (apimachinery, resource.Quantity)
    "type": ["string", "number"],
    "minimum": 0,
    "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
    "description": "a quantity such as 4, 500m or 16Gi",
}


@cache
def definitions() -> dict[str, Any] | None:
    """The schemas by name, such as io.k8s.api.core.v1.Pod, unknown keys refused; None without the package."""
    try:
        folder = files("kubernetes_validate")
    except ModuleNotFoundError:
        return None
    file = folder / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict" / "_definitions.json"
    if not file.is_file():
        return None
    content: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return {**content["$defs"], "io.k8s.apimachinery.pkg.api.resource.Quantity": _QUANTITY}


@cache
def registry() -> Registry[Any]:
    """What resolves a reference to `URN`; without the package, to schemas that take everything."""
    from referencing import Registry  # noqa: PLC0415 - the other commands need none
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    known = definitions()
    content = {"$defs": defaultdict(dict) if known is None else known}
    holding: Registry[Any] = Registry().with_resource(URN, DRAFT202012.create_resource(content))
    return holding


def check_object(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object of Kubernetes' own, such as a ConfigMap; nothing with one of somebody else's."""
    group, _, version = str(content.get("apiVersion")).rpartition("/")
    kind, known = content.get("kind"), definitions() or {}
    family = f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}."
    kinds = [name.removeprefix(family) for name in known if name.startswith(family)]
    if kind in kinds:
        return errors_in(content, {"$ref": f"{URN}#/$defs/{family}{kind}"}, registry())
    if known and (kinds or "." not in group):
        where = f"{kind} in apiVersion {content.get('apiVersion')}"
        return [f"Kubernetes {VERSION} has no kind {where}{meant(str(kind), kinds)}"]
    return []
