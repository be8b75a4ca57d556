"""Which device a model runs on."""

from __future__ import annotations

from engine.errors import InvalidInput


def torch_device(name: str, setting: str) -> str:
    """The device that "auto" stands for (CUDA, then Apple's MPS, then the CPU), or the one that was named, tried out.

    Args:
        name: "auto", or a name that torch knows, such as "cuda:1".
        setting: What is at fault when torch cannot use it, such as "embedder.device".

    Raises:
        InvalidInput: torch cannot use the device here.
    """
    import torch  # noqa: PLC0415 - heavy

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch built without CUDA asserts
        raise InvalidInput(f'{setting} is {name!r}, which torch cannot use here ({error}); say "auto"') from error
    return name
