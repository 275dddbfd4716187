"""A Hugging Face config.json as a model: which class it is, and what it promises. Nothing is downloaded.

The file is read and checked for remote code before transformers, and with it torch, is imported.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from initdiag.errors import RunError, UsageError, as_typed, printable
from initdiag.memory import require_room
from initdiag.subjects.config_fields import config_from, place
from initdiag.subjects.declared import declared_by, read, text_part
from initdiag.subjects.frames import failing_line, first_line
from initdiag.subjects.quiet import import_transformers, quiet
from initdiag.subjects.subject import Declared
from initdiag.subjects.targets import hf_config_file

_LISTS = {  # how a class is called by transformers' own tables
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
LARGE = 10**9  # parameters, from which the memory is looked at before it is taken
_EXPECTED = "a causal, masked or sequence-to-sequence language model, such as gpt2, bert or t5"
_DROPPED = ("quantization_config", "attn_implementation", "_attn_implementation", "experts_implementation")


@dataclass(frozen=True)
class HuggingFace:
    """What a config says: the folder's name (or the file's, where it isn't config.json), vocab_size, what is declared,
    and a function that builds the module with the class's own init in torch's default dtype. large: it may have a
    billion parameters or more. fields: of the config, its text part where it has several.
    """

    name: str
    vocab_size: int
    declared: Declared
    build: Callable[[], Any]
    large: bool
    fields: Mapping[str, Any] = field(default_factory=dict)


def load_hf(
    target: Path | str, trust_remote_code: bool = False, kwargs: Mapping[str, Any] | None = None
) -> HuggingFace:
    """Read a config and find its class.

    Args:
        target: a config.json or its folder. trust_remote_code: whether code that the config names may be imported,
            from the folder or from the cache of the Hugging Face hub. kwargs: fields to set in its place; of a
            composite config {"text_config": {…}}.

    Quantization is left out: it comes after the init.

    Raises:
        UsageError: the file, a field, or what is asked in kwargs. RunError: from build(), the class can't be built.
    """
    file = hf_config_file(Path(target))
    raw, text = _read(file)
    shown = as_typed(file)
    named = _code_named(raw)
    if named and not trust_remote_code:
        raise UsageError(
            f"{place(shown, text, 'auto_map')}: this model runs code that comes with it ({printable(named)[:100]}); "
            f"read it, then allow it with --trust-remote-code, or remove auto_map where transformers' own class will do"
        )
    _need_transformers(shown)
    remote = bool(named)
    if remote and file.name != "config.json":
        raise UsageError(
            f"{shown}: transformers looks for a model's own code beside a file that is called config.json; rename it"
        )
    for key in _DROPPED:
        raw.pop(key, None)
    config = _remote_config(file, kwargs or {}) if remote else config_from(raw, dict(kwargs or {}), shown, text)
    auto, cls = _class_of(config, raw, shown, remote)
    size = read(text_part(config), "vocab_size", kinds=int) or read(config, "vocab_size", kinds=int) or 0
    if size < 1:
        raise UsageError(f"{shown}: {type(config).__name__} has no vocab_size; give it with --kwargs")
    declared = declared_by(config, causal=auto != "AutoModelForMaskedLM")
    if not getattr(cls, "_tied_weights_keys", True) and "tie_word_embeddings" not in {**raw, **(kwargs or {})}:
        declared = replace(declared, tied=None)  # nobody wrote it, and the class ties nothing
    name = printable(file.resolve().parent.name if file.stem == "config" else file.stem)
    title = getattr(cls, "__name__", auto)

    def build() -> Any:
        import torch
        import transformers

        try:
            with quiet():
                options = {"trust_remote_code": True} if remote else {}
                factory = getattr(transformers, auto).from_config if cls is None else cls._from_config
                return factory(copy.deepcopy(config), dtype=torch.get_default_dtype(), **options if cls is None else {})
        except (RunError, torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            if "memory" in str(error) and isinstance(error, RuntimeError):
                raise
            where = failing_line(error)
            raise RunError(f"{shown}: {title} can't be built from it: {first_line(error)} ({where})") from error

    return HuggingFace(name, size, declared, build, _is_large(config), fields_of(config))


def fields_of(config: Any) -> dict[str, Any]:
    """Return the fields of a config as `translation.architecture_of` reads them, of a composite one its text part."""
    text = text_part(config)
    if text is config:
        return dict(config.to_dict())
    return {**text.to_dict(), "tie_word_embeddings": getattr(config, "tie_word_embeddings", None)}


def require_fits(found: HuggingFace, lean: bool) -> None:
    """Count the parameters of a large model that is to be built with all of them: without memory, to that end.

    Raises:
        RunError: they don't fit in memory.
    """
    if lean or not found.large:
        return
    import torch

    with torch.device("meta"):
        needed = sum(parameter.numel() for parameter in found.build().parameters())
    dtype = torch.get_default_dtype()
    instead = "Use --engine weightless, or fewer layers, as with --kwargs '{\"num_hidden_layers\": 2}'"
    require_room(found.name, needed * dtype.itemsize, str(dtype).removeprefix("torch."), "cpu", instead)


def _is_large(config: Any) -> bool:
    """Whether a model may have a billion parameters or more, by its table and the blocks of its widths."""
    part = text_part(config)
    width = read(part, "hidden_size", "n_embd", "d_model", kinds=int) or 0
    layers = read(part, "num_hidden_layers", "n_layer", "num_layers", kinds=int) or 1
    experts = read(part, "num_local_experts", "n_routed_experts", "num_experts", kinds=int) or 1
    size = read(part, "vocab_size", kinds=int) or 0
    return width * (size + 12 * layers * experts * width) > LARGE


def _read(file: Path) -> tuple[dict[str, Any], str]:
    shown = as_typed(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{shown}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown}: byte {error.start} is not UTF-8 text") from error
    except RecursionError as error:
        raise UsageError(f"{shown}: nested too deeply to be a config") from error
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror or error}") from error
    if not isinstance(raw, dict):
        raise UsageError(f'{shown}: found a {type(raw).__name__}, expected a mapping with "model_type"')
    return raw, text


def _code_named(raw: Any) -> str:
    """Return the first code that a config names in an auto_map, also of a part of it; "" where there is none."""
    if not isinstance(raw, dict):
        return ""
    if raw.get("auto_map"):
        return next((str(value) for value in _mapping(raw["auto_map"]).values()), "an auto_map")
    return next((named for named in map(_code_named, raw.values()) if named), "")


def _need_transformers(shown: str) -> None:
    try:
        import_transformers()
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "transformers":
            raise UsageError(f"{shown} needs transformers: pip install 'initdiag[hf]'") from error
        raise UsageError(f"{shown}: transformers can't be imported: {first_line(error)}") from error


def _class_of(config: Any, raw: dict[str, Any], shown: str, remote: bool) -> tuple[str, Any]:
    """Return the auto class of a language model and its class, None where that is remote code.

    What the file calls its architecture decides between several; else an encoder-decoder is one, and a model that
    transformers has as a masked one is that unless is_decoder is set.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    if remote:
        names = [auto for auto in _LISTS if auto in _mapping(raw["auto_map"])]
        if names:
            return names[0], None
    kind = config.model_type
    found = {auto: getattr(modeling_auto, table).get(kind) for auto, table in _LISTS.items()}
    architecture = next(iter(_strings(raw.get("architectures"))), "")
    both_ways = bool(getattr(config, "is_encoder_decoder", False))
    order = ["AutoModelForSeq2SeqLM"] if both_ways else ["AutoModelForMaskedLM", "AutoModelForCausalLM"]
    if not both_ways and getattr(config, "is_decoder", False):
        order.reverse()
    named = [auto for auto, name in found.items() if name == architecture and not (both_ways and "Masked" in auto)]
    for auto in [*named, *order]:
        if found[auto]:
            with quiet():
                cls = getattr(transformers, found[auto])
            if getattr(cls, "main_input_name", "input_ids") == "input_ids":
                return auto, cls
    what = f"is for {printable(architecture)}" if architecture else f"has model_type {kind}"
    part = text_part(config)
    hint = ""
    if part is not config and getattr(modeling_auto, _LISTS["AutoModelForCausalLM"]).get(part.model_type):
        hint = f"; its text part is one ({part.model_type}): save its text_config as a config.json of its own"
    raise UsageError(f"{shown} {what}, which reads no token ids alone; expected {_EXPECTED}{hint}")


def _remote_config(file: Path, kwargs: Mapping[str, Any]) -> Any:
    """Let transformers import the config class that a folder brings along: only after --trust-remote-code."""
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(str(file.parent), trust_remote_code=True, local_files_only=True, **kwargs)
    except Exception as error:
        where = failing_line(error)
        raise UsageError(
            f"{as_typed(file)}: its own code fails: {first_line(error)}{where and f' ({where})'}"
        ) from error


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _strings(value: Any) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
