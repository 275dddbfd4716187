"""What is seen of init code, on modules whose init is known: declared laws, unwritten memory, matrices left out."""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from initdiag.schemes import Constant, Distribution, Normal, Uniform
from initdiag.schemes.distributions import Truncated
from initdiag.subjects.recorder import Built, build_watched
from initdiag.subjects.tying import tie_of
from tests.sampling import assert_std

LAYERS, WIDTH, WORDS = 3, 16, 40


class Holder(nn.Module):
    """One parameter, made by a function."""

    def __init__(self, make: Callable[[], Tensor], then: Callable[[nn.Module], object] = id) -> None:
        super().__init__()
        self.weight = nn.Parameter(make())
        with torch.no_grad():
            then(self)


def law_of(make: Callable[[], Tensor], then: Callable[[nn.Module], object] = id) -> Distribution | None:
    built = build_watched(lambda: Holder(make, then))
    assert built.unwritten == ()
    return built.distributions.get("weight")


def empty() -> Tensor:
    return torch.empty(100, 50)


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (lambda: torch.randn(100, 50), Normal(1.0)),
        (lambda: torch.randn(100, 50) * 0.02, Normal(0.02)),
        (lambda: 0.02 * torch.randn(100, 50), Normal(0.02)),
        (lambda: torch.tensor(0.5) * torch.randn(100, 50), Normal(0.5)),
        (lambda: -torch.randn(100, 50) / 8, Normal(0.125)),
        (lambda: torch.randn(100, 50).mul(0.5).div_(2).to(torch.bfloat16), Normal(0.25)),
        (lambda: torch.randn_like(torch.empty(100, 50)), Normal(1.0)),
        (lambda: torch.normal(0.0, 0.3, (100, 50)), Normal(0.3)),
        (lambda: torch.rand(100, 50) * 2 - 1, Uniform(1.0)),
        (lambda: 1 - 2 * torch.rand(100, 50), Uniform(1.0)),
        (lambda: (torch.rand(100, 50) - 0.5) / 4, Uniform(0.125)),
        (lambda: torch.zeros(100, 50), Constant(0.0)),
        (lambda: torch.ones(100) * 1e-5, Constant(1e-5)),
        (lambda: torch.full((100,), 0.1).add(1, alpha=2), Constant(2.1)),
        (lambda: torch.tensor(0.25), Constant(0.25)),
        (lambda: torch.randn(200, 50)[:100], Normal(1.0)),
        # no law of ours, but written
        (lambda: torch.rand(100, 50), None),
        (lambda: torch.randn(100, 50) + 1, None),
        (lambda: torch.randn(100, 50).clamp(-1, 1), None),
        (lambda: torch.randn(100, 50) * torch.rand(50), None),
        (lambda: torch.cat((torch.randn(50, 50), torch.randn(50, 50))), None),
        (lambda: torch.from_numpy(np.ones((100, 50), dtype=np.float32)), None),
        (lambda: torch.arange(5.0), None),
    ],
)
def test_factories(make: Callable[[], Tensor], law: Distribution | None) -> None:
    found = law_of(make)
    assert str(found) == str(law)
    if law is not None:
        assert found is not None and found.std == pytest.approx(law.std, rel=1e-6)


def written_by_parts(module: nn.Module) -> None:
    module.weight[:50].normal_(std=0.02)
    module.weight[50:].normal_(std=0.5)


def truncated_by_hand(module: nn.Module) -> None:
    """As timm and older torch do it, copied into many code bases."""
    edge = math.erf(2 / math.sqrt(2))
    module.weight.uniform_(-edge, edge).erfinv_().mul_(0.02 * math.sqrt(2)).add_(0.0).clamp_(min=-0.04, max=0.04)


def padded(module: nn.Module) -> None:
    nn.init.normal_(module.weight, std=0.02)
    module.weight[1].zero_()


def replaced(module: nn.Module) -> None:
    module.weight.data = torch.randn(100, 50) * 0.1


@pytest.mark.parametrize(
    ("then", "law"),
    [
        (lambda m: nn.init.normal_(m.weight, std=0.02), Normal(0.02)),
        (lambda m: nn.init.normal_(m.weight, std=0.0), Constant(0.0)),
        (lambda m: nn.init.normal_(m.weight, mean=0.1, std=0.02), None),
        (lambda m: nn.init.xavier_normal_(m.weight), Normal(math.sqrt(2 / 150))),
        (lambda m: nn.init.xavier_uniform_(m.weight), Uniform(math.sqrt(6 / 150))),
        (lambda m: nn.init.kaiming_uniform_(m.weight, a=math.sqrt(5)), Uniform(1 / math.sqrt(50))),
        (lambda m: nn.init.trunc_normal_(m.weight, std=0.02), Normal(0.02)),  # cut at 100 σ
        (lambda m: nn.init.trunc_normal_(m.weight, std=0.02, a=-0.04, b=0.04), Truncated(0.02, 2.0)),
        (lambda m: nn.init.trunc_normal_(m.weight, std=1.0, a=-0.1, b=0.1), Truncated(1.0, 0.1)),  # torch's other way
        (lambda m: nn.init.trunc_normal_(m.weight, std=0.02, a=-0.02, b=0.04), None),
        (truncated_by_hand, Truncated(0.02, 2.0)),
        (lambda m: nn.init.trunc_normal_(m.weight, std=0.02, a=-0.04, b=0.04).mul_(0.5), Truncated(0.01, 2.0)),
        (lambda m: nn.init.ones_(m.weight).mul_(0.5), Constant(0.5)),
        (lambda m: nn.init.orthogonal_(m.weight), None),
        (lambda m: nn.init.eye_(m.weight), None),
        (lambda m: nn.init.sparse_(m.weight, 0.1), None),
        (lambda m: m.weight.copy_(torch.randn(100, 50) * 0.3), Normal(0.3)),
        (lambda m: m.weight.normal_().div_(4).sub_(0), Normal(0.25)),
        (lambda m: m.weight.data.normal_(0, 0.02), Normal(0.02)),
        (replaced, Normal(0.1)),
        (written_by_parts, None),
        (padded, Normal(0.02)),
        (lambda m: (padded(m), m.weight.mul_(2)), Normal(0.04)),
        (lambda m: (nn.init.normal_(m.weight), m.weight[:10].zero_()), None),  # 10 % zeros: no longer that normal
        (lambda m: (written_by_parts(m), nn.init.normal_(m.weight)), Normal(1.0)),
    ],
)
def test_writes(then: Callable[[nn.Module], object], law: Distribution | None) -> None:
    found = law_of(empty, then)
    assert type(found) is type(law)
    if law is not None:
        assert found is not None and found.std == pytest.approx(law.std, rel=1e-6)
        assert str(found) == str(law)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_truncation_is_seen_where_torch_skips_it(device: str) -> None:
    def build() -> nn.Module:
        with torch.device(device):
            layer = nn.Linear(8, 8)
        nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04)
        nn.init.orthogonal_(layer.bias[None].new_empty(2, 2))
        return layer

    assert build_watched(build).distributions == {"weight": Truncated(0.02, 2.0), "bias": Uniform(1 / math.sqrt(8))}


def test_a_truncated_law_has_the_std_that_torch_draws() -> None:
    torch.manual_seed(0)
    built = build_watched(
        lambda: Holder(
            lambda: torch.empty(400, 400), lambda m: nn.init.trunc_normal_(m.weight, std=0.02, a=-0.03, b=0.03)
        )
    )
    law = built.distributions["weight"]
    assert isinstance(law, Truncated)
    assert_std(built.module.weight, law.std, law.kurtosis)


# --- modules


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)))


class Small(nn.Module):
    """In nanoGPT's style: apply, then a loop over names."""

    def __init__(self, forgets: type[nn.Module] | None = None, initializes: bool = True, tied: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_weights=tied)
        self.forgets = forgets
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.wpe = nn.Embedding(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.wte.weight = self.head.weight
        if initializes:
            self.apply(self._init_weights)
            for name, parameter in self.named_parameters():
                if name.endswith("c_proj.weight"):
                    nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * LAYERS))

    def _init_weights(self, module: nn.Module) -> None:
        if self.forgets is not None and isinstance(module, self.forgets):
            return
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)


def test_a_hand_written_gpt() -> None:
    built = build_watched(Small)
    assert built.unwritten == built.untouched == ()
    for name, parameter in built.module.named_parameters():
        scaled = name.endswith("c_proj.weight")
        matrix = Normal(0.02 / math.sqrt(2 * LAYERS) if scaled else 0.02)
        constant = Constant(1.0 if name.endswith("norm.weight") else 0.0)
        assert built.distributions[name] == (matrix if parameter.dim() > 1 else constant), name
    assert "blocks.0.mask" not in built.distributions


def test_what_an_init_function_left_out() -> None:
    assert build_watched(lambda: Small(forgets=nn.Embedding)).untouched == ("wpe.weight",)  # wte is tied to a Linear
    everything_else = build_watched(lambda: Small(forgets=nn.Embedding, tied=False))
    assert everything_else.untouched == ("wte.weight", "wpe.weight")
    assert everything_else.distributions["wte.weight"] == Normal(1.0)


def test_defaults_everywhere_are_no_hole() -> None:
    assert build_watched(lambda: Small(initializes=False)).untouched == ()
    # it draws its matrices again itself
    assert build_watched(lambda: nn.Transformer(8, 2, 1, 1, 8, batch_first=True)).untouched == ()


def test_a_table_of_ones_own_is_no_init_function() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Parameter(torch.empty(8, WIDTH))
            nn.init.normal_(self.positions, std=0.02)
            self.linear = nn.Linear(WIDTH, WIDTH)

    class OwnLinear(nn.Linear):
        def reset_parameters(self) -> None:
            nn.init.normal_(self.weight, std=0.02)
            nn.init.zeros_(self.bias)

    assert build_watched(Positions).untouched == ()
    assert build_watched(lambda: nn.Sequential(OwnLinear(4, 4), nn.Linear(4, 4))).untouched == ()


def only_linears(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def test_multihead_attention_is_no_linear() -> None:
    def build(initialize: Callable[[nn.Module], object]) -> Built:
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32)
        return build_watched(lambda: nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).apply(initialize))

    # made outside, deep-copied inside: nothing is known of the layer, so nothing is said
    assert build(only_linears).untouched == ()

    def inside() -> nn.Module:
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).apply(only_linears)

    built = build_watched(inside)
    assert built.untouched == tuple(f"layers.{layer}.self_attn.in_proj_weight" for layer in range(2))
    law = built.distributions["layers.1.self_attn.in_proj_weight"]
    assert str(law) == str(Uniform(math.sqrt(6 / (4 * WIDTH))))  # Xavier for 3·WIDTH outputs
    assert built.distributions["layers.1.self_attn.out_proj.weight"] == Normal(0.02)


def test_reset_parameters_called_by_an_init_function_is_init() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        nn.init.normal_(module[0].weight)
        module[0].bias.data.zero_()
        module[1].reset_parameters()
        return module

    assert build_watched(build).untouched == ()


# --- memory that was never written


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("inv_freq", 1.0 / 10_000 ** (torch.arange(0, 8, 2) / 8))

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()


class ResetsBuffers(Rotary):
    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.inv_freq.copy_(1.0 / 10_000 ** (torch.arange(0, 8, 2) / 8))


def from_meta(kind: type[Rotary]) -> nn.Module:
    with torch.device("meta"):
        module = kind()
    module.to_empty(device="cpu")
    module.reset_parameters()
    return module


def test_a_buffer_that_to_empty_forgot() -> None:
    assert build_watched(lambda: from_meta(Rotary)).unwritten == ("inv_freq",)
    healthy = build_watched(lambda: from_meta(ResetsBuffers))
    assert healthy.unwritten == ()
    assert not healthy.module.inv_freq.isnan().any()


def half_written(module: nn.Module) -> None:
    module.weight[:50].normal_()


def filled_by_numpy(module: nn.Module) -> None:
    module.weight.numpy()[:] = 0.5


@pytest.mark.parametrize(
    ("make", "then", "unwritten"),
    [
        (empty, id, True),
        (lambda: torch.empty(4, dtype=torch.bfloat16), id, True),
        (lambda: torch.Tensor(4, 4), id, True),
        (lambda: empty() * 0.02, id, True),
        (empty, lambda m: m.weight.mul_(0.02), True),
        (empty, lambda m: m.weight.copy_(empty()), True),
        (empty, half_written, True),
        (empty, lambda m: (half_written(m), m.weight[50:].zero_()), False),
        (empty, filled_by_numpy, False),
        (empty, lambda m: m.weight.bernoulli_(0.5), False),
        (lambda: torch.full((4,), torch.nan), id, False),  # nan that was written: not ours to report
        (lambda: torch.tensor([0.0]) / 0, id, False),
    ],
)
def test_unwritten(make: Callable[[], Tensor], then: Callable[[nn.Module], object], unwritten: bool) -> None:
    assert build_watched(lambda: Holder(make, then)).unwritten == (("weight",) if unwritten else ())


def test_integer_buffers() -> None:
    def build() -> nn.Module:
        module = nn.Module()
        module.register_buffer("forgotten", torch.empty(4, dtype=torch.long))
        module.register_buffer("filled", torch.empty(4, dtype=torch.long).fill_(torch.iinfo(torch.long).max))
        module.register_buffer("parts", torch.empty(4, dtype=torch.long))
        module.parts[:2] = torch.iinfo(torch.long).max
        module.parts[2:] = torch.iinfo(torch.long).max
        module.register_buffer("ids", torch.arange(4))
        module.register_buffer("none", None)
        return module

    assert build_watched(build).unwritten == ("forgotten",)


def test_a_module_on_the_meta_device_has_no_memory() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            return Small()

    built = build_watched(build)
    assert built.unwritten == ()
    assert built.distributions["blocks.0.c_attn.weight"] == Normal(0.02)


# --- nothing is left behind


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize(
    "before", [(False, False, False), (False, False, True), (True, True, False), (True, False, True)]
)
@pytest.mark.parametrize("raises", [False, True])
def test_deterministic_settings_are_restored(before: tuple[bool, bool, bool], raises: bool) -> None:
    def build() -> nn.Module:
        assert settings() == (True, True, True)
        if raises:
            raise ZeroDivisionError
        return nn.Linear(2, 2)

    original = settings()
    filters = list(warnings.filters)
    try:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = before[2]
        if raises:
            with pytest.raises(ZeroDivisionError):
                build_watched(build)
        else:
            build_watched(build)
        assert settings() == before
        assert warnings.filters == filters
        assert type(torch.empty(1) * 2) is Tensor and torch._C._len_torch_dispatch_stack() == 0
        assert torch._C._len_torch_function_stack() == 0
    finally:
        torch._C._set_deterministic_algorithms(original[0], warn_only=original[1])
        torch.utils.deterministic.fill_uninitialized_memory = original[2]


def test_watching_changes_no_draw() -> None:
    def state() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    torch.manual_seed(3)
    plain, after = Small().state_dict(), state()
    torch.manual_seed(3)
    watched = build_watched(Small).module.state_dict()
    assert state() == after
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_torch_dynamo_is_not_imported() -> None:
    code = """
import sys, torch
from torch import nn
from initdiag.subjects.recorder import build_watched
from initdiag.subjects.second_init import second_init
class Model(nn.Linear):
    def init_weights(self):
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.normal_(self.weight, std=0.02).data.clamp_(-1, 1)
        self.bias.data.mul_(0.5)
assert second_init(build_watched(lambda: Model(2, 2)).module) == (("bias", 0.5),)
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- Hugging Face


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


SIZES = {
    "GPT2Config": {
        "n_embd": 32,
        "n_layer": LAYERS,
        "n_head": 2,
        "n_positions": 16,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    "LlamaConfig": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "BloomConfig": {"hidden_size": 32, "n_layer": 2, "n_head": 2},
    "MixtralConfig": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_local_experts": 2,
    },
}


@pytest.mark.parametrize("name", SIZES)
def test_hugging_face_classes(name: str, transformers: object) -> None:
    config = getattr(transformers, name)(vocab_size=100, **SIZES[name])
    built = build_watched(lambda: transformers.AutoModelForCausalLM.from_config(config))
    assert built.unwritten == built.untouched == ()
    for path, parameter in built.module.named_parameters():
        law = built.distributions[path]
        if parameter.dim() > 1:
            scaled = name == "GPT2Config" and path.endswith("c_proj.weight")
            assert law == Normal(0.02 / math.sqrt(2 * LAYERS) if scaled else 0.02), path
        else:
            assert law == Constant(0.0 if path.endswith("bias") else 1.0), path
    tied = config.tie_word_embeddings
    assert tie_of(built.module) == (tied, tied)


# --- ties


def test_a_tie_that_to_empty_undoes() -> None:
    with torch.device("meta"):
        module = Small()
    assert tie_of(module) == (True, True)
    module.to_empty(device="cpu")
    assert tie_of(module) == (True, False)
    module.head.weight = module.wte.weight
    assert tie_of(module) == (True, True)


def with_config(config: object, tied: bool) -> nn.Module:
    module = Small(tied=tied)
    module.config = config
    return module


@pytest.mark.parametrize(
    ("config", "declared"),
    [
        (SimpleNamespace(), None),
        ({"tied": True}, True),
        ({"weight_tying": False}, False),
        ({"weight_sharing": True}, True),
        (SimpleNamespace(untie_embeddings_and_output_weights=True), False),
        (SimpleNamespace(share_embeddings_and_output_weights=True), True),
        (SimpleNamespace(tie_word_embeddings=True, tie_encoder_decoder=False), True),
        (SimpleNamespace(tie_a=True, tied=False), None),
        (SimpleNamespace(properties=True, entities=True, tie=1, cookie_tier=True), None),
    ],
)
def test_tie_flags(config: object, declared: bool | None) -> None:
    for tied in (True, False):
        assert tie_of(with_config(config, tied)) == (declared, tied)


def test_ties_that_cannot_be_told() -> None:
    assert tie_of(nn.Linear(3, 3)) == (None, None)
    functional = Small()
    functional.head = nn.Identity()
    assert tie_of(functional) == (True, None)
    two = Small(tied=False)
    two.second_head = copy.deepcopy(two.head)
    assert tie_of(two) == (False, None)
