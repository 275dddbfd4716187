"""The user's own nn.Module as a Subject: what it is, its vocabulary, what its config promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from initdiag.errors import RunError, UsageError, require_type
from initdiag.model import Architecture
from initdiag.subjects.declared import VOCABULARY, declared_by, read, text_part
from initdiag.subjects.huggingface import fields_of
from initdiag.subjects.subject import Declared, Subject
from initdiag.subjects.translation import architecture_of

_CONFIGS = "config cfg conf args hparams params model_args model_config".split()
_POSITIONAL = re.compile(r"(^|[._])(w?pe|pos\w*|\w*position\w*|segment\w*|token_?type\w*)([._]|$)", re.IGNORECASE)
_QUANTIZED = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.nn.quantized",
    "bitsandbytes",
    "torchao",
)


def from_module(
    module: nn.Module,
    *,
    forward: Callable[[nn.Module, Tensor], Any] | None = None,
    vocab_size: int = 0,
    name: str = "",
    causal: bool | None = None,
    target: str = "",
    lean: bool = False,
) -> Subject:
    """Make a Subject of a module that has its weights; nothing in it changes.

    Args:
        module: what torch.compile, DataParallel or DistributedDataParallel have wrapped is taken out.
        forward, vocab_size, name, causal: as in `Subject`; 0, "" and None are found out.
        target: what the user typed. lean: some of its parameters are on the meta device, as they should be.

    Raises:
        UsageError: vocab_size can't be found, or is no positive number.
        RunError: a module that can't be looked at: quantized, sharded, scripted, without weights, on two devices.
    """
    require_type("module", module, (nn.Module,), "an nn.Module")
    require_type("vocab_size", vocab_size, (int,), "a whole number")
    if vocab_size < 0:
        raise UsageError(f"vocab_size {vocab_size}: expected at least 1, or 0 to find it in the module")
    module = unwrapped(module)
    name = name or type(module).__name__
    require_supported(module, name, lean)
    declared = _declared(module)
    causal = declared.causal if causal is None else causal
    return Subject(
        module=module,
        forward=forward,
        vocab_size=vocab_size or _vocab_size(module, name),
        name=name,
        causal=causal,
        target=target or name,
        declared=replace(declared, causal=causal),
        likeness=likeness_of(module),
    )


def likeness_of(module: nn.Module) -> Architecture | None:
    """Return the architecture that a class of transformers, or one made of it, computes by its config; None where it
    isn't one, or of a family that isn't known."""
    if not any(kind.__module__.startswith("transformers.models.") for kind in type(module).__mro__):
        return None
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    return architecture_of(fields_of(config))


def unwrapped(module: nn.Module) -> nn.Module:
    """Take a module out of torch.compile, DataParallel and DistributedDataParallel."""
    while True:
        if isinstance(getattr(module, "_orig_mod", None), nn.Module):
            module = module._orig_mod  # type: ignore[assignment]
        elif type(module).__name__ in ("DataParallel", "DistributedDataParallel") and "module" in module._modules:
            module = module._modules["module"]  # type: ignore[assignment]
        else:
            return module


def require_supported(module: nn.Module, name: str, lean: bool = False) -> None:  # noqa: PLR0912 - one branch for each thing that is not supported
    """Check that a module holds ordinary weights.

    Raises:
        RunError: it doesn't; the sentence names the first tensor or submodule that is something else.
    """
    for path, part in module.named_modules():
        at = f"{name}.{path}" if path else name
        kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(part).__mro__]
        if any("FullyShardedDataParallel" in kind or kind.endswith(".FSDPModule") for kind in kinds):
            raise RunError(
                f"{at} is sharded (FSDP), which initdiag can't read; give it the module before it is sharded"
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise RunError(
                f"{at} is a TorchScript module, which can't be traced; give the nn.Module that it was made from"
            )
        if kinds[0].startswith(_QUANTIZED) or "qweight" in part._buffers:
            raise RunError(
                f"{at} is quantized ({type(part).__name__}), and init is not: give the module before quantization"
            )
    tensors = [(path, tensor) for path, tensor in module.named_parameters()]
    if not tensors:
        raise RunError(f"{name} has no parameters, so there is nothing to diagnose")
    for path, tensor in [*tensors, *module.named_buffers()]:
        if tensor.is_quantized:
            raise RunError(f"{name}: '{path}' is quantized, and init is not: give the module before quantization")
        if is_lazy(tensor):
            raise RunError(f"{name}: '{path}' is not initialized yet (a lazy module); run one forward first")
        if type(tensor).__name__ == "DTensor":
            raise RunError(
                f"{name}: '{path}' is sharded (DTensor), which initdiag can't read; give it the unsharded module"
            )
        if tensor.is_meta and not lean:
            raise RunError(
                f"{name}: '{path}' is on the meta device, so it has no weights; build the module on a real device, or "
                f"name its class or factory (model.py:{name}) and let initdiag build it"
            )
    for path, tensor in tensors:
        if tensor.is_quantized or type(tensor).__module__.startswith(_QUANTIZED) or not _is_weight(tensor):
            raise RunError(
                f"{name}: '{path}' is quantized ({str(tensor.dtype).removeprefix('torch.')}), and init is not: "
                f"give the module before quantization"
            )
        if tensor.device != tensors[0][1].device and not lean:
            raise RunError(
                f"{name} is on more than one device: '{tensors[0][0]}' on {tensors[0][1].device}, '{path}' on "
                f"{tensor.device}; move it to one with module.to(...)"
            )


def _is_weight(tensor: Tensor) -> bool:
    """Floats of two bytes or more; int8 and float8 weights are quantized ones."""
    return (tensor.is_floating_point() and tensor.element_size() >= 2) or tensor.is_complex()


def _configs(module: nn.Module) -> Iterator[Any]:
    """Config-like attributes of a module, then of its direct parts (an outer wrapper may have none)."""
    for part in (module, *module.children()):
        for name in _CONFIGS:
            config = getattr(part, name, None)
            if config is not None and not isinstance(config, nn.Module | Tensor) and not callable(config):
                yield config


def _vocab_size(module: nn.Module, name: str) -> int:
    """Find V: in the config, in Hugging Face's input embeddings, in attributes, in the embedding tables."""
    config = getattr(module, "config", None)
    embedding = _input_embeddings(module)
    for found in (read(text_part(config), *VOCABULARY, kinds=int), read(config, *VOCABULARY, kinds=int)):
        if found and found > 0:
            if embedding is not None and found > embedding.num_embeddings:
                raise UsageError(
                    f"{name}: its config says vocab_size {found}, its embedding has {embedding.num_embeddings} rows; "
                    f"give the right one with --vocab-size (vocab_size=)"
                )
            return int(found)
    if embedding is not None:
        return embedding.num_embeddings
    tables = _tables(module)
    for source in (*_configs(module), module):
        found = read(source, *VOCABULARY, kinds=int)
        if found and found > 0 and found <= max(tables, default=found):  # else it counts something else
            return int(found)
    if not tables:
        raise UsageError(
            f"{name}: no vocab_size found, neither in a config nor as an nn.Embedding; give it with --vocab-size "
            f"(vocab_size=)"
        )
    return max(tables)


def _tables(module: nn.Module) -> list[int]:
    """Rows of the embedding tables that can be the vocabulary: not positions, unless by their name all are.

    Of several, those with as many rows as some linear layer has outputs: the head.
    """
    every = [(path, part.num_embeddings) for path, part in module.named_modules() if isinstance(part, nn.Embedding)]
    tables = [rows for path, rows in every if not _POSITIONAL.search(path)] or [rows for _, rows in every]
    widths = {part.out_features for part in module.modules() if isinstance(part, nn.Linear)}
    return [rows for rows in tables if rows in widths] or tables


def _input_embeddings(module: nn.Module) -> nn.Embedding | None:
    get = getattr(module, "get_input_embeddings", None)
    try:
        found = get() if callable(get) else None
    except Exception:  # transformers raises NotImplementedError where a class has none
        return None
    return found if isinstance(found, nn.Embedding) else None


def _declared(module: nn.Module) -> Declared:
    """What the first config-like attribute promises; the context also from the smallest learned table of positions."""
    config = next(_configs(module), None)
    declared = Declared() if config is None else declared_by(config, _causal(module))
    if declared.tied and read(config, "model_type", kinds=str) and not getattr(module, "_tied_weights_keys", True):
        declared = replace(declared, tied=None)  # transformers' default for a class that ties nothing
    context = declared.context or min(_positions(module), default=None)
    return replace(declared, context=context)


def _positions(module: nn.Module) -> Iterator[int]:
    for path, part in module.named_modules():
        if isinstance(part, nn.Embedding) and re.search(r"(^|[._])(pos|wpe)|_pos", path, re.IGNORECASE):
            yield part.num_embeddings
    for path, parameter in module.named_parameters():
        last = path.rpartition(".")[2]
        if re.search(r"^pos|pos_?emb", last, re.IGNORECASE) and parameter.dim() in (2, 3):
            yield max(parameter.shape[:-1])  # (T, d), (1, T, d) or (T, 1, d)


def _causal(module: nn.Module) -> bool | None:
    """What the name of a class of transformers says; None for any other."""
    if not hasattr(module, "get_output_embeddings"):
        return None
    name = type(module).__name__
    if "MaskedLM" in name:
        return False
    lm = (
        "ForCausalLM",
        "LMHeadModel",
        "ForConditionalGeneration",
        "ModelWithLMHead",
        "MTModel",
        "BertGenerationDecoder",
    )
    return True if any(word in name for word in lm) else None
