"""A Hugging Face config of a family that is known here, as a config of ours. Its class is not built."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from initdiag.errors import UsageError
from initdiag.request import Request

if TYPE_CHECKING:
    from initdiag.config import ConfigFile


def translated(target: Any, request: Request) -> ConfigFile:
    """Read a Hugging Face config as the architecture that its class computes, with the init of that class.

    That is N(initializer_range) for every matrix, and of GPT-2 1/√(2N) of it for what writes into the stream: scheme
    gpt2, or scaled. Another scheme, and what is --set, go before.

    Raises:
        UsageError: the file is wrong, or of a family that isn't known. ConfigError: a --set that doesn't fit.
    """
    from initdiag.config import from_mapping
    from initdiag.subjects.huggingface import load_hf
    from initdiag.subjects.translation import FAMILIES, architecture_of

    found = load_hf(target, request.trust_remote_code, request.kwargs)
    shape, family = architecture_of(found.fields), str(found.fields.get("model_type"))
    if shape is None:
        known = "a variant of it that isn't known" if family in FAMILIES else "a family that isn't known"
        raise UsageError(
            f"{os.fspath(target)}: theory has no architecture for model_type '{family}', {known}; `initdiag check "
            f"{os.fspath(target)}` runs it"
        )
    init: dict[str, Any] = {"scheme": "scaled" if family == "gpt2" else "gpt2"}
    if found.declared.std is not None:
        init["std"] = found.declared.std
    model = shape.model_dump(mode="json", exclude_unset=True)
    name = found.name
    if request.scheme is not None:
        init = {"scheme": request.scheme}
    return from_mapping({"model": model, "init": init}, name, request.overrides, None)
