"""Configs: YAML files, shipped configs and mappings, validated into frozen values. No torch.

The names are imported when they are first used: pydantic takes a third of a second, and a command such as
`initdiag --help` needs none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from initdiag.config.config_file import ConfigFile, with_init, with_tokens
    from initdiag.config.init import scheme_of
    from initdiag.config.loading import from_mapping, load, without_model
    from initdiag.config.presets import names as preset_names
    from initdiag.config.presets import path_of as preset_path
    from initdiag.config.schema import Config

__all__ = [
    "Config",
    "ConfigFile",
    "from_mapping",
    "load",
    "preset_names",
    "preset_path",
    "scheme_of",
    "with_init",
    "with_tokens",
    "without_model",
]

_HOMES = {
    "Config": ("schema", "Config"),
    "ConfigFile": ("config_file", "ConfigFile"),
    "from_mapping": ("loading", "from_mapping"),
    "load": ("loading", "load"),
    "preset_names": ("presets", "names"),
    "preset_path": ("presets", "path_of"),
    "scheme_of": ("init", "scheme_of"),
    "with_init": ("config_file", "with_init"),
    "with_tokens": ("config_file", "with_tokens"),
    "without_model": ("loading", "without_model"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    value = getattr(import_module(f"{__name__}.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
