"""What is known of a tensor during one forward: where it comes from, and whether it is the residual stream.

The residual stream starts where the token ids look up their embedding and lives on through norms, scalings and
additions. A matrix product with a weight leaves it. So an addition of a value *on* the stream and a value that
left it is a residual addition, and the one that left is the branch; GELU's x + c·x³, rotary and mask additions
happen wholly off the stream, and embedding sums wholly on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Lineage:
    """The history of one tensor.

    from_ids: it descends from the token ids.
    on_stream: it is the stream, or the stream normed or scaled; it never passed a product with a weight.
    parameter: its name, when it is a parameter or a view of one.
    projection: the weight of the last product that it passed since it left the stream.
    products, attention: how many products, and whether attention, it passed since it left the stream.
    """

    from_ids: bool = False
    on_stream: bool = False
    parameter: str | None = None
    projection: str | None = None
    products: int = 0
    attention: bool = False

    @property
    def kind(self) -> str:
        """The kind of a branch that ends here: attention, mlp or other."""
        if self.attention:
            return "attention"
        return "mlp" if self.products >= 2 else "other"


TOKEN_IDS = Lineage(from_ids=True)
STREAM = Lineage(from_ids=True, on_stream=True)

# Ops that hand on their first input: the same values under another shape, type or name.
SAME_VALUES = frozenset(
    "view _unsafe_view reshape t transpose permute unsqueeze squeeze expand clone contiguous detach alias _to_copy to "
    "slice select split split_with_sizes unbind chunk narrow native_dropout dropout lift_fresh".split()
)
# Ops that leave a stream on the stream: sums, scalings, and what norms are made of.
STREAM_ARITHMETIC = frozenset(
    "add add_ sub sub_ mul mul_ div div_ neg pow sqrt rsqrt mean sum var var_mean std std_mean reciprocal "
    "native_layer_norm _fused_rms_norm stack cat where getitem linalg_vector_norm".split()
)
PRODUCTS = frozenset("mm addmm bmm baddbmm _grouped_mm".split())
LOOKUPS = frozenset("embedding index_select index".split())
ADDITIONS = frozenset(("add", "add_"))


def descend(operation: str, parents: Iterable[Lineage]) -> Lineage:
    """Return the lineage of what an operation makes of its inputs (in order, parameters included)."""
    parents = tuple(parents)
    if not parents or operation.endswith("_like") or operation.startswith("new_"):
        return Lineage()  # zeros_like, new_empty, … take a shape, and none of the values
    if operation in SAME_VALUES:
        return parents[0]
    from_ids = any(parent.from_ids for parent in parents)
    if operation in LOOKUPS:
        return STREAM if from_ids and any(parent.parameter for parent in parents) else Lineage(from_ids=from_ids)
    left = [parent for parent in parents if parent.from_ids and not parent.on_stream]
    on_stream = any(parent.on_stream for parent in parents)
    if operation in STREAM_ARITHMETIC and on_stream and not left:
        return STREAM
    if operation in PRODUCTS:
        weight = next((parent.parameter for parent in reversed(parents) if parent.parameter), None)
        if weight is not None:
            return Lineage(
                from_ids=from_ids,
                projection=weight,
                products=1 + max((parent.products for parent in left), default=0),
                attention=any(parent.attention for parent in left),
            )
    return Lineage(
        from_ids=from_ids,
        projection=next((parent.projection for parent in reversed(left) if parent.projection), None),
        products=max((parent.products for parent in left), default=0),
        attention=any(parent.attention for parent in left),
    )
