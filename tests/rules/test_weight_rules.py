"""Rules on single matrices and on copies: each fault beside its healthy twin, and designs that only look faulty."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from initdiag.config.schema import Gate
from initdiag.measure import (
    InitHistory,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ResidualMeasure,
)
from initdiag.measure.copies import find_copies
from initdiag.measure.weights import measure_parameters
from initdiag.rules import Finding
from initdiag.rules.copies import COPIES
from initdiag.rules.distribution import DAMAGED, DEGENERATE
from initdiag.rules.framework_default import DEFAULT
from initdiag.rules.odd_layer import ODD_LAYER
from initdiag.rules.rule import Evidence
from initdiag.schemes import (
    AsFound,
    Constant,
    Distribution,
    InitPlan,
    Normal,
    Parameter,
    Part,
    PlannedParameter,
    Role,
    Uniform,
)
from initdiag.subjects import Subject
from initdiag.subjects.subject import Declared
from initdiag.theory import Expectations

RULES = (DEFAULT, COPIES, DAMAGED, DEGENERATE, ODD_LAYER)
D, LAYERS, VOCABULARY = 32, 6, 160

ROLES = {
    "emb.weight": Role.TOKEN_EMBEDDING,
    "pos.weight": Role.POSITION_EMBEDDING,
    "head.weight": Role.LM_HEAD,
    "q.weight": Role.ATTENTION_QUERY,
    "k.weight": Role.ATTENTION_KEY,
    "v.weight": Role.ATTENTION_VALUE,
    "qkv.weight": Role.ATTENTION_QUERY,
    "out.weight": Role.ATTENTION_OUT,
    "up.weight": Role.MLP_IN,
    "down.weight": Role.MLP_OUT,
    "router.weight": Role.ROUTER,
    "norm.weight": Role.NORM_SCALE,
    "scale": Role.MULTIPLIER,
    "bias_table": Role.OTHER,
}
QKV = tuple(
    Part(role, ((index * D, (index + 1) * D),))
    for index, role in enumerate((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE))
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.out = nn.Linear(D, D)
        self.up = nn.Linear(D, 4 * D)
        self.down = nn.Linear(4 * D, D)
        self.scale = nn.Parameter(torch.full((D,), 1e-5))  # LayerScale


class Model(nn.Module):
    """Parameters alone: these rules read no forward."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, D)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(D, VOCABULARY, bias=False)


Init = Callable[[Tensor], object]
UNWATCHED = InitHistory()


def normal(std: float = 0.02) -> Init:
    return lambda weight: nn.init.normal_(weight, std=std)


def model(init: Init | None = None, residual: Init | None = None, seed: int = 0, layers: int = LAYERS) -> Model:
    """Build a model; `init` draws all matrices, `residual` those that write into the stream. Default: torch's own."""
    torch.manual_seed(seed)
    module = Model(layers)
    for name, weight in module.named_parameters():
        if init and weight.dim() > 1:
            (residual if residual and re.search(r"out|down", name) else init)(weight)
        elif init and name.endswith("bias"):
            nn.init.zeros_(weight)
    return module


def evidence(
    module: nn.Module,
    std: float | None = None,
    plan: dict[str, Distribution] | None = None,
    history: InitHistory = UNWATCHED,
) -> Evidence:
    """Make the evidence of a module: `std` is declared, `plan` gives distributions by the ends of names."""
    parameters, entries = measure_parameters(module), []
    for measured in parameters:
        role = next((role for end, role in ROLES.items() if measured.name.endswith(end)), Role.BIAS)
        number = re.search(r"\.(\d+)\.", measured.name)
        distribution = next((d for end, d in (plan or {}).items() if measured.name.endswith(end)), None)
        parameter = Parameter(
            measured.name,
            measured.shape,
            role,
            fan_in=measured.shape[-1],
            layer=int(number[1]) if number else None,
            parts=QKV if measured.name.endswith("qkv.weight") else (),
        )
        entries.append(PlannedParameter(parameter, distribution or AsFound(measured.std), measured.std))
    roles = {entry.parameter.name: entry.parameter.role for entry in entries}
    measurements = Measurements(
        loss=LossMeasure(math.log(VOCABULARY), math.log(VOCABULARY), VOCABULARY),
        logits=LogitMeasure(0.1, 0.0, 0.5, 1.0),
        positions=(),
        residual=ResidualMeasure(1.0, (), 1.0),
        attention=(),
        parameters=parameters,
        copies=find_copies(module, roles),
        history=history,
    )
    subject = Subject(module, plan=InitPlan("as built", {}, tuple(entries)), declared=Declared(std=std))
    return Evidence(subject, measurements, Expectations(5.0, 5.0, 0.1, None, {}, None), Gate())


def findings(of: Evidence) -> list[Finding]:
    return [finding for rule in RULES for finding in rule.findings(of)]


def only(rule: str, of: Evidence) -> Finding:
    """Return the one finding; no other rule may speak."""
    found = findings(of)
    assert [finding.rule for finding in found] == [rule], [finding.message for finding in found]
    assert found[0].severity == "error"
    assert found[0].help
    return found[0]


def trunc(cut: float, std: float = 0.02) -> Init:
    return lambda weight: nn.init.trunc_normal_(weight, std=std, a=-cut * std, b=cut * std)


HEALTHY: dict[str, tuple[Init | None, Init | None]] = {
    "torch's own": (None, None),
    "normal": (normal(), None),
    "scaled": (normal(), normal(0.02 / math.sqrt(2 * LAYERS))),
    "zero residual projections": (normal(), nn.init.zeros_),
    "truncated at 1": (trunc(1.0), None),
    "truncated at 2": (trunc(2.0), None),
    "truncated at 3": (trunc(3.0), None),
    "xavier uniform": (nn.init.xavier_uniform_, None),
    "xavier normal": (nn.init.xavier_normal_, None),
    "kaiming uniform": (nn.init.kaiming_uniform_, None),
    "lecun": (lambda weight: nn.init.normal_(weight, std=weight.shape[1] ** -0.5), None),
    "orthogonal": (nn.init.orthogonal_, None),
    "unit-norm rows": (lambda w: w.data.copy_(nn.functional.normalize(torch.randn_like(w), dim=1)), None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name: str, dtype: torch.dtype) -> None:
    assert findings(evidence(model(*HEALTHY[name]).to(dtype))) == []


def test_a_hundred_seeds_of_healthy_models() -> None:
    for seed in range(100):
        init, residual = list(HEALTHY.values())[seed % len(HEALTHY)]
        found = findings(evidence(model(init, residual, seed=seed, layers=4)))
        assert found == [], (seed, [finding.message for finding in found])


# --- INIT002


def test_a_declared_std_that_nobody_applied() -> None:
    assert findings(evidence(model(normal()), std=0.02)) == []
    message = [finding.message for finding in findings(evidence(model(), std=0.02)) if finding.rule == "INIT002"]
    assert len(message) == 1
    assert "emb.weight, and 25 more matrices: nn.Embedding's own default N(1)" in message[0]
    assert "expected std 0.02, as the config declares" in message[0]


def test_defaults_with_nothing_declared_pass_and_so_do_planned_ones() -> None:
    assert findings(evidence(model())) == []
    plan: dict[str, Distribution] = {"emb.weight": Normal(1.0), "down.weight": Uniform(1 / math.sqrt(4 * D))}
    plan |= {name: Uniform(1 / math.sqrt(D)) for name in ("qkv.weight", "out.weight", "up.weight", "head.weight")}
    assert findings(evidence(model(), plan=plan)) == []
    assert findings(evidence(model(), std=1 / math.sqrt(3 * D), plan=plan))[0].subject == "emb.weight"


def test_a_plan_that_was_not_drawn() -> None:
    finding = only("INIT002", evidence(model(), plan={"up.weight": Normal(0.02)}))
    assert finding.subject == "blocks.0.up.weight"
    assert "std=0.02" in finding.help


def test_one_kind_of_matrix_that_the_init_function_misses() -> None:
    torch.manual_seed(1)
    module = model(normal())
    for block in module.blocks:
        block.up.reset_parameters()
    finding = only("INIT002", evidence(module))
    assert finding.subject == "blocks.0.up.weight"
    assert "18 of the 24 matrices in the layers carry another init" in finding.message
    assert "std=0.02" in finding.help


def test_a_head_an_embedding_or_a_router_left_alone_is_a_choice() -> None:
    module = model(normal())
    module.head.reset_parameters()
    module.emb.reset_parameters()
    for block in module.blocks:
        block.router = nn.Linear(D, 8, bias=False)
    assert findings(evidence(module)) == []


def test_a_plan_that_is_the_default_of_a_few_shapes_is_kept() -> None:
    """Fixup's U((2N)^(-1/6)·√(3/(fan_in + fan_out))) is U(1/√fan_in) where fan_out is half of fan_in and N is 4."""
    mixed = model(normal())
    for block in mixed.blocks:
        nn.init.uniform_(block.up.weight, -1 / math.sqrt(D), 1 / math.sqrt(D))
    planned = {"up.weight": Uniform(1 / math.sqrt(D))}
    seen = evidence(mixed, plan=planned)
    scheme = replace(seen.subject, plan=replace(seen.subject.plan, scheme="mine"))
    assert [finding.rule for finding in findings(replace(seen, subject=scheme))] == []
    assert "INIT002" in {finding.rule for finding in findings(evidence(mixed))}


def test_half_of_the_matrices_at_their_default_is_a_scheme() -> None:
    """Torch's own with scaled residual projections."""
    module = model()
    for block in module.blocks:
        nn.init.normal_(block.out.weight, std=0.01)
        nn.init.normal_(block.down.weight, std=0.01)
    assert findings(evidence(module)) == []


def test_an_init_function_that_draws_the_default_on_purpose() -> None:
    module = model(normal())
    for block in module.blocks:
        block.out.reset_parameters()  # as Mamba's does
    names = tuple(f"blocks.{layer}.out.weight" for layer in range(LAYERS))
    assert findings(evidence(module, std=0.02, history=InitHistory(watched=True))) == []
    only("INIT002", evidence(module, std=0.02, history=InitHistory(watched=True, untouched=names)))
    only("INIT002", evidence(module, std=0.02))
    everything = evidence(model(), std=0.02, history=InitHistory(watched=True))  # no init function ran at all
    assert [finding.rule for finding in findings(everything)] == ["INIT002"]


@pytest.mark.parametrize("seed", range(20))
def test_other_uniforms_are_no_fingerprint(seed: int) -> None:
    for factor in (0.9, 1.1, math.sqrt(3)):
        bound = factor / math.sqrt(D)
        uniform = model(lambda weight, bound=bound: nn.init.uniform_(weight, -bound, bound), seed=seed)
        assert [f for f in findings(evidence(uniform, std=0.5)) if f.subject != "blocks.0.down.weight"] == []


# --- INIT003


def test_equal_layers() -> None:
    module = model(normal())
    module.blocks[3] = copy.deepcopy(module.blocks[0])
    finding = only("INIT003", evidence(module))
    assert "4 tensors hold the numbers of another: blocks.3.qkv.weight = blocks.0.qkv.weight" in finding.message
    assert "and 1 more" in finding.message
    module.blocks[3] = module.blocks[0]  # declared: the same layer
    assert findings(evidence(module)) == []


def test_scaled_layers_and_equal_row_blocks() -> None:
    module = model(normal())
    module.blocks[2].up.weight.data = -module.blocks[1].up.weight.data
    assert "blocks.2.up.weight ≈ -1 · blocks.1.up.weight" in only("INIT003", evidence(module)).message
    module = model(normal())
    module.blocks[1].qkv.weight.data[D : 2 * D] = module.blocks[1].qkv.weight.data[:D]
    finding = only("INIT003", evidence(module))
    assert "1 matrix repeats a block of its own: blocks.1.qkv.weight[32:64] = blocks.1.qkv.weight[0:32]" in (
        finding.message
    )
    assert "model.blocks[1].qkv.weight," in finding.help


# --- INIT005


def damaged(change: Callable[[Tensor], object], name: str = "blocks.2.up.weight") -> Evidence:
    module = model(normal())
    with torch.no_grad():
        change(module.get_parameter(name))
    return evidence(module)


def test_truncated_normals_of_bfloat16() -> None:
    """erfinv(±1) = ±inf, clamped to ±2: one entry in 256 is a hundred stds out."""

    def change(weight: Tensor) -> None:
        noise = (
            torch.rand(weight.shape, generator=torch.Generator().manual_seed(0)).mul(256).floor().div(256).bfloat16()
        )
        weight.copy_((noise.mul(2).sub(1).erfinv() * 0.02 * math.sqrt(2)).clamp(-2, 2))

    found = {finding.rule: finding for finding in findings(damaged(change))}
    assert "kurtosis" in found["INIT005"].message


def test_a_few_large_entries() -> None:
    finding = only("INIT005", damaged(lambda weight: weight.view(-1)[7].fill_(0.3)))
    assert "its largest |entry|, 0.3, is" in finding.message
    assert findings(damaged(lambda weight: weight.view(-1)[7].fill_(0.09))) == []


def test_a_mean() -> None:
    size = 4 * D * D
    assert "mean" in only("INIT005", damaged(lambda weight: weight.add_(0.02 * 7 / math.sqrt(size)))).message
    assert findings(damaged(lambda weight: weight.add_(-weight.mean() + 0.02 * 4 / math.sqrt(size)))) == []


def test_two_values_are_no_sample() -> None:
    finding = only("INIT005", damaged(lambda weight: weight.copy_(0.02 * weight.sign())))
    assert "kurtosis 1, expected 1.6" in finding.message


@pytest.mark.parametrize("factor", [0.0, 1 / 8, 1 / 64, 8.0])
def test_a_packed_matrix_may_be_a_mixture(factor: float) -> None:
    """Queries of another std (T5's), zero queries (muP)."""
    module = model(normal())
    with torch.no_grad():
        for block in module.blocks:
            block.qkv.weight[:D] *= factor
    assert findings(evidence(module)) == []
    with torch.no_grad():
        for block in module.blocks:
            block.qkv.weight[5, 5] = 0.02 * 100
    only("INIT005", evidence(module))


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_an_embedding_may_have_padding_rows(share: float) -> None:
    rows = int(VOCABULARY * share)
    assert findings(damaged(lambda weight: weight[-rows:].zero_(), "emb.weight")) == []
    assert findings(damaged(lambda weight: weight[-rows:].zero_(), "head.weight")) == []
    assert findings(damaged(lambda weight: weight[0].fill_(0), "emb.weight")) == []
    if share < 0.5:  # then it is a mixture that padding makes as well
        assert only("INIT005", damaged(lambda weight: weight[-rows:].mul_(50), "emb.weight"))


def test_bfloat16_uniform_is_off_zero_by_half_a_step() -> None:
    module = nn.Module()
    module.up = nn.Linear(2048, 2048, bias=False, dtype=torch.bfloat16)
    (measured,) = measure_parameters(module)
    assert abs(measured.mean) > 5 * measured.std / math.sqrt(measured.numel)  # what the slack is for
    assert findings(evidence(module)) == []


def test_structured_tensors_are_not_judged() -> None:
    module = model(normal())
    module.bias_table = nn.Parameter(torch.linspace(-8, 3, 512).reshape(64, 8))
    module.scale = nn.Parameter(torch.full((64, 64), 1e-5))
    angles = torch.arange(512.0)[:, None] * 10_000 ** -(torch.arange(D / 2) / (D / 2))
    module.pos = nn.Embedding.from_pretrained(torch.cat([angles.sin(), angles.cos()], 1), freeze=False)
    assert findings(evidence(module)) == []


# --- INIT006


@pytest.mark.parametrize("value", [0.02, 1.0, -1e-6])
def test_a_constant_matrix(value: float) -> None:
    module = model(normal())
    for block in module.blocks:
        nn.init.constant_(block.up.weight, value)
    finding = only("INIT006", evidence(module))
    assert f"blocks.0.up.weight, and 5 more matrices: every entry is {value:.4g}" in finding.message
    seen = evidence(module, plan={"up.weight": Constant(value)})  # as the init code was seen to fill it
    assert only("INIT006", seen).message == finding.message
    scheme = replace(seen.subject, plan=replace(seen.subject.plan, scheme="mine"))
    assert findings(replace(seen, subject=scheme)) == []  # it says so itself
    for block in module.blocks:
        nn.init.zeros_(block.up.weight)
    assert findings(evidence(module)) == []


@pytest.mark.parametrize("name", ["up", "router"])
def test_rank_one(name: str) -> None:
    module = model(normal(), layers=1)
    module.blocks[0].router = nn.Linear(D, 8, bias=False)
    weight = module.blocks[0].get_submodule(name).weight
    with torch.no_grad():
        weight.copy_(torch.outer(torch.randn(len(weight)), 0.02 * torch.randn(D)))
    assert f"blocks.0.{name}.weight: stable rank" in only("INIT006", evidence(module)).message


# --- INIT007


def test_one_layer_without_its_init() -> None:
    module = model(normal())
    torch.manual_seed(3)
    nn.init.xavier_normal_(module.blocks[4].up.weight)
    finding = only("INIT007", evidence(module))
    assert finding.subject == "blocks.4.up.weight"
    assert "blocks.*.up.weight has std 0.11" in finding.message
    assert "in layer 4; expected 0.02" in finding.message and "in the other 5 of 6 layers" in finding.message
    assert "std=0.02" in finding.help


def test_a_whole_layer_rebuilt_after_init_is_one_finding() -> None:
    module = model(normal())
    torch.manual_seed(3)
    module.blocks[1] = Block()
    found = [finding for finding in findings(evidence(module)) if finding.rule == "INIT007"]
    assert len(found) == 1
    assert "and 3 more matrices of the same layers" in found[0].message


def test_a_zero_matrix_in_a_minority() -> None:
    module = model(normal())
    nn.init.zeros_(module.blocks[2].down.weight)
    assert "std 0 in layer 2" in only("INIT007", evidence(module)).message
    for block in module.blocks:
        nn.init.zeros_(block.down.weight)
    assert findings(evidence(module)) == []
    torch.manual_seed(3)
    nn.init.normal_(module.blocks[2].down.weight, std=0.02)
    assert "nn.init.zeros_(model.blocks[2].down.weight)" in only("INIT007", evidence(module)).help


@pytest.mark.parametrize(
    "std", [lambda i: 0.02 / math.sqrt(2 * (i + 1)), lambda i: 0.02 * 0.8**i, lambda i: 0.02 * (1 + (i >= LAYERS / 2))]
)
def test_depth_dependent_stds_pass(std: Callable[[int], float]) -> None:
    module = model(normal())
    for layer, block in enumerate(module.blocks):
        nn.init.normal_(block.down.weight, std=std(layer))
    assert findings(evidence(module)) == []


def test_layers_of_other_shapes_and_few_layers_are_not_compared() -> None:
    module = model(normal(), layers=3)
    nn.init.normal_(module.blocks[2].up.weight, std=0.1)
    assert findings(evidence(module)) == []
    module = model(normal())
    module.blocks[2].up = nn.Linear(D, 8 * D)
    nn.init.normal_(module.blocks[2].up.weight, std=0.1)
    assert findings(evidence(module)) == []


def test_parameters_that_the_plan_does_not_have_are_skipped() -> None:
    of = evidence(model())
    bare = Evidence(Subject(of.subject.module, declared=Declared(std=0.02)), of.measured, of.expected, of.gate)
    assert findings(bare) == []
