"""Serve config files: one written for a corpus, checked, and handed to the Serve of a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from engine.errors import InvalidInput, StageDied
from serve.cluster_file import read_documents
from serve.ray_serve.application import GATEWAY, GATEWAY_RESOURCES, deployments_in
from serve.ray_serve.arguments import IMPORT_PATH, ServeArguments
from serve.ray_serve.environment import LOOPBACK
from serve.schema_errors import refuse
from serve.serve_file import check_serve_config

_LOOK_S = 1.0
_ON_HEAD = {"node:__internal_head__": 0.001}  # every Ray has it, on its head only


def config_for(asked: ServeArguments, *, host: str, port: int) -> str:
    """The text of a Serve config that serves a corpus with the ready-made graphs.

    Gateways listen where the front does. When that is the head's loopback, they are kept on the head: the front could
    not reach one elsewhere.
    """
    args = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    application: dict[str, Any] = {"name": "headrace", "route_prefix": "/", "import_path": IMPORT_PATH, "args": args}
    if host in LOOPBACK:
        options = {**GATEWAY_RESOURCES, "resources": _ON_HEAD}
        application["deployments"] = [{"name": GATEWAY, "ray_actor_options": options}]
    config = {
        "proxy_location": "HeadOnly",
        "http_options": {"host": host, "port": port},
        "applications": [application],
    }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return f"# For `headrace deploy` and `serve deploy`; `headrace check-cluster` finds mistakes in it.\n{text}"


def read_config(file: Path) -> dict[str, Any]:
    """A Serve config file's content.

    Raises:
        InvalidInput: It cannot be read or something in it is wrong; all that is.
    """
    documents = read_documents(file)
    if len(documents) > 1:
        raise InvalidInput(f"{file} holds {len(documents)} documents; expected one, a Serve config")
    refuse(file, check_serve_config(documents[0], deployments_in))
    return documents[0]


def submit(config: dict[str, Any], address: str, tell: Callable[[str], None], *, patience_s: float = 600.0) -> None:
    """Hand a config to a cluster and wait until what it describes runs.

    Args:
        config: A checked Serve config.
        address: Of the cluster's dashboard, such as http://127.0.0.1:8265.
        tell: Is given a line whenever something has changed.
        patience_s: Seconds to wait.

    Raises:
        InvalidInput: Nobody answers there.
        StageDied: Serve could not start it, or not in time.
    """
    from ray.dashboard.modules.serve.sdk import ServeSubmissionClient  # noqa: PLC0415 - heavy

    try:
        client = ServeSubmissionClient(address)
        client.deploy_applications(config)
    except (ConnectionError, RuntimeError) as error:
        raise InvalidInput(
            f"no dashboard of a Ray cluster took the config at {address}: {error}; `ray start --head` starts one, and "
            "--address names another"
        ) from error
    deadline, told = time.monotonic() + patience_s, ""
    while time.monotonic() < deadline:
        applications = client.get_serve_details()["applications"]
        states = {name: str(details["status"]) for name, details in applications.items()}
        if (line := ", ".join(f"{name}: {state}" for name, state in states.items())) != told and line:
            tell(told := line)
        if any(state.endswith("FAILED") for state in states.values()):
            raise StageDied("; ".join(str(details["message"]) for details in applications.values()))
        if states and all(state == "RUNNING" for state in states.values()):
            return
        time.sleep(_LOOK_S)
    raise StageDied(f"it did not run within {patience_s:g} s ({told}); `serve status` tells more")
