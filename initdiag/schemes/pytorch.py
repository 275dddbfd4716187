"""What PyTorch's own constructors draw when nobody calls an init function."""

from __future__ import annotations

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, Role
from initdiag.schemes.scheme import Draw, Scheme

DEFAULT = Scheme(
    name="default",
    summary="what the constructors of torch.nn draw, weight by weight and bias by bias",
    source="torch 2.13.0: nn/modules/linear.py and sparse.py and normalization.py, reset_parameters",
    roles={
        # kaiming_uniform_(a=√5): bound = √(6 / ((1 + 5) fan_in)) = 1/√fan_in
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("uniform", "1 / sqrt(fan_in)")),
        Role.BIAS: Draw("uniform", "1 / sqrt(fan_in)"),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        Role.NORM_SCALE: Draw("constant", "1"),
        Role.NORM_BIAS: Draw("constant", "0"),
    },
    notes=(
        "With a tied head there is one tensor and the embedding governs it: N(1), so the logit of the input token "
        "itself starts near d_model / std(stream), and the loss near that number.",
        "nn.Linear's uniform weight has std 1/sqrt(3 fan_in); an untied head then has logit std 0.577, excess 1/6.",
        "nn.MultiheadAttention and nn.Transformer* draw differently (xavier_uniform); this is the scheme of models "
        "that are built from nn.Linear, nn.Embedding and nn.LayerNorm.",
    ),
)
