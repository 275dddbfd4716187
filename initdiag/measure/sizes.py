"""What the formulas of a scheme may use, read off one forward of a module."""

from __future__ import annotations

from collections.abc import Sequence

from initdiag.measure.values import Branch, Wiring
from initdiag.schemes import Parameter, Role


def sizes_seen(
    roles: Sequence[Parameter], branches: Sequence[Branch], wiring: Wiring, heads: int, vocab_size: int
) -> dict[str, float]:
    """Return the sizes of a module, those of which nothing was seen left out.

    n_layers is half the number of branches, since formulas have 2N branches in N layers; `heads` is how many the first
    attention has, 0 where none was seen.
    """
    sizes = {
        "n_layers": max(1, len(branches)) / 2,
        "d_model": float(wiring.d_model),
        "vocab_size": float(vocab_size),
        "tied": float(wiring.tied),
        "n_heads": float(heads),
        "d_ff": float(next((one.fan_in for one in roles if one.role is Role.MLP_OUT), 0)),
    }
    outputs = {role: _outputs(roles, role) for role in (Role.ATTENTION_QUERY, Role.ATTENTION_KEY)}
    if heads and (queries := outputs[Role.ATTENTION_QUERY]) % heads == 0:
        sizes["head_dim"] = queries / heads
        sizes["n_kv_heads"] = outputs[Role.ATTENTION_KEY] * heads / queries if queries else 0.0
    return {name: size for name, size in sizes.items() if size or name == "tied"}


def _outputs(roles: Sequence[Parameter], role: Role) -> int:
    """Return how many outputs of the first layer have a role; 0 where none has."""
    for parameter in roles:
        parts = [parameter.alone(part) for part in parameter.parts] or [parameter]
        for part in parts:
            if part.role is role and len(part.shape) > 1:
                return part.fan_out
    return 0
