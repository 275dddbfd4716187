"""llm-foundry: its param_init_fns on a Transformer-shaped module, with residual projections marked as its layers do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag.model.parameters import parameters
from initdiag.schemes.roles import EMBEDDINGS, RESIDUAL_PROJECTIONS, Role
from tests.originals.compare import package, same_draws
from tests.parity.tools import shape_of

pytestmark = pytest.mark.usefixtures("originals")

PARTS = ("llmfoundry", "llmfoundry.models", "llmfoundry.models.utils", "llmfoundry.models.layers", "llmfoundry.utils")
MODEL = {
    **{"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "d_ff": 160},
    **{"norm": "rmsnorm", "biases": False, "tied": False, "gated": True},
}
SIZES = {"n_layers": 3, "d_model": 96}
# scheme: their function, and what it is given besides the sizes
CASES: dict[str, tuple[str, dict[str, float]]] = {
    "mpt": ("kaiming_normal_param_init_fn_", {}),
    "wang": ("neox_param_init_fn_", {}),
    "bigscience": ("small_param_init_fn_", {}),
    "scaled": ("baseline_param_init_fn_", {"init_std": 0.02}),
    "opt": ("baseline_param_init_fn_", {"init_std": 0.006}),
    "xavier-uniform": ("xavier_uniform_param_init_fn_", {"init_gain": 1.0, "init_div_is_residual": False}),
    "xavier-normal": ("xavier_normal_param_init_fn_", {"init_gain": 1.0, "init_div_is_residual": False}),
}


@pytest.mark.parametrize("scheme", CASES)
def test_param_init_fns(scheme: str) -> None:
    inits = package("llmfoundry.models.utils.param_init_fns", PARTS)
    package("llmfoundry.models.layers.fc", PARTS)  # it registers nn.Linear
    defaults = dict(package("llmfoundry.models.utils.config_defaults", PARTS).init_config_defaults)
    function, given = CASES[scheme]
    assert function == f"{defaults.pop('name')}param_init_fn_" or scheme != "mpt"
    init = partial(getattr(inits, function), **SIZES, **{**defaults, **given})
    torch.manual_seed(9)
    theirs: dict[str, Tensor] = {}
    for one in parameters(shape_of(MODEL)):
        if one.role is Role.NORM_SCALE:
            theirs[one.name] = torch.ones(one.shape)
            continue
        module: Any = nn.Embedding(*one.shape) if one.role in EMBEDDINGS else nn.Linear(*one.shape[::-1], bias=False)
        if one.role in RESIDUAL_PROJECTIONS:  # layers/attention.py and layers/ffn.py: out_proj and down_proj
            module._is_residual = True
        init(module=module)
        theirs[one.name] = module.weight
    same_draws(scheme, MODEL, theirs)
