"""What an embedder is, read off its files: enough to make or check a corpus without loading weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import InvalidInput
from operators.models.embedder import EmbedderConfig, identity_of
from operators.models.model_files import model_folder


def embedder_identity(config: EmbedderConfig) -> tuple[str, int]:
    """Identity and dimension of a model, equal to those of the opened `Embedder`.

    Raises:
        InvalidInput: There is no such model, or its files do not tell the dimension of its vectors.
    """
    folder = model_folder(config.model)
    prompts = _json(folder / "config_sentence_transformers.json").get("prompts") or {}
    return identity_of(folder, config, prompts), _dimension(folder, config.model)


def _dimension(folder: Path, model: str) -> int:
    """What the last module that sets the length of vectors says; without modules, the transformer's hidden size."""
    for module in reversed(_modules(folder)):
        config = _json(folder / module / "config.json")
        for key in ("out_features", "word_embedding_dimension", "embedding_dimension", "hidden_size"):
            if isinstance(config.get(key), int):
                return int(config[key])
    raise InvalidInput(
        f"embedder.model {model!r}: the files in {folder} do not tell the dimension of its vectors; "
        "give the folder of a sentence-transformers model"
    )


def _modules(folder: Path) -> list[str]:
    listed = _json(folder / "modules.json")
    return [str(m["path"]) for m in listed] if isinstance(listed, list) else [""]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
