"""What is wrong with a Ray Serve config (`serve deploy FILE`): by Ray's own schema, and in what that lets pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin

from engine.errors import InvalidInput
from serve.ray_serve.arguments import is_ours, read_arguments
from serve.schema_errors import meant, place

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

DeploymentsOf: TypeAlias = Callable[[Mapping[str, Any]], Collection[str] | None]
"""The names of the deployments that an application of a config has, as its mapping in the file (import_path, args)
says; None where it cannot be built here."""

_Path: TypeAlias = tuple[str | int, ...]


def check_serve_config(config: Mapping[str, Any], deployments_of: DeploymentsOf = lambda _: None) -> list[str]:
    """What is wrong with the content of a Serve config, in sentences; nothing for a good one.

    The modules that it names are imported, as `serve deploy` and `serve status` do.

    Args:
        config: Parsed YAML.
        deployments_of: Tells an application's deployments, to find those that the file misspells.
    """
    from ray.serve.schema import ServeDeploySchema  # noqa: PLC0415 - heavy

    found = [*_by_rays_schema(ServeDeploySchema, config, ()), *_unknown(ServeDeploySchema, config, ())]
    applications = () if found else _of_applications(config["applications"], deployments_of)
    return [*found, *_of_address(config.get("http_options")), *applications]


def _by_rays_schema(model: type[BaseModel], value: object, at: _Path) -> Iterator[str]:
    from pydantic import ValidationError  # noqa: PLC0415 - heavy

    try:
        model.model_validate(value)
    except ValidationError as error:
        yield from _told(error, at)
    except (ImportError, AttributeError) as error:  # of a scaling policy that it imports as it reads the file
        yield _unimportable(place(at) or "a policy_function", str(error))


def _told(error: ValidationError, at: _Path) -> Iterator[str]:
    for one in error.errors(include_url=False):
        if one["type"] != "extra_forbidden":  # these are told by _unknown, with what may be meant
            where = place((*at, *one["loc"])) or "the file"
            yield f"{where}: {one['msg'].removeprefix('Value error, ')}"


def _unknown(model: type[BaseModel], value: Mapping[str, Any], at: _Path) -> Iterator[str]:
    """The keys that no field has: Ray ignores them for the sake of newer files, and so ignores typos."""
    known = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for key, inner in value.items():
        here = (*at, key)
        if key not in known:
            yield f"{place(here)} is not known to Ray Serve{meant(str(key), known)}"
            continue
        loose = dict in _classes(known[key])  # Ray takes any mapping there, and reads it as the model only when it runs
        for nested in _models(known[key]):
            for path, part in _mappings(inner, here):
                yield from _by_rays_schema(nested, part, path) if loose else ()
                yield from _unknown(nested, part, path)


def _mappings(value: object, at: _Path) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        yield at, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _mappings(item, (*at, index))


def _classes(annotation: Any) -> set[type]:
    """The classes in an annotation such as Optional[Union[Dict, AutoscalingConfig]] or List[DeploymentSchema]."""
    if get_origin(annotation) is dict or annotation is dict:
        return {dict}
    inside: Iterable[Any] = get_args(annotation)
    if inside:
        return {found for inner in inside for found in _classes(inner)}
    return {annotation} if isinstance(annotation, type) else set()


def _models(annotation: Any) -> list[type[BaseModel]]:
    from pydantic import BaseModel  # noqa: PLC0415 - heavy

    return [found for found in _classes(annotation) if issubclass(found, BaseModel)]


def _of_address(options: object) -> Iterator[str]:
    for key, advice in (("host", "127.0.0.1, or 0.0.0.0 for other machines"), ("port", "such as 8000")):
        if not isinstance(options, Mapping) or key not in options:
            yield f"http_options.{key} is missing; Ray's own choice listens on every interface, so state it: {advice}"


def _of_applications(applications: list[Mapping[str, Any]], deployments_of: DeploymentsOf) -> Iterator[str]:
    for index, application in enumerate(applications):
        at = f"applications[{index}]"
        trouble = _import_trouble(application["import_path"])
        if trouble:
            yield _unimportable(f"{at}.import_path {application['import_path']!r}", trouble)
            continue
        wrong = [f"{at}.{sentence}" for sentence in _of_arguments(application)]
        yield from wrong
        names = [deployment["name"] for deployment in application.get("deployments") or ()]
        known = None if wrong else deployments_of(application)
        for place_of, name in enumerate(names):
            here = f"{at}.deployments[{place_of}].name"
            if names.index(name) != place_of:
                yield f"{here}: {name!r} is there twice; Serve would take one of them"
            elif known is not None and name not in known:
                yield f"{here}: the application has no deployment {name!r}{meant(name, known)}; it has {_listed(known)}"


def _import_trouble(path: str) -> str:
    """Why what Ray calls an import path cannot be imported; empty when it can. Ray has checked its form."""
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        return str(error)
    return ""


def _of_arguments(application: Mapping[str, Any]) -> Iterator[str]:
    """Of headrace's own application, those that it would refuse when it is built."""
    if is_ours(application):
        try:
            read_arguments(application.get("args") or {})
        except InvalidInput as error:
            yield error.message


def _unimportable(what: str, why: str) -> str:
    return f"{what} cannot be imported: {why}; install its package here and on every machine of the cluster"


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:20]) + (", ..." if len(names) > 20 else "")
