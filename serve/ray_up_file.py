"""What is wrong with a file for `ray up`: by Ray's own schema, and in what that lets pass."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from serve.ray_serve.environment import MODE
from serve.schema_errors import meant

# Parameters of EC2's RunInstances and fields of Compute Engine's instances that Ray hands on as they are.
_NODE_CONFIG = {
    "aws": """
        BlockDeviceMappings CapacityReservationSpecification CpuOptions CreditSpecification DisableApiTermination
        EbsOptimized EnclaveOptions HibernationOptions IamInstanceProfile ImageId InstanceInitiatedShutdownBehavior
        InstanceMarketOptions InstanceType Ipv6AddressCount KeyName LaunchTemplate MaxCount MetadataOptions MinCount
        Monitoring NetworkInterfaces Placement PrivateDnsNameOptions SecurityGroupIds SecurityGroups SubnetId SubnetIds
        TagSpecifications UserData""",
    "gcp": """
        acceleratorType canIpForward confidentialInstanceConfig disks guestAccelerators labels machineType metadata
        minCpuPlatform networkConfig networkInterfaces runtimeVersion scheduling schedulingConfig serviceAccounts
        shieldedInstanceConfig sourceMachineImage tags""",
}
_MACHINE = {"aws": ("InstanceType",), "gcp": ("machineType", "acceleratorType")}
_PLACE = {"aws": ("region",), "gcp": ("region", "availability_zone", "project_id"), "azure": ("location",)}
_GPU_MACHINE = {"aws": re.compile(r"(g[0-9]|p[0-9])"), "gcp": re.compile(r"(a[23]|g[24])-")}


def check_ray_up(config: Mapping[str, Any]) -> list[str]:
    """What is wrong with the content of a file for `ray up`, in sentences; nothing for a good one."""
    return [*_by_rays_schema(config), *_stricter(config)]


def _by_rays_schema(config: Mapping[str, Any]) -> Iterator[str]:
    from jsonschema import ValidationError  # noqa: PLC0415 - heavy, as the next
    from ray.autoscaler._private.util import prepare_config, validate_config  # noqa: PLC0415

    try:
        validate_config(prepare_config(copy.deepcopy(config)))
    except ValidationError as error:
        place = ".".join(map(str, error.absolute_path)) or "the file"
        yield f"{place}: {error.message}"
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        NotImplementedError,
    ) as error:  # what it raises at oddities
        yield f"Ray refuses the file: {error}"


def _stricter(config: Mapping[str, Any]) -> Iterator[str]:
    provider = config.get("provider")
    kind = provider.get("type") if isinstance(provider, dict) else None
    if not isinstance(provider, dict) or kind not in _PLACE:
        return
    for key in _PLACE[kind]:
        if not provider.get(key):
            yield f"provider.{key} is missing; {kind} needs it"
    types = config.get("available_node_types")
    for name, node_type in types.items() if isinstance(types, dict) else ():
        if isinstance(node_type, dict):
            yield from _of_node_type(name, node_type, kind)
    yield from _of_start(config)


def _of_node_type(name: str, node_type: Mapping[str, Any], kind: str) -> Iterator[str]:
    at, machine = f"available_node_types.{name}", node_type.get("node_config") or {}
    known = _NODE_CONFIG.get(kind, "").split()
    for key in machine if known else ():
        if key not in known:
            yield f"{at}.node_config.{key} is no field of {kind}'s{meant(key, known)}"
    wanted = _MACHINE.get(kind, ())
    if wanted and not any(machine.get(key) for key in wanted):
        yield f"{at}.node_config names no machine: {' or '.join(wanted)} is missing"
    low, high = node_type.get("min_workers", 0), node_type.get("max_workers")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        yield f"{at}: min_workers is {low}, more than max_workers, {high}"
    chosen = next((str(machine[key]) for key in wanted if machine.get(key)), "")
    gpus = (node_type.get("resources") or {}).get("GPU")
    looks = kind in _GPU_MACHINE and _GPU_MACHINE[kind].match(chosen) is not None
    if looks and gpus == 0:
        yield f"{at}: {chosen} has GPUs and resources say none; nothing would use them"
    if gpus and chosen and kind in _GPU_MACHINE and not looks and not machine.get("guestAccelerators"):
        yield f"{at}: resources promise GPU: {gpus} and {chosen} has none; actors would wait for ever"


def _of_start(config: Mapping[str, Any]) -> Iterator[str]:
    """Of the commands that start Ray: what they must set."""
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for command in config.get(key) or ():
            if not isinstance(command, str) or "ray start" not in command:
                continue
            if "RAY_AUTH_MODE=token" not in command:
                yield f"{key}: {command!r} leaves authentication to chance; put RAY_AUTH_MODE=token before ray start"
            if "headrace environment" not in command and any(name not in command for name in MODE):
                yield (
                    f"{key}: {command!r} does not put Ray Serve into headrace's mode; put "
                    f'eval "$(headrace environment)"; before ray start'
                )
