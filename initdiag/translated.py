"""A Hugging Face config of a family that is known here, as a config of ours. Its class is not built."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from initdiag.errors import ConfigError, Location, UsageError, printable
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
    from initdiag.subjects.targets import hf_config_file
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
    if request.scheme is not None:
        init = {"scheme": request.scheme}
    file = from_mapping({"model": model, "init": init}, found.name, request.overrides, None)
    return _placed(file, hf_config_file(Path(target)), request)


def _placed(file: ConfigFile, path: Path, request: Request) -> ConfigFile:
    """Let findings point into the config.json: at the std of its matrices, else at its first line."""
    from initdiag.config.yaml import parse  # JSON is YAML, and these have places
    from initdiag.subjects.declared import STD

    try:
        places = parse(path.read_text(encoding="utf-8"), printable(str(path))).locations
    except (ConfigError, OSError):  # as tabs are, which only JSON has; or it changed meanwhile
        places = {(): Location(printable(str(path)), 1)}
    locations: dict[tuple[str | int, ...], Location] = {(): places[()]}
    options = dict(file.options)
    for key in STD:
        if (key,) in places:
            locations["init", "std"] = places[key,]
        if key in request.kwargs:
            options.setdefault(("init", "std"), f"--kwargs {key}")
    return replace(file, locations=locations, options=options)
