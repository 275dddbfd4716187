"""Every shipped config has exactly as many parameters as were published for it, and can be planned.

A count is a check of the whole shape: vocabulary, widths, depth, heads, experts, ties and biases. It does not see eps,
rotary bases, windows, activations or scales.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import pytest
import torch

from initdiag.config import ConfigFile, load, presets
from initdiag.model import parameters
from initdiag.model.transformer import Transformer
from initdiag.subjects import load as subject_of
from initdiag.subjects.quiet import import_transformers

# As published: Hugging Face's safetensors metadata, papers, read-mes. Two names of shared models differ: gpt2 is
# GPT-2 small, nanogpt is nanoGPT of 124M. nanochat's is that of its first release, as its scripts/base_train.py prints.
ZOO = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "nanogpt": 124_373_760,
    "nanochat-d20": 560_988_160,
    "pythia-160m": 162_322_944,
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "opt-125m": 125_239_296,
    "opt-6.7b": 6_658_473_984,
    "bloom-560m": 559_214_592,
    "llama-1-7b": 6_738_415_616,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-27b": 27_009_002_240,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-32b": 32_234_279_936,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k": 3_821_079_552,
    "falcon-7b": 6_921_720_704,
    "mpt-7b": 6_649_286_656,
    "gpt-j-6b": 6_050_882_784,
    "cerebras-gpt-111m": 111_050_496,
    "cerebras-gpt-111m-mup": 111_050_496,
    "minicpm-2b": 2_724_880_896,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
    "tinyllama-1.1b": 1_100_048_384,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "starcoder2-3b": 3_030_371_328,
    "gpt-neox-20b": 20_554_567_680,
}

# As published, too, and found again in public repositories; but that of cerebras-gpt-1.3b, which is given as 1.3B only:
# GPT-2's 12 d^2 + 13 d for each of 24 layers, (50257 + 2048) d of embeddings and a last norm, at d = 2048.
MORE = {
    "pythia-70m": 70_426_624,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "pythia-6.9b": 6_857_302_016,
    "opt-1.3b": 1_315_758_080,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "llama-2-13b": 13_015_864_320,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b-v0.3": 7_248_023_552,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-4b": 3_880_099_328,
    "gemma-3-12b": 11_765_788_416,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-13b": 13_716_198_400,
    "olmo-3-7b": 7_298_011_136,
    "olmoe-1b-7b": 6_919_161_856,
    "phi-1.5": 1_418_270_720,
    "phi-4": 14_659_507_200,
    "cerebras-gpt-1.3b": 1_315_723_264,
    "smollm2-360m": 361_821_120,
    "deepseek-v2-lite": 15_706_484_224,
    "gpt-oss-120b": 116_829_156_672,
}

OF_OUR_OWN = {
    "bad": 3_448_320,
    "llama-like": 245_924_864,
    "tiny": 241_024,
    "tiny-untied": 158_016,
    "transformer-original": 37_858_304,
}
COUNTS: Mapping[str, int] = MappingProxyType({**ZOO, **MORE, **OF_OUR_OWN})


@cache
def shipped(name: str) -> ConfigFile:
    return load(name)


def test_every_config_has_a_count_here() -> None:
    assert set(presets.names()) == set(COUNTS)
    assert len(COUNTS) == len(ZOO) + len(MORE) + len(OF_OUR_OWN)


@pytest.mark.parametrize("name", presets.names())
def test_the_count(name: str) -> None:
    config = shipped(name).config
    assert sum(parameter.numel for parameter in parameters(config.model)) == COUNTS[name]
    with torch.device("meta"):
        module = Transformer(config.model)
    assert sum(parameter.numel() for parameter in module.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", presets.names())
def test_what_a_config_says_of_itself(name: str) -> None:
    about, text = shipped(name).config.about, presets.path_of(name).read_text(encoding="utf-8")
    assert about.parameters == COUNTS[name]
    assert about.summary and about.source and about.trained_with
    header = text.partition("\nabout:\n")[0].replace("\n# ", " ")
    assert re.findall(r"([\d,]+) parameters", header) == [f"{COUNTS[name]:,}"]


@pytest.mark.parametrize("name", presets.names())
def test_the_plan(name: str) -> None:
    """The scheme answers for every parameter, and the config has what the scheme demands of the forward pass."""
    subject = subject_of(shipped(name))
    assert subject.architecture is not None
    listed = [parameter.name for parameter in parameters(subject.architecture)]
    assert [entry.parameter.name for entry in subject.plan.entries] == listed
    assert subject.demands == ()


def test_no_model_is_shipped_twice() -> None:
    configs = [shipped(name).config for name in presets.names()]
    assert len({repr((config.model, config.init)) for config in configs}) == len(configs)


# Classes of transformers with the values of the released configs, where these differ from the class's defaults.
TIED: Mapping[str, Any] = MappingProxyType({"tie_word_embeddings": True})
UNTIED: Mapping[str, Any] = MappingProxyType({"tie_word_embeddings": False})


def shape(vocab: int, width: int, layers: int, heads: int, groups: int, hidden: int, **more: Any) -> dict[str, Any]:
    """Return the values that nearly all of their configs call alike."""
    return {
        **{"vocab_size": vocab, "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": hidden},
        **{"num_attention_heads": heads, "num_key_value_heads": groups},
        **more,
    }


def without_groups(vocab: int, width: int, layers: int, heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    given = shape(vocab, width, layers, heads, heads, hidden, **more)
    return {name: value for name, value in given.items() if name != "num_key_value_heads"}


HUGGING_FACE: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "gpt2-medium": ("GPT2LMHeadModel", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
        "cerebras-gpt-1.3b": ("GPT2LMHeadModel", {"n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048}),
        "opt-6.7b": (
            "OPTForCausalLM",
            {
                **{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384},
                "word_embed_proj_dim": 4096,
            },
        ),
        "bloom-560m": ("BloomForCausalLM", {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}),
        "pythia-6.9b": ("GPTNeoXForCausalLM", without_groups(50432, 4096, 32, 32, 16384)),
        "gpt-j-6b": ("GPTJForCausalLM", {"n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}),
        "falcon-7b": ("FalconForCausalLM", {"hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}),
        "mpt-7b": ("MptForCausalLM", {"vocab_size": 50432, "d_model": 4096, "n_layers": 32, "n_heads": 32}),
        "llama-3-8b": ("LlamaForCausalLM", shape(128256, 4096, 32, 32, 8, 14336)),
        "llama-3.2-1b": ("LlamaForCausalLM", shape(128256, 2048, 16, 32, 8, 8192, **TIED)),
        "mistral-7b-v0.3": ("MistralForCausalLM", shape(32768, 4096, 32, 32, 8, 14336)),
        "mixtral-8x7b": ("MixtralForCausalLM", shape(32000, 4096, 32, 32, 8, 14336)),
        "gemma-2b": ("GemmaForCausalLM", shape(256000, 2048, 18, 8, 1, 16384, head_dim=256)),
        "gemma-2-2b": ("Gemma2ForCausalLM", shape(256000, 2304, 26, 8, 4, 9216, head_dim=256)),
        "gemma-3-1b": ("Gemma3ForCausalLM", shape(262144, 1152, 26, 4, 1, 6912, head_dim=256)),
        "qwen2.5-0.5b": ("Qwen2ForCausalLM", shape(151936, 896, 24, 14, 2, 4864, **TIED)),
        "qwen3-8b": ("Qwen3ForCausalLM", shape(151936, 4096, 36, 32, 8, 12288, head_dim=128, **UNTIED)),
        "qwen3-30b-a3b": (
            "Qwen3MoeForCausalLM",
            shape(151936, 2048, 48, 32, 4, 6144, head_dim=128, moe_intermediate_size=768, num_experts=128),
        ),
        "olmo-1b": ("OlmoForCausalLM", shape(50304, 2048, 16, 16, 16, 8192, **TIED)),
        "olmo-2-7b": ("Olmo2ForCausalLM", shape(100352, 4096, 32, 32, 32, 11008)),
        "olmo-3-7b": ("Olmo3ForCausalLM", shape(100278, 4096, 32, 32, 32, 11008)),
        "olmoe-1b-7b": ("OlmoeForCausalLM", shape(50304, 2048, 16, 16, 16, 1024)),
        "phi-2": ("PhiForCausalLM", shape(51200, 2560, 32, 32, 32, 10240)),
        "phi-3-mini-4k": ("Phi3ForCausalLM", shape(32064, 3072, 32, 32, 32, 8192)),
        "starcoder2-3b": ("Starcoder2ForCausalLM", shape(49152, 3072, 30, 24, 2, 12288)),
        "deepseek-v3": ("DeepseekV3ForCausalLM", shape(129280, 7168, 61, 128, 128, 18432)),
        "deepseek-v2-lite": (
            "DeepseekV2ForCausalLM",
            {
                **shape(102400, 2048, 27, 16, 16, 10944, q_lora_rank=None, n_routed_experts=64, n_shared_experts=2),
                **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "num_experts_per_tok": 6},
            },
        ),
        "gpt-oss-20b": ("GptOssForCausalLM", {"num_hidden_layers": 24, "num_local_experts": 32}),
    }
)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_the_class_of_transformers_counts_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    cls, given = HUGGING_FACE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_transformers()
        import transformers

        made: Any = getattr(transformers, cls)
        config = made.config_class(pad_token_id=None, bos_token_id=1, eos_token_id=2, **given)
        with torch.device("meta"):
            module = made(config)
    # DeepSeek's own code has the biases of the choice of experts among the parameters, transformers among the buffers
    kept = [buffer for at, buffer in module.named_buffers() if at.endswith("e_score_correction_bias")]
    assert sum(tensor.numel() for tensor in (*module.parameters(), *kept)) == COUNTS[name]
