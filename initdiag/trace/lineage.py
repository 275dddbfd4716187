"""What is known of a tensor during one forward: where it comes from, and whether it is the residual stream.

The residual stream starts where the token ids look up their embedding and lives on through norms, scalings and
additions. A matrix product with a weight leaves it. So an addition of a value *on* the stream and a value that
left this stream is a residual addition, and the one that left is the branch; GELU's x + c·x³, rotary and mask
additions happen wholly off the stream, embedding sums and x0 shortcuts wholly on it. An encoder-decoder has two
streams, one for each look-up; each is a bit of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

MOST_CHAINS = 8  # ways in which one value draws on a packed matrix; with more of them, it is taken to draw on all of it


@dataclass(frozen=True, slots=True)
class Chain:
    """How the outputs of a matrix product, of `shape`, were cut up since: a sequence of view operations.

    first: the row of the weight that the first output belongs to, where a slice of the weight was used.
    """

    shape: tuple[int, ...]
    first: int = 0
    steps: tuple[tuple[Any, tuple[Any, ...], Any, int | None], ...] = ()
    closed: bool = False  # arithmetic came after the last cut


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a sum of branches that is yet to be added to the stream."""

    lineage: Lineage
    value: Tensor
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of one tensor.

    ids: it holds the token ids themselves. from_ids: it descends from them.
    stream: mask of the streams that it *is*, possibly normed or scaled; 0 off the stream.
    roots: mask of the streams that it descends from.
    parameter, flipped: the name of the parameter that it is a function of, and whether its last two axes are swapped.
    stat: a statistic over features, as norms divide by. normed, gain, scaled: passed a norm (with which gain), or a
        multiplication, since the last residual addition or matrix product.
    projection: the weight of the last product since it left the stream. products: how many there were.
    also: other weights that wrote addends of it (experts). inner: the weight of the product before the last.
    mixes: how many products of two activations (attention has two). scores: the operands of such a product, while
        they are attention logits. weights: it is attention weights. cross: it mixed two streams.
    activated: passed a nonlinearity since the last product. routed: a router chose it. convolved: passed a convolution
    over positions since it left the stream (state-space models).
    chains: how it was cut out of the output of the last product. terms: its addends, when it is a sum of branches.
    reads: indices of the reads that it descends from since it left the stream.
    """

    ids: bool = False
    from_ids: bool = False
    stream: int = 0
    roots: int = 0
    parameter: str | None = None
    flipped: bool = False
    stat: bool = False
    normed: bool = False
    gain: str | None = None
    scaled: bool = False
    projection: str | None = None
    also: frozenset[str] = frozenset()
    inner: str | None = None
    products: int = 0
    mixes: int = 0
    scores: tuple[Lineage, Lineage] | None = None
    weights: bool = False
    cross: bool = False
    activated: bool = False
    routed: bool = False
    convolved: bool = False
    chains: tuple[Chain, ...] = ()
    terms: tuple[Term, ...] = ()
    reads: frozenset[int] = frozenset()

    @property
    def left(self) -> bool:
        """It left a stream."""
        return self.roots != 0 and not self.stream

    @property
    def attention(self) -> bool:
        return self.mixes >= 2

    @property
    def kind(self) -> str:
        """The kind of a branch that ends here."""
        if self.attention:
            return "cross_attention" if self.cross else "attention"
        if self.routed:
            return "moe"
        if self.convolved:
            return "other"
        return "mlp" if self.products >= 2 else "other"


NOTHING = Lineage()
TOKEN_IDS = Lineage(ids=True, from_ids=True)

# Ops that hand on their first input: the same values under another shape, type or name.
VIEWS = frozenset(
    "view _unsafe_view reshape t transpose permute unsqueeze squeeze expand slice select split split_with_sizes "
    "unbind chunk narrow unsafe_split unsafe_chunk movedim swapaxes swapdims flatten unflatten view_as unfold "
    "as_strided _reshape_alias numpy_T mT adjoint diagonal tensor_split".split()
)
COPIES = frozenset(
    "clone contiguous detach alias _to_copy to native_dropout dropout lift_fresh _conj roll flip "
    "constant_pad_nd resolve_conj resolve_neg view_as_complex view_as_real _unsafe_masked_index repeat "
    "repeat_interleave tile triu tril native_channel_shuffle".split()
)
# Ops that leave a stream on the stream: sums, scalings, and what norms are made of.
ARITHMETIC = frozenset(
    "add sub rsub mul div neg pow square sqrt rsqrt mean sum var var_mean std std_mean reciprocal abs amax amin max "
    "clamp clamp_min clamp_max maximum minimum native_layer_norm _fused_rms_norm stack cat where masked_fill getitem "
    "linalg_vector_norm norm addcmul addcdiv lerp cumsum copy index_put slice_scatter".split()
)
STATISTICS = frozenset("mean sum var var_mean std std_mean linalg_vector_norm norm amax".split())
NORMS = frozenset(("native_layer_norm", "_fused_rms_norm"))
PRODUCTS = frozenset("mm addmm bmm baddbmm mv addmv _grouped_mm convolution _scaled_mm".split())
FUSED_BIAS = frozenset("addmm baddbmm addmv".split())
LOOKUPS = frozenset("embedding index_select index gather take embedding_bag _embedding_bag".split())
ADDITIONS = frozenset("add sub rsub addcmul lerp".split())
SOFTMAXES = frozenset("_softmax _safe_softmax softmax".split())
ACTIVATIONS = frozenset(
    "gelu silu relu sigmoid tanh hardswish hardsigmoid leaky_relu softplus elu mish erf exp hardtanh relu6 celu selu "
    "threshold log_sigmoid_forward glu square pow _softmax".split()
)
