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
        **_of_heads(_outputs(roles, Role.ATTENTION_QUERY), _outputs(roles, Role.ATTENTION_KEY), heads),
    }
    return {name: size for name, size in sizes.items() if size or name == "tied"}


def _of_heads(queries: int, keys: int, heads: int) -> dict[str, float]:
    """Return head_dim and n_kv_heads; what isn't a whole number was not seen rightly, and is left out.

    Where no keys were seen, the outputs of the queries' projection may be keys and values as well.
    """
    if not (queries and keys and heads) or queries % heads:
        return {}
    groups = keys * heads / queries
    several = {"n_kv_heads": groups} if groups and heads % groups == 0 else {}  # latent keys are narrower than queries
    return {"head_dim": queries / heads, **several}


def _outputs(roles: Sequence[Parameter], role: Role) -> int:
    """Return how many outputs of the first layer have a role; 0 where none has.

    Of several matrices in a row the widest counts: one that only feeds another (low rank) is narrower than that.
    """
    found: list[tuple[int | None, int]] = []
    for parameter in roles:
        parts = [parameter.alone(part) for part in parameter.parts] or [parameter]
        found += [(part.layer, part.fan_out) for part in parts if part.role is role and len(part.shape) > 1]
    return max((outputs for layer, outputs in found if layer == found[0][0]), default=0)
