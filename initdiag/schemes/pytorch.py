"""What PyTorch's own constructors draw when nobody calls an init function, and the classics of torch.nn.init."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_GROWS = "The sum of the branch variances grows like N: no std depends on depth."
_LOOP = (
    "Every matrix, embeddings and head included, as the usual loop over all parameters of two dimensions draws them; "
    "biases are 0, where that loop would leave nn.Linear's uniform ones."
)
_EXPERTS = (
    "A stack of experts is drawn expert by expert. torch.nn.init on the stacked tensor would take its sizes for those "
    "of a convolution and draw too narrow."
)

_LINEAR_BIASES = dict.fromkeys((Role.BIAS, Role.ROUTER_BIAS), Draw("uniform", "1 / sqrt(fan_in)"))

DEFAULT = Scheme(
    name="default",
    family="PyTorch",
    summary="what the constructors of torch.nn draw, weight by weight and bias by bias",
    source="torch 2.13.0: nn/modules/linear.py and sparse.py and normalization.py, reset_parameters",
    roles={
        **PLAIN,
        # kaiming_uniform_(a=√5): bound = √(6 / ((1 + 5) fan_in)) = 1/√fan_in
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("uniform", "1 / sqrt(fan_in)")),
        **_LINEAR_BIASES,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
    },
    depth=_GROWS,
    used_by="models whose code calls no init function",
    notes=(
        "With a tied head there is one tensor and the embedding governs it: N(1), so the logit of the input token "
        "itself starts near d_model / std(stream), and the loss near that number.",
        "nn.Linear's uniform weight has std 1/sqrt(3 fan_in); an untied head then has logit std 0.577, excess 1/6.",
        "nn.MultiheadAttention and nn.Transformer draw differently: see torch-transformer. This is the scheme of "
        "models that are built from nn.Linear, nn.Embedding and nn.LayerNorm.",
    ),
    aliases=("pytorch", "torch-default"),
)

# in_proj is one (3d, d) matrix, so its fans are d and 3d and not d and d: bound = √(6 / 4d), std = 1/√(2d)
_FUSED = Draw("uniform", "sqrt(6 / (4 * d_model))")

TORCH_TRANSFORMER = Scheme(
    name="torch-transformer",
    family="PyTorch",
    summary="nn.Transformer: xavier uniform in the blocks, q, k and v as one fused matrix",
    source="torch 2.13.0: nn/modules/transformer.py Transformer._reset_parameters, activation.py MultiheadAttention",
    roles={
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("uniform", "sqrt(6 / (fan_in + fan_out))")),
        **dict.fromkeys((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE), _FUSED),
        Role.LM_HEAD: Draw("uniform", "1 / sqrt(fan_in)"),
        **_LINEAR_BIASES,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
    },
    depth=_GROWS,
    notes=(
        "q, k and v are narrower than xavier on each of them: std 1/sqrt(2 d_model), not 1/sqrt(d_model).",
        "nn.Transformer holds neither embeddings nor a head, so these are what nn.Embedding and nn.Linear draw; a loop "
        "over all parameters of the model around it draws them by xavier too: that is xavier-uniform.",
        "Biases of the attention are 0 in torch, those of the MLP U(1/sqrt(fan_in)). One role holds both, and this "
        "draws all of them as the MLP's.",
        "nn.TransformerEncoder alone doesn't redraw its layers: there the attention's out and the MLP keep nn.Linear's "
        "own U(1/sqrt(fan_in)).",
    ),
    aliases=("nn-transformer",),
)


def _matrices(draw: Draw) -> Mapping[Role, Draw]:
    return {**PLAIN, **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), draw)}


_TINY_EMBEDDING = (
    "An embedding counts vocab_size as a fan, so its std is sqrt(2 / (vocab_size + d_model)): 0.006 in GPT-2 small."
)

XAVIER_UNIFORM = Scheme(
    name="xavier-uniform",
    family="PyTorch",
    summary="every matrix U(gain * sqrt(6 / (fan_in + fan_out))), biases 0",
    source="Glorot & Bengio 2010; torch/nn/init.py xavier_uniform_",
    roles=_matrices(Draw("uniform", "gain * sqrt(6 / (fan_in + fan_out))")),
    parameters={"gain": "1"},
    depth=_GROWS,
    notes=(_LOOP, _TINY_EMBEDDING, _EXPERTS),
    aliases=("glorot-uniform",),
)

XAVIER_NORMAL = Scheme(
    name="xavier-normal",
    family="PyTorch",
    summary="every matrix N(gain * sqrt(2 / (fan_in + fan_out))), biases 0",
    source="Glorot & Bengio 2010; torch/nn/init.py xavier_normal_",
    roles=_matrices(Draw("normal", "gain * sqrt(2 / (fan_in + fan_out))")),
    parameters={"gain": "1"},
    depth=_GROWS,
    notes=(_LOOP, _TINY_EMBEDDING, _EXPERTS),
    aliases=("glorot-normal",),
)

_GAIN = "gain: sqrt(2) for ReLU, torch's default; sqrt(2 / (1 + a^2)) for a leaky ReLU of slope a; 1 for no activation."

KAIMING_UNIFORM = Scheme(
    name="kaiming-uniform",
    family="PyTorch",
    summary="every matrix uniform with std gain / sqrt(fan_in), biases 0",
    source="He et al. 2015; torch/nn/init.py kaiming_uniform_ with mode fan_in",
    roles=_matrices(Draw("uniform", "gain * sqrt(3 / fan_in)")),
    parameters={"gain": "sqrt(2)"},
    depth=_GROWS,
    notes=(
        _GAIN,
        "nn.Linear calls the same function with a = sqrt(5), whose gain is 1/sqrt(3): that is `default`.",
        _LOOP,
        _EXPERTS,
    ),
    aliases=("he-uniform",),
)

KAIMING_NORMAL = Scheme(
    name="kaiming-normal",
    family="PyTorch",
    summary="every matrix N(gain / sqrt(fan_in)), biases 0",
    source="He et al. 2015; torch/nn/init.py kaiming_normal_ with mode fan_in",
    roles=_matrices(Draw("normal", "gain / sqrt(fan_in)")),
    parameters={"gain": "sqrt(2)"},
    depth=_GROWS,
    notes=(_GAIN, "MPT draws this and divides its residual projections by sqrt(2N): see mpt.", _LOOP, _EXPERTS),
    aliases=("he-normal",),
)

ORTHOGONAL = Scheme(
    name="orthogonal",
    family="PyTorch",
    summary="every matrix orthogonal times gain, embeddings N(embedding_std), biases 0",
    source="Saxe et al. 2013; torch/nn/init.py orthogonal_",
    roles={
        **_matrices(Draw("orthogonal", "gain")),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
    },
    parameters={"gain": "1", "embedding_std": "d_model ** (-tied / 2)"},
    depth=_GROWS,
    notes=(
        "An entry has std gain / sqrt(max(fan_in, fan_out)): rows or columns, whichever are fewer, are orthonormal.",
        "No convention says that an embedding be orthogonal, so it is N(1) as nn.Embedding makes it, and N(1 / "
        "sqrt(d_model)) where it is the head as well.",
        "q, k and v are drawn one by one, and so is every expert; one call on a fused matrix makes it orthogonal as a "
        "whole.",
    ),
)

PYTORCH_SCHEMES = (
    DEFAULT,
    TORCH_TRANSFORMER,
    XAVIER_UNIFORM,
    XAVIER_NORMAL,
    KAIMING_UNIFORM,
    KAIMING_NORMAL,
    ORTHOGONAL,
)
