"""The parameters that schemes have, as fields of `init:`. Every scheme takes its own of them and refuses the others."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from initdiag.config.fields import Cut, NotNegative, Positive, Section, Size, Word


def _field(description: str) -> Any:
    """Return a field that is left to the scheme unless it is given."""
    return Field(default=None, description=description)


class NamedScheme(Section):
    """A scheme by its name."""

    scheme: str = Field(
        default="gpt2", description="name of an init scheme; custom: nothing but what roles says, norms 1 and biases 0"
    )


class SchemeFields(NamedScheme, defer_build=True):  # Init alone validates: it builds these fields once more
    """Numbers, or formulas in quotes of the sizes of the model and the parameters before them; and words."""

    std: Positive | None = _field("std of matrices and embeddings; default: the scheme's own")
    residual_std: Positive | None = _field("std of the residual projections; default: the scheme's own formula")
    embedding_std: NotNegative | None = _field("std of embeddings; default: the scheme's own")
    position_std: NotNegative | None = _field("std of the position embedding; default: the scheme's own")
    head_std: NotNegative | None = _field("std of an untied head; default: the scheme's own")
    router_std: NotNegative | None = _field("std of routers; default: the scheme's own")
    cut: Cut | None = _field("where truncated normals are cut, in sigmas; default: the scheme's own")
    gain: NotNegative | None = _field("factor of the matrices or of the branches; default: the scheme's own")
    residual_gain: NotNegative | None = _field("gain of the residual projections; default: the scheme's own formula")
    key_dim: Size | None = _field("T5, MaxText: size of a head, by which queries are drawn smaller; default: head_dim")
    branches: Positive | None = _field("residual branches of a layer, by whose number they are scaled")
    base_width: Size | None = _field("d_model of the small model that was tuned (muP)")
    base_depth: Size | None = _field("n_layers of the small model that was tuned (CompleteP)")
    width_multiplier: Positive | None = _field("m of muP; default: d_model / base_width")
    attention_multiplier: Positive | None = _field("attention logits are query · key times this / head_dim")
    output_multiplier: Positive | None = _field("the forward pass multiplies logits by it, beside 1 / m")
    embed_scale: Positive | None = _field("embeddings are drawn as much smaller; set embedding_multiplier to it")
    embedding_scale: Positive | None = _field("the forward pass multiplies embeddings by it")
    input_alpha: Positive | None = _field("the forward pass multiplies embeddings by it (muP as in nanoGPT-mup)")
    output_alpha: Positive | None = _field("the forward pass multiplies logits by it, beside 1 / m")
    depth_scale: Positive | None = _field("every branch is multiplied by it / sqrt(n_layers) (MiniCPM)")
    alpha: NotNegative | None = _field("of DeepNorm, the multiplier of the stream; of CompleteP, the exponent of depth")
    beta: NotNegative | None = _field("DeepNorm: the factor of value, output and MLP matrices")
    gamma: NotNegative | None = _field("Sub-LN: the factor of value, output and MLP matrices")
    omega: Positive | None = _field("Admin: the multiplier of the stream")
    scale: NotNegative | None = _field("T-Fixup: the factor of embeddings, value, output and MLP matrices")
    residual_alpha: Positive | None = _field("u-muP: size of the branches against the embedding")
    attention_ratio: Positive | None = _field("u-muP: size of attention branches against MLP branches")
    mlp_alpha: Positive | None = _field("u-muP: size of MLP branches; default: from the two before it")
    attention_alpha: Positive | None = _field("u-muP: size of attention branches; default: from the two before it")
    attention_gain: Positive | None = _field("u-muP: makes up for the spread that attention takes away")
    activation_gain: Positive | None = _field("u-muP: makes up for the spread that the activation takes away")
    depth: Word | None = _field("what the residual scaling counts: total, all layers; layer, those up to this one")
    factor: Word | None = _field("lingua: what residual projections are divided by")
    mlp: Word | None = _field("OLMo-core: whether the MLPs are dense or experts, whose gates are scaled as well")
    readout: Word | None = _field("muP: whether the head is zero or normal")
    query: Word | None = _field("muP: whether queries are zero or normal")


WORDS = tuple(name for name, field in SchemeFields.model_fields.items() if field.annotation == Word | None)
