"""Checks a file that starts a service on a cluster before it costs money, whichever of three kinds it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from engine.errors import InvalidInput
from serve.ray_service_file import check_ray_service
from serve.ray_up_file import check_ray_up
from serve.serve_file import DeploymentsOf, check_serve_config

_SERVE_KEYS = {"applications", "http_options", "grpc_options", "proxy_location", "import_path"}
_KUBERNETES_KEYS = {"apiVersion", "kind"}


def check_cluster_file(path: Path, deployments_of: DeploymentsOf = lambda _: None) -> list[str]:
    """What is wrong with the file, in sentences; nothing for a good one.

    It is recognised by what is in it: a KubeRay RayService (`kind`), perhaps with other objects of Kubernetes in the
    same file; a Ray Serve config (`applications`); else a file for `ray up`.

    Args:
        path: A YAML file.
        deployments_of: See check_serve_config.

    Raises:
        InvalidInput: It cannot be read, or is no YAML with an object.
    """
    documents = read_documents(path)
    if any(_KUBERNETES_KEYS & document.keys() for document in documents):
        return check_ray_service(documents, deployments_of)
    if len(documents) > 1:
        raise InvalidInput(f"{path} holds {len(documents)} documents; only a file for Kubernetes may hold several")
    if _SERVE_KEYS & documents[0].keys():
        return check_serve_config(documents[0], deployments_of)
    return check_ray_up(documents[0])


def read_documents(path: Path) -> list[dict[str, Any]]:
    """The objects in a YAML file, of which there is at least one.

    Raises:
        InvalidInput: It cannot be read, or holds something else.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
    for document in documents or [None]:
        if not isinstance(document, dict):
            raise InvalidInput(
                f"{path} holds a {type(document).__name__}; expected the keys of a cluster, such as provider"
            )
    return documents
