"""Their module and ours with the same numbers in them, and the tools to turn one state dict into the other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from initdiag.model import Architecture
from initdiag.model.transformer import Transformer
from initdiag.subjects.quiet import quiet
from tests.parity.family import Family

torch.set_num_threads(1)  # tensors this small only wait for a second thread

B, T = 2, 24


# --- for Family.ours


def renamed(state: Mapping[str, Tensor], blocks: str, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename a state dict: with names {"mlp.fc1": "mlp.input"}, "model.layers.2.mlp.fc1.weight" becomes
    "blocks.2.mlp.input.weight".

    blocks: what stands before the number of a layer, "model.layers". names: theirs -> ours, inside a layer or outside,
    without .weight and .bias. A name that isn't there is an error.
    """
    ours = {}
    for name, tensor in state.items():
        block = re.match(re.escape(blocks) + r"\.(\d+)\.", name)
        part, _, last = name[block.end() if block else 0 :].rpartition(".")
        ours[(f"blocks.{block[1]}." if block else "") + f"{names[part]}.{last}"] = tensor
    return ours


def apart(
    state: Mapping[str, Tensor], packed: str, names: tuple[str, ...], cut: Callable[[Tensor], tuple[Tensor, ...]]
) -> dict[str, Tensor]:
    """Cut packed tensors: those of a module `packed` become several, of modules with other names beside it."""
    parted = {}
    for name, tensor in state.items():
        path, _, last = name.rpartition(".")
        if path.endswith(f".{packed}"):
            for part, piece in zip(names, cut(tensor), strict=True):
                parted[f"{path.removesuffix(packed)}{part}.{last}"] = piece
        else:
            parted[name] = tensor
    return parted


def without(state: Mapping[str, Tensor], *names: str) -> dict[str, Tensor]:
    """Leave second names of a tied tensor away."""
    missing = set(names) - set(state)
    assert not missing, f"{missing} isn't in their state dict"
    return {name: tensor for name, tensor in state.items() if name not in names}


# --- the two modules


@dataclass(frozen=True)
class Pair:
    """Their module and ours, in float64, with the same weights, and the ids (B, T) that both read."""

    theirs: Any
    ours: Transformer
    ids: Tensor


@cache
def pair(family: Family) -> Pair:
    with quiet():
        theirs = shaken(family, family.theirs().double().eval())
    own = {name: tensor.clone() for name, tensor in ours_of(family, theirs).items()}
    return Pair(theirs, copied(family.model, own), ids(family))


def held(family: Family, theirs: nn.Module) -> list[Tensor]:
    """Return what ours has as parameters: theirs, and the choice biases that theirs keeps as buffers."""
    moe = family.model.get("moe") or {}
    biases = [x for name, x in theirs.named_buffers() if name.endswith("correction_bias")]
    return [*theirs.parameters(), *(biases if moe.get("choice_bias") else ())]


def ids(family: Family) -> Tensor:
    return torch.randint(family.model["vocab_size"], (B, T), generator=torch.Generator().manual_seed(1))


def shaken(family: Family, theirs: nn.Module) -> nn.Module:
    """Fill every parameter with its own numbers, so that no two of them can be taken for one another.

    A vector that their init fills with one number is put around it: norms around 1, those of the form 1 + w and biases
    around 0. Matrices have a std of 1/√columns, which leaves the hidden layers with values of about 1.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in held(family, theirs):
            flat = parameter.dim() == 1
            around = float(parameter[0]) if flat and bool((parameter == parameter[0]).all()) else 0.0
            spread = 0.3 if flat else 1 / math.sqrt(parameter.shape[-1])
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(around + spread * noise)
    return theirs


def ours_of(family: Family, theirs: nn.Module) -> dict[str, Tensor]:
    """Turn their weights into ours; every number of theirs must be used, and used once."""
    ours = family.ours(theirs.state_dict())
    numbers = [
        torch.cat([part.detach().reshape(-1) for part in parts]).sort().values
        for parts in (held(family, theirs), list(ours.values()))
    ]
    assert torch.equal(*numbers), "their numbers aren't those of our state dict"
    return ours


def copied(model: Mapping[str, Any], state: Mapping[str, Tensor]) -> Transformer:
    """Build our model on these weights, which it then shares.

    Raises:
        RuntimeError: names or shapes of the parameters aren't those of `state`; nothing is broadcast.
    """
    with torch.device("meta"):
        module = Transformer(shape_of(model)).eval()
    module.load_state_dict(dict(state), strict=True, assign=True)
    return module


def shape_of(model: Mapping[str, Any]) -> Architecture:
    """Read the model section of a config, which has lists where an Architecture has tuples."""
    return Architecture.model_validate_json(json.dumps(dict(model)))


@torch.no_grad()
def their_logits(theirs: Any, tokens: Tensor, attention: str = "eager") -> Tensor:
    with quiet():
        theirs.config._attn_implementation = attention  # what every one of their attentions asks in its forward
        logits: Tensor = theirs(tokens, use_cache=False).logits
    return logits


@torch.no_grad()
def our_logits(ours: Transformer, tokens: Tensor) -> Tensor:
    logits: Tensor = ours(tokens)
    return logits
