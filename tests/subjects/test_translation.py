"""Hugging Face configs as our architectures, held against the families whose logits tests/parity compares."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch

import initdiag
from initdiag.measure.observe import observe
from initdiag.model import Architecture, parameters
from initdiag.model.transformer import Transformer
from initdiag.schemes import AsFound, Constant, InitPlan, Normal, Packed, Parameter, Part, PlannedParameter, Role
from initdiag.schemes.distributions import Distribution, Piece
from initdiag.subjects.loading import load_module
from initdiag.subjects.quiet import quiet
from initdiag.subjects.translated_plan import plan_of
from initdiag.subjects.translation import FAMILIES as KNOWN
from initdiag.subjects.translation import architecture_of
from initdiag.tokens import random_ids
from tests.parity import families_early, families_recent
from tests.parity.family import Family
from tests.parity.tools import ids, our_logits, ours_of, shaken, shape_of, their_logits

transformers = pytest.importorskip("transformers")

FAMILIES: dict[str, Family] = {family.name: family for family in (*families_early.FAMILIES, *families_recent.FAMILIES)}
every_family = pytest.mark.parametrize("name", FAMILIES)

# What transformers computes in float32 is off by 6e-8 of itself, at a dozen places: tests/parity/test_logits.py.
FLOAT32 = 1e-5


@cache
def class_and_config(name: str) -> tuple[Any, Any]:
    """Of a family. Latents are normed with an eps of 1e-6 whatever the config says, so it says that."""
    with quiet():
        module = FAMILIES[name].theirs()
    config: Any = module.config
    if "mla" in FAMILIES[name].model:
        config.rms_norm_eps = 1e-6
    return type(module), config


def config_of(name: str) -> Any:
    return class_and_config(name)[1]


def with_fields(name: str, **fields: Any) -> Any:
    config = copy.deepcopy(config_of(name))
    for field, value in fields.items():
        assert hasattr(config, field)
        setattr(config, field, value)
    return config


def counted(shape: Architecture) -> int:
    return sum(parameter.numel for parameter in parameters(shape))


def on_meta(cls: Any, config: Any) -> int:
    with torch.device("meta"), quiet():
        return sum(parameter.numel() for parameter in cls(config).parameters())


# --- architectures


def flat(shape: Architecture) -> dict[str, Any]:
    """All fields, those of sections as `moe.top_k`, and the window of each layer."""
    fields = {"window": tuple(map(shape.window, range(shape.n_layers)))}
    for name, value in shape.model_dump(exclude={"windows"}).items():
        fields |= {f"{name}.{part}": x for part, x in value.items()} if isinstance(value, dict) else {name: value}
    return fields


@every_family
def test_architecture_of_every_parity_family(name: str) -> None:
    model = dict(FAMILIES[name].model)
    if "mla" in model:
        model["eps"] = 1e-6
    found, expected = architecture_of(config_of(name).to_dict()), shape_of(model)
    assert found is not None
    if name.startswith("bloom"):  # its config has no context, and with ALiBi nothing depends on one
        expected = expected.model_copy(update={"context": found.context})
    theirs, ours = flat(found), flat(expected)
    assert theirs.keys() == ours.keys()
    for field, value in ours.items():
        # the same formulas, computed in another order
        close = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        assert theirs[field] == close, field


def test_every_known_model_type_is_one_of_the_parity_families() -> None:
    assert {config_of(name).model_type for name in FAMILIES} == set(KNOWN)


ROPE = {"rope_theta": 100.0}
YARN = {**ROPE, "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 24}
DEFAULT = {**ROPE, "rope_type": "default"}
FULL, SLIDING = "full_attention", "sliding_attention"

# fields that no parity family sets, and what is heard of them in the logits
VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gpt2", {"activation_function": "relu", "scale_attn_weights": False}),
    ("opt", {"enable_bias": False, "activation_function": "gelu"}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("gpt-neox", {"attention_bias": False, "hidden_act": "gelu_fast"}),
    ("falcon-7b", {"bias": True}),
    ("falcon-40b", {"num_ln_in_parallel_attn": 1, "activation": "gelu_accurate"}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": False}),
    ("llama", {"attention_bias": True, "hidden_act": "quick_gelu"}),
    ("llama", {"mlp_bias": True, "hidden_act": "gelu_python_tanh"}),
    ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
    ("llama", {"rope_parameters": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}}),
    (  # with six pairs of features, 32 turns in 2,000 tokens are the third's, 16 the fourth's
        "llama",
        {"rope_parameters": {**YARN, "mscale": 2.0, "beta_fast": None, "original_max_position_embeddings": 2000}},
    ),
    ("starcoder2", {"use_bias": False, "sliding_window": None}),
    ("qwen3", {"layer_types": [FULL, SLIDING, SLIDING], "sliding_window": 5, "attention_bias": True}),
    ("qwen3-moe", {"norm_topk_prob": False, "sliding_window": 5, "attention_bias": True}),
    ("qwen3-moe", {"mlp_only_layers": [0, 1, 2]}),
    ("gemma-2", {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True}),
    ("gemma-3", {"layer_types": [SLIDING] * 6, "final_logit_softcapping": 1.5}),
    ("gemma-3", {"layer_types": [FULL] * 6}),
    ("olmo", {"attention_bias": True}),
    ("olmo-3", {"rope_parameters": {FULL: DEFAULT, SLIDING: {**DEFAULT, "rope_theta": 30.0}}}),
    ("olmo-3", {"rope_parameters": {FULL: YARN, SLIDING: YARN}}),
    ("olmoe", {"norm_topk_prob": True}),
    ("deepseek-v2", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 2.0}}),
    ("deepseek-v3", {"norm_topk_prob": False, "topk_group": 3, "attention_bias": False}),
    ("deepseek-v3", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}}),
    ("minicpm3", {"attention_bias": True, "mlp_bias": True}),
    ("gpt-oss", {"attention_bias": False}),
    ("cohere", {"attention_bias": True}),
    ("granite", {"attention_bias": False, "mlp_bias": False, "rope_parameters": YARN}),
    ("nemotron", {"attention_bias": True, "mlp_bias": True}),
    ("glm", {"attention_bias": False}),
    ("glm-4.5", {"use_qk_norm": False, "attention_bias": False, "n_group": 3, "topk_group": 2}),
    ("nanochat", {"attention_bias": True, "final_logit_softcapping": None}),
)


@pytest.mark.parametrize(("name", "fields"), VARIANTS, ids=[f"{name} {[*fields]}" for name, fields in VARIANTS])
def test_logits_of_variants(name: str, fields: Mapping[str, Any]) -> None:
    family, config = FAMILIES[name], with_fields(name, **fields)
    shape = architecture_of(config.to_dict())
    assert shape is not None
    assert flat(shape) != flat(shape_of(family.model))
    with quiet():
        theirs = shaken(family, class_and_config(name)[0](config).double().eval())
    with torch.device("meta"):
        ours = Transformer(shape).eval()
    ours.load_state_dict({key: x.clone() for key, x in ours_of(family, theirs).items()}, strict=True, assign=True)
    expected = their_logits(theirs, ids(family))
    assert float(expected.std()) > 0.3
    assert float((our_logits(ours, ids(family)) - expected).abs().max() / expected.std()) < FLOAT32


@pytest.mark.parametrize("name", ["gpt2", "mpt, 4 heads", "gpt-j", "falcon-7b", "phi", "llama", "gemma", "nanochat"])
def test_tied_and_untied_heads(name: str) -> None:
    config = with_fields(name, tie_word_embeddings=not config_of(name).tie_word_embeddings)
    found = architecture_of(config.to_dict())
    if name in ("gpt-j", "phi"):  # tied, their heads keep a bias, which ours can't have
        assert found is None
    else:
        assert found is not None
        assert found.tied == config.tie_word_embeddings
        assert counted(found) == on_meta(class_and_config(name)[0], config)


DEFAULTS = (
    "GPT2LMHeadModel LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM Gemma2ForCausalLM "
    "PhiForCausalLM Phi3ForCausalLM GPTNeoXForCausalLM MixtralForCausalLM"
).split()


@pytest.mark.parametrize("cls", DEFAULTS)
def test_parameter_count_of_default_configs(cls: str) -> None:
    """At full size: 124,439,808 for gpt2 (of which the paper's table says 117M, and its authors 124M)."""
    made = getattr(transformers, cls)
    with quiet():
        config = made.config_class()
    found = architecture_of(config.to_dict())
    assert found is not None
    assert counted(found) == on_meta(made, config)


# Fields of published config.json files in which they differ from their class, in the names of their time, and how many
# parameters the Hub counts in their weights.
PUBLISHED: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
    (
        "Llama",  # meta-llama/Llama-3.1-8B
        8_030_261_248,
        {
            **{"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0},
            "rope_scaling": {
                **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    (
        "Qwen2",  # Qwen/Qwen2.5-0.5B
        494_032_768,
        {
            **{"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24},
            **{"num_key_value_heads": 2, "tie_word_embeddings": True, "sliding_window": 32768},
        },
    ),
    (
        "Gemma",  # google/gemma-2b
        2_506_172_416,
        {
            **{"hidden_act": "gelu", "hidden_activation": None, "hidden_size": 2048, "intermediate_size": 16384},
            **{"num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1},
        },
    ),
    (
        "GPTNeoX",  # EleutherAI/pythia-160m
        162_322_944,
        {
            **{"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12},
            **{"vocab_size": 50304, "rotary_pct": 0.25, "rotary_emb_base": 10000},
        },
    ),
)


@pytest.mark.parametrize(("kind", "count", "fields"), PUBLISHED, ids=[kind for kind, *_ in PUBLISHED])
def test_parameter_count_of_published_configs(kind: str, count: int, fields: Mapping[str, Any]) -> None:
    with quiet():
        config = getattr(transformers, f"{kind}Config").from_dict(dict(fields))
    found = architecture_of(config.to_dict())
    assert found is not None
    assert counted(found) == count


def test_what_is_not_known_is_none() -> None:
    with quiet():
        others = [getattr(transformers, f"{name}Config")().to_dict() for name in ("Bert", "T5", "Mamba", "GPTBigCode")]
    assert [architecture_of(config) for config in (*others, {}, {"model_type": None}, {"model_type": "llama"})] == (
        [None] * 7
    )


UNKNOWN: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("gpt2", {"activation_function": "mish"}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("opt", {"word_embed_proj_dim": 24}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("bloom, 4 heads", {"apply_residual_connection_post_layernorm": True}),
    ("mpt, 4 heads", {"no_bias": False}),
    ("gpt-j", {"rotary_dim": None}),
    ("falcon-7b", {"alibi": True}),
    ("falcon-7b", {"num_ln_in_parallel_attn": 2}),
    ("falcon-40b", {"parallel_attn": False}),
    ("falcon, sequential", {"num_kv_heads": 2}),
    ("gpt-neox", {"num_attention_heads": 5}),
    ("phi", {"qk_layernorm": True}),
    ("stablelm", {"qk_layernorm": True}),
    ("llama", {"hidden_act": "hardswish"}),
    ("llama", {"hidden_act": None}),
    ("llama", {"head_dim": "12"}),
    ("llama", {"rope_parameters": None}),
    ("llama", {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}}),  # which its class doesn't read
    ("llama", {"rope_parameters": {**DEFAULT, "llama_4_scaling_beta": 0.1}}),
    ("llama", {"rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0}}),
    ("llama", {"rope_parameters": {**ROPE, "rope_type": "proportional"}}),
    ("llama", {"rope_parameters": {**YARN, "factor": None}}),
    (
        "llama",
        {"rope_parameters": {**YARN, "rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}},
    ),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}),
    ("qwen3", {"layer_types": [FULL, SLIDING, SLIDING]}),  # without a sliding_window
    ("qwen3-moe", {"mlp_only_layers": [1]}),  # dense layers are the first ones here
    ("qwen3-moe", {"decoder_sparse_step": 2, "mlp_only_layers": []}),  # 0, and 2
    ("gemma", {"use_bidirectional_attention": True}),
    ("gemma-3", {"attn_logit_softcapping": 1.5}),
    ("olmo", {"clip_qkv": 8.0}),
    ("olmo-3", {"rope_parameters": {FULL: YARN, SLIDING: DEFAULT}}),
    ("olmoe", {"head_dim": 12}),  # its norms of queries and keys are as wide as with 8
    ("deepseek-v2", {"topk_method": "group_limited_greedy"}),
    ("deepseek-v2", {"mlp_bias": True}),  # of MLPs, and of no experts
    ("deepseek-v2", {"attention_bias": True}),  # of no queries
    ("deepseek-v2", {"rms_norm_eps": 1e-3}),
    ("deepseek-v3", {"rope_parameters": YARN}),  # multiplies the features that turn, and no others
    ("deepseek-v3", {"rope_parameters": {**YARN, "attention_factor": math.nan}}),
    ("deepseek-v3", {"n_group": None}),
    ("gpt-oss", {"swiglu_alpha": 1.0}),
    ("cohere", {"use_qk_norm": True}),  # with a scale for each head
    ("cohere", {"logit_scale": None}),
    ("nanochat", {"rope_parameters": YARN}),
)


@pytest.mark.parametrize(("name", "fields"), UNKNOWN, ids=[f"{name} {fields}" for name, fields in UNKNOWN])
def test_variants_that_are_not_known_are_none(name: str, fields: Mapping[str, Any]) -> None:
    assert architecture_of({**config_of(name).to_dict(), **fields}) is None


@pytest.mark.parametrize("name", ["gpt2", "mpt, 4 heads", "falcon-40b", "gemma-3", "qwen3-moe", "deepseek-v3"])
def test_what_lacks_a_field_or_has_another_type_there_raises_nothing(name: str) -> None:
    whole = config_of(name).to_dict()
    for field in whole:
        others = [{**whole, field: value} for value in WRONG]
        for config in (*others, {key: value for key, value in whole.items() if key != field}):
            found = architecture_of(config)
            assert found is None or field not in NEEDED


WRONG: tuple[Any, ...] = ("wrong", None, -1, {}, [], math.nan)
NEEDED = "model_type vocab_size hidden_size n_embd num_hidden_layers n_layer num_attention_heads hidden_act".split()


@pytest.mark.parametrize("field", ["clip_qkv", "qk_ln", "prefix_lm", "alibi_bias_max"])
def test_attention_of_mpt_that_its_class_does_not_compute(field: str) -> None:
    config = config_of("mpt, 4 heads").to_dict()
    assert architecture_of({**config, "attn_config": {**config["attn_config"], field: 3.0}}) is None


# --- plans


@cache
def plans(name: str, watched: bool) -> tuple[Architecture, InitPlan, dict[str, float]]:
    """Our architecture, our plan for a family's module as it is built, and the stds of ours that it should have."""
    with quiet(), torch.no_grad():
        build = FAMILIES[name].theirs
        subject = load_module(build if watched else initdiag.Subject(build()), kwargs={})
        assert subject.module is not None
        batch = random_ids.draw(vocab_size=subject.vocab_size, batch=2, length=24, seed=0)
        seen = observe(subject, subject.module.eval(), batch)
    shape = architecture_of(config_of(name).to_dict())
    assert shape is not None
    plan = plan_of(shape, seen.plan, {one.name: (one.mean, one.std) for one in seen.parameters})
    assert plan is not None
    return shape, plan, documented(name, shape)


SCALED = {"gpt2": ("attention.out", "mlp.out")}  # by 1/√(2N)


def documented(name: str, shape: Architecture) -> dict[str, float]:
    """What their _init_weights draws: initializer_range everywhere, but c_proj of GPT-2 with 0.02/√(2N)."""
    ends = tuple(f"{end}.weight" for end in SCALED.get(name, ()))
    matrices = [one.name for one in parameters(shape) if one.name.endswith("weight") and "norm" not in one.name]
    return {one: 0.02 / math.sqrt(2 * shape.n_layers) if ends and one.endswith(ends) else 0.02 for one in matrices}


WATCHED = ("gpt2", "llama", "gemma-2", "gpt-neox", "qwen3-moe", "deepseek-v3", "gpt-oss")


@pytest.mark.parametrize("name", WATCHED)
def test_plan_of_a_module_whose_init_was_watched(name: str) -> None:
    shape, plan, stds = plans(name, True)
    assert [entry.parameter for entry in plan.entries] == list(parameters(shape))
    for entry in plan.entries:
        where = entry.parameter.name
        if entry.parameter.role is Role.NORM_SCALE:
            assert entry.distribution == Constant(0.0 if name == "gemma-2" else 1.0), where  # Gemma's gain is 1 + w
        elif where in stds:
            assert entry.distribution == Normal(stds[where]), where
            assert entry.unscaled_std == 0.02, where
        elif entry.parameter.role is Role.ROUTER_BIAS:
            assert entry.distribution == Normal(0.02), where  # modeling_gpt_oss.py draws it, like its sinks
        else:
            assert entry.distribution == Constant(0.0), where


@pytest.mark.parametrize("name", ["gpt2", "deepseek-v3"])
def test_plan_of_a_module_that_was_handed_in(name: str) -> None:
    """Its stds are sample stds: of n normal entries off by 1/√(2n), here by less than 5 times that (6e-7 each)."""
    _, plan, stds = plans(name, False)
    for entry in plan.entries:
        where = entry.parameter.name
        if where in stds:
            assert isinstance(entry.distribution, AsFound)
            # of packed ones it is the std of all of it, and latent_down and rotary_key are one matrix of 22 rows
            error = 5 / math.sqrt(2 * min(entry.parameter.numel, 22 * 48))
            assert entry.distribution.std == pytest.approx(stds[where], rel=error), where
        else:
            assert entry.distribution == Constant(float(entry.parameter.role is Role.NORM_SCALE)), where


SMALL = Architecture(vocab_size=11, context=7, d_model=8, n_layers=2, n_heads=2)
Laws = Mapping[str, Distribution]
Moments = dict[str, tuple[float, float]]


def module_like(shape: Architecture, laws: Laws, moments: Moments | None = None) -> tuple[InitPlan, Moments]:
    """A plan as that of a module with these laws by the end of a name (else N(0.02), gains 1, biases 0), whose
    parameters have names of their own."""
    entries, held = [], {}
    for parameter in parameters(shape):
        plain: Distribution = Normal(0.02)
        if parameter.name.endswith("bias") or parameter.role is Role.NORM_SCALE:
            plain = Constant(float(parameter.role is Role.NORM_SCALE))
        law = next((law for end, law in laws.items() if parameter.name.endswith(end)), plain)
        renamed = Parameter(
            f"their.{parameter.name}", parameter.shape, parameter.role, parameter.fan_in, parameter.layer
        )
        entries.append(PlannedParameter(renamed, law, law.std))
        given = next((one for end, one in (moments or {}).items() if parameter.name.endswith(end)), (0.0, law.std))
        held[renamed.name] = given
    return InitPlan("as built", {}, tuple(entries)), held


def law_of(plan: InitPlan | None, name: str) -> Distribution:
    assert plan is not None
    return plan[name].distribution


def test_the_same_module_gives_its_own_plan() -> None:
    laws = {"0.mlp.out.weight": Normal(0.01), "1.mlp.out.weight": Normal(0.03), "query.weight": Normal(0.5)}
    found, moments = module_like(SMALL, laws)
    plan = plan_of(SMALL, found, moments)
    assert plan is not None
    assert [entry.distribution for entry in plan.entries] == [entry.distribution for entry in found.entries]
    assert [entry.parameter for entry in plan.entries] == list(parameters(SMALL))


def packed(law: Distribution) -> tuple[InitPlan, Moments]:
    """Queries, keys and values as (inputs, outputs) in one, and a vector of their biases."""
    found, moments = module_like(SMALL, {})
    entries = []
    for entry in found.entries:
        name, layer = entry.parameter.name, entry.parameter.layer
        if "query" in name:
            parts = tuple(Part(role, ((8 * i, 8 * i + 8),)) for i, role in enumerate(ROLES))
            bias, shape = name.endswith("bias"), ((24,) if name.endswith("bias") else (8, 24))
            role = Role.BIAS if bias else Role.ATTENTION_QUERY
            one = Parameter(name, shape, role, 8, layer, transposed=True, parts=() if bias else parts)
            entries.append(PlannedParameter(one, Constant(0.0) if bias else law, 2 * law.std * (not bias)))
        elif not any(word in name for word in ("key", "value")):
            entries.append(entry)
    return InitPlan("as built", {}, tuple(entries)), moments


ROLES = (Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE)


def test_pieces_of_a_packed_matrix() -> None:
    laws: tuple[Distribution, ...] = (Normal(0.1), Normal(0.2), AsFound(0.3))
    pieces = tuple(
        Piece(role, ((8 * i, 8 * i + 8),), law) for i, (role, law) in enumerate(zip(ROLES, laws, strict=True))
    )
    plan = plan_of(SMALL, *packed(Packed(pieces, -1)))
    names = [f"blocks.1.attention.{part}.weight" for part in ("query", "key", "value")]
    assert [law_of(plan, name) for name in names] == list(laws)
    assert plan is not None
    assert plan[names[1]].unscaled_std == pytest.approx(0.4)  # twice its std, as of the whole
    assert law_of(plan, "blocks.0.attention.key.bias") == Constant(0.0)
    whole = plan_of(SMALL, *packed(Normal(0.02)))
    assert [law_of(whole, name) for name in names] == [Normal(0.02)] * 3


def test_gains_and_biases_that_were_only_found() -> None:
    laws = {"norm.weight": AsFound(0.4), "out.bias": AsFound(0.0), "input.bias": AsFound(0.1)}
    moments = {"norm.weight": (0.3, 0.4), "out.bias": (0.0, 0.0), "input.bias": (0.02, 0.1)}
    plan = plan_of(SMALL, *module_like(SMALL, laws, moments))
    assert law_of(plan, "blocks.0.attention_norm.weight") == Constant(0.5)
    assert law_of(plan, "final_norm.weight") == Constant(0.5)
    assert law_of(plan, "blocks.0.attention.out.bias") == Constant(0.0)
    assert law_of(plan, "blocks.0.mlp.input.bias") == AsFound(math.hypot(0.02, 0.1))
    gemma = SMALL.model_copy(update={"norm_scale": "one_plus"})
    plan = plan_of(gemma, *module_like(gemma, laws, {**moments, "norm.weight": (-0.7, 0.4)}))
    assert law_of(plan, "final_norm.weight") == Constant(math.hypot(1 - 0.7, 0.4) - 1)
    ones, held = module_like(SMALL, {"norm.weight": AsFound(0.0)}, {"norm.weight": (1.0, 0.0)})
    assert law_of(plan_of(SMALL, ones, held), "final_norm.weight") == Constant(1.0)
    assert plan_of(SMALL, ones, {}) is None


def test_what_differs_within_a_layer_is_told_by_fan_in_shape_and_order() -> None:
    by_fan_in = {"mlp.out.bias": Normal(0.3), "mlp.input.bias": Normal(0.2), "attention.out.bias": Normal(0.2)}
    narrow = SMALL.model_copy(update={"d_ff": 5})
    plan = plan_of(narrow, *module_like(narrow, {**by_fan_in, "bias": Normal(0.2), "norm.bias": Constant(0.0)}))
    assert law_of(plan, "blocks.0.mlp.out.bias") == Normal(0.3)
    in_order = {"attention_norm.weight": Constant(0.5), "mlp_norm.weight": Constant(2.0)}
    plan = plan_of(SMALL, *module_like(SMALL, in_order))
    assert law_of(plan, "blocks.1.attention_norm.weight") == Constant(0.5)
    assert law_of(plan, "blocks.1.mlp_norm.weight") == Constant(2.0)
    normed = SMALL.model_copy(update={"qk_norm": "per_head"})
    in_order |= {"query_norm.weight": Constant(3.0), "key_norm.weight": Constant(4.0)}
    found, moments = module_like(normed, in_order)
    last = [entry for entry in found.entries if ".attention." not in entry.parameter.name]
    first = [entry for entry in found.entries if ".attention." in entry.parameter.name]
    plan = plan_of(normed, InitPlan("as built", {}, (*first, *last)), moments)
    for end, law in in_order.items():
        assert law_of(plan, f"blocks.1.{'attention.' if law.value > 2 else ''}{end}") == law
    sandwich = SMALL.model_copy(update={"placement": "sandwich"})
    assert plan_of(sandwich, *module_like(sandwich, {})) is not None
    assert plan_of(sandwich, *module_like(sandwich, in_order)) is None


def experts_apart(stds: tuple[float, float]) -> tuple[InitPlan, Moments]:
    """Two experts whose matrices in are two parameters."""
    found, moments = module_like(MIXTURE, {})
    entries = []
    for entry in found.entries:
        parameter = entry.parameter
        if parameter.role is Role.MLP_IN:
            for expert, std in enumerate(stds):
                name = f"{parameter.name}.{expert}"
                one = Parameter(name, parameter.shape[1:], Role.MLP_IN, parameter.fan_in, parameter.layer)
                entries.append(PlannedParameter(one, AsFound(std), std))
                moments[name] = (0.0, std)
        else:
            entries.append(entry)
    return InitPlan("as built", {}, tuple(entries)), moments


MIXTURE = Architecture.model_validate(
    {**SMALL.model_dump(), "biases": False, "moe": {"experts": 2, "top_k": 1}, "d_ff": 16}
)


def test_several_for_one_of_ours() -> None:
    name = "blocks.0.mlp.input.weight"
    pooled = law_of(plan_of(MIXTURE, *experts_apart((0.02, 0.0201))), name)
    assert isinstance(pooled, AsFound)
    assert pooled.std == pytest.approx(math.sqrt((0.02**2 + 0.0201**2) / 2))
    assert plan_of(MIXTURE, *experts_apart((0.02, 0.0203))) is None


def test_no_plan_where_the_module_is_another() -> None:
    found, moments = module_like(SMALL, {})
    assert plan_of(SMALL, found, moments) is not None
    assert plan_of(SMALL, InitPlan("as built", {}, found.entries[:-1]), moments) is None
    extra = PlannedParameter(Parameter("their.adapter", (8, 2), Role.OTHER, 8, 0), Normal(0.02), 0.02)
    assert plan_of(SMALL, InitPlan("as built", {}, (*found.entries, extra)), moments) is None
    wider = SMALL.model_copy(update={"d_ff": 31})
    assert plan_of(wider, found, moments) is None


def test_no_plan_for_a_matrix_with_a_mean() -> None:
    """64 entries of std 0.02 have a mean of up to 5 · 0.02/8 by accident."""
    laws = {"query.weight": AsFound(0.02)}
    for mean, known in ((0.012, True), (0.013, False), (-0.013, False), (math.nan, False)):
        plan = plan_of(SMALL, *module_like(SMALL, laws, {"query.weight": (mean, 0.02)}))
        assert (plan is not None) == known
