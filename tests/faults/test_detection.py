"""Every kind of fault is caught by its own rule, and its healthy twin has no error.

First the twins themselves are measured by hand, in plain torch: each statistic is on one side of its threshold for the
faulty model and on the other for the healthy one. Definitions and thresholds are those of facts/faults.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.fault_models import TWINS
from benchmarks.faults import check_model, is_the_kinds_own
from benchmarks.gpt_parts import VOCAB_SIZE, Attention, Mixture, Mlp, RMSNorm
from benchmarks.model_factories import Factory
from benchmarks.small_gpt import WithTargets
from initdiag.rules import RULES, Severity

LENGTH = 64
SHORTER = ("tokens.length=128",)  # for time: of 256 that a check would take


def some_ids(batch: int = 4) -> Tensor:
    return torch.randint(VOCAB_SIZE, (batch, LENGTH), generator=torch.Generator().manual_seed(1))


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        found = model.eval()(ids)
    return (found[0] if isinstance(found, tuple) else found).float()


def outputs(model: nn.Module, ids: Tensor, wanted: Callable[[str, nn.Module], bool]) -> dict[str, Tensor]:
    """Run the model and keep what the wanted modules return."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda _, inputs, output: kept.__setitem__(name, output.detach().float().clone())

    handles = [
        module.register_forward_hook(keep(name)) for name, module in model.named_modules() if wanted(name, module)
    ]
    logits_of(model, ids)
    for handle in handles:
        handle.remove()
    return kept


def is_branch(_: str, module: nn.Module) -> bool:
    return isinstance(module, Attention | Mlp | Mixture)


def matrices(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().double() for name, p in model.named_parameters() if p.dim() == 2}


# --- statistics: more than the threshold means the fault


def logit_std(make: Factory) -> float:
    return float(logits_of(make(), some_ids()).std(-1).mean())


def self_logit(make: Factory) -> float:
    ids = some_ids()
    logits = logits_of(make(), ids)
    return float((logits.gather(-1, ids[..., None]).squeeze(-1) - logits.mean(-1)).mean())


def untied(make: Factory) -> float:
    model = make()
    return float(model.head.weight.data_ptr() != model.tokens.weight.data_ptr())


def depth_exponent(make: Factory) -> float:
    """Branch variances over those of the same model drawn without scaling, on the log of the number of branches."""
    model, plain = make(), TWINS["K4 no scaling"].faulty()
    (mine, theirs) = (sum(b.var() for b in outputs(m, some_ids(), is_branch).values()) for m in (model, plain))
    return 1 + float(torch.log(mine / theirs)) / math.log(12)


def out_over_in(make: Factory) -> float:
    """The largest std of a residual projection over the smallest of an input one; scaled, it is 1/√12."""
    stds = {name: float(weight.std()) for name, weight in matrices(make()).items() if "blocks" in name}
    return max(s for n, s in stds.items() if "out" in n) / min(s for n, s in stds.items() if "out" not in n)


def correlation(make: Factory) -> float:
    """The largest |correlation| of two tensors of one shape, or of the halves of one, in standard errors."""
    shapes: dict[tuple[int, ...], list[Tensor]] = {}
    for weight in matrices(make()).values():
        for block in (weight, *weight.chunk(2)):
            shapes.setdefault(tuple(block.shape), []).append(F.normalize(block.flatten(), dim=0))
    stacks = [torch.stack(blocks) for blocks in shapes.values()]
    return max(float((stack @ stack.T).triu(1).abs().max()) * math.sqrt(stack.shape[1]) for stack in stacks)


def unwritten(make: Factory) -> float:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)  # torch.empty then fills with nan
        model = make()
    finally:
        torch.use_deterministic_algorithms(before)
    return float(sum(t.isnan().any() for t in (*model.parameters(), *model.buffers())))


def framework_defaults(make: Factory) -> float:
    """How many matrices hold U(±1/√fan_in) of nn.Linear, or N(1) of nn.Embedding, though 0.02 is declared."""

    def default(name: str, w: Tensor) -> bool:
        if name in ("tokens.weight", "positions.weight"):
            return abs(float(w.std()) - 1) < 0.03
        kurtosis = float(((w - w.mean()) / w.std()).pow(4).mean())
        return abs(kurtosis - 1.8) < 0.1 and 0.99 < float(w.abs().max()) * math.sqrt(w.shape[1]) <= 1.0001

    return float(sum(default(name, weight) for name, weight in matrices(make()).items()))


def damaged_distributions(make: Factory) -> float:
    def damaged(w: Tensor) -> bool:
        z = (w - w.mean()) / w.std()
        far = float(z.abs().max()) > math.sqrt(2 * math.log(w.numel())) + 4
        return far or not 1.7 < float(z.pow(4).mean()) < 3.3 or abs(float(w.mean() / w.std())) * w.numel() ** 0.5 > 5

    return float(sum(damaged(weight) for weight in matrices(make()).values()))


def dead_parameters(make: Factory) -> float:
    """Parameters that still have no gradient after three steps of SGD."""
    model, ids = make(), some_ids()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        if step < 3:
            optimizer.step()
    return float(sum(not p.grad.any() for p in model.parameters()))


def lost_rank(make: Factory) -> float:
    ranks = [
        float(w.square().sum() / torch.linalg.matrix_norm(w, 2) ** 2) / min(w.shape) for w in matrices(make()).values()
    ]
    return 1 - min(ranks)


def norm_output(make: Factory) -> float:
    normed = outputs(make(), some_ids(), lambda _, module: isinstance(module, RMSNorm))
    return max(float(y.square().mean().sqrt()) for y in normed.values())


def residue(make: Factory) -> float:
    """‖out − in − branches‖/‖out‖, worst block."""
    model, ids = make(), some_ids()
    found = outputs(model, ids, lambda name, module: name.count(".") == 1 or is_branch(name, module))
    with torch.no_grad():
        x, residues = model.embed(ids), []
    for i in range(len(model.blocks)):
        after = found[f"blocks.{i}"]
        lost = after - x - found[f"blocks.{i}.attention"] - found[f"blocks.{i}.mlp"]
        residues.append(float(lost.norm() / after.norm()))
        x = after
    return max(residues)


def head_input(make: Factory) -> float:
    """|ln RMS| of what the head reads; a final norm makes it 0."""
    model = make()
    with torch.no_grad():
        return abs(float(model.states(some_ids()).square().mean().sqrt().log()))


def lost_entropy(make: Factory) -> float:
    """1 − entropy of the last query's attention over ln T, least layer."""
    model, entropies = make(), []
    found = outputs(model, some_ids(), lambda name, _: name.endswith(("query", "key")))
    for i in range(len(model.blocks)):
        query, key = (
            found[f"blocks.{i}.attention.{n}"].unflatten(-1, (model.shape.n_heads, -1)) for n in ("query", "key")
        )
        scale = model.shape.attention_scale or key.shape[-1] ** -0.5
        attention = (torch.einsum("bhd,bkhd->bhk", query[:, -1], key) * scale).softmax(-1)
        entropies.append(float(torch.special.entr(attention).sum(-1).mean()) / math.log(LENGTH))
    return 1 - min(entropies)


def leak(make: Factory) -> float:
    """Change of earlier logits with the last token, over the std of the logits; zero matrices become noise."""
    model, ids = make(), some_ids()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % VOCAB_SIZE
    before, after = logits_of(model, ids), logits_of(model, changed)
    return float((after - before)[:, :-1].abs().max() / before.std())


def wrong_shift(make: Factory) -> float:
    """1 where the returned loss isn't the cross-entropy with the next token."""
    model, ids = make(), some_ids()
    if isinstance(model, WithTargets):
        ids, own = ids[:, :-1], {"targets": ids[:, 1:]}
        targets = own["targets"]
    else:
        own, targets = {"labels": ids}, ids[:, 1:]
    with torch.no_grad():
        found = model.eval()(ids, **own)
    logits, returned = found if isinstance(found, tuple) else (found.logits, found.loss)
    right = F.cross_entropy(logits[:, : targets.shape[1]].flatten(0, 1), targets.flatten())
    return float(abs(returned / right - 1) > 1e-5)


def loss_over_mean(make: Factory) -> float:
    model, ids = make(), some_ids()
    with torch.no_grad():
        logits, loss = model(ids, labels=ids)
    return float(loss / F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def lost_tokens(make: Factory) -> float:
    """Share of the last stream's variance that is the same for every sequence."""
    x = outputs(make(), some_ids(32), lambda name, _: name == "blocks.5")["blocks.5"]
    return float(x.mean(0).var() / x.var())


def lost_positions(make: Factory) -> float:
    """1e-3 over the relative change of the first attention's last output when the tokens before it are reversed."""
    model, ids = make(), some_ids()
    permuted = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), 1)
    first, second = (
        outputs(model, i, lambda name, _: name == "blocks.0.attention")["blocks.0.attention"][:, -1]
        for i in (ids, permuted)
    )
    return 1e-3 / max(1e-12, float((second - first).norm() / first.norm()))


def gradient_step(make: Factory) -> float:
    """The largest ratio, either way, of the gradient norms of neighbouring blocks' matrices."""
    model, ids = make(), some_ids()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    norms = [torch.stack([p.grad.norm() for p in block.parameters()]).norm() for block in model.blocks]
    return max(float(torch.log(a / b).abs().exp()) for a, b in pairwise(norms))


def largest_activation(make: Factory) -> float:
    """Of every module, of the squares behind ReLU, and of the attention logits."""
    model = make()
    found = outputs(model, some_ids(1), lambda name, _: bool(name))
    largest = max(float(y.abs().max()) for y in found.values())
    for i in range(len(model.blocks)):
        query, key = (found[f"blocks.{i}.attention.{n}"].unflatten(-1, (4, -1)) for n in ("query", "key"))
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key) * (model.shape.attention_scale or 0.25)
        largest = max(largest, float(logits.abs().max()))
        if model.shape.squared_relu:
            largest = max(largest, float(found[f"blocks.{i}.mlp.up"].relu().square().max()))
    return largest


def init_again(make: Factory) -> float:
    """The largest factor, either way, by which a second init changes a std; two of 64 × 64 differ by 1.6 %."""
    model = make()
    before = {name: weight.std() for name, weight in matrices(model).items()}
    model.init_weights()
    return max(float(torch.log(weight.std() / before[name]).abs().exp()) for name, weight in matrices(model).items())


def expert_share(make: Factory) -> float:
    """The largest share of the assignments that one expert gets, times E."""
    model, ids, shares = make(), some_ids(), []
    counts: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, Mlp):
            module.register_forward_hook(lambda _, inputs, __, name=name: counts.__setitem__(name, inputs[0].shape[0]))
    logits_of(model, ids)
    for i in range(len(model.blocks)):
        mine = [n for name, n in counts.items() if name.startswith(f"blocks.{i}.")]
        shares.append(max(mine) / sum(mine) * len(mine))
    return max(shares)


SHOWN: dict[str, tuple[Callable[[Factory], float], float]] = {
    "K1": (logit_std, 2.0),
    "K2": (self_logit, math.log(VOCAB_SIZE) + 3),
    "K3": (untied, 0.5),
    "K4 no scaling": (depth_exponent, 0.25),
    "K4 scaled twice": (lambda make: -depth_exponent(make), 0.25),
    "K4 wrong matrices": (out_over_in, 0.5),
    "K4 attention alone": (out_over_in, 0.5),
    "K4 MLP in for MLP out": (out_over_in, 0.5),
    "K5": (correlation, 6.0),
    "K6": (unwritten, 0.5),
    "K7": (framework_defaults, 0.5),
    "K8": (damaged_distributions, 0.5),
    "K9": (dead_parameters, 0.5),
    "K10": (lost_rank, 0.95),
    "K11": (norm_output, 1.4),
    "K12": (residue, 1e-3),
    "K13": (head_input, math.log(1.4)),
    "K14": (lost_entropy, 0.7),
    "K15": (leak, 0.0),
    "K16": (wrong_shift, 0.5),
    "K17": (loss_over_mean, 1.001),
    "K18": (lost_tokens, 0.97),
    "K19": (lost_positions, 1.0),
    "K20": (gradient_step, 2.0),
    "K21": (largest_activation, 65504 / 8),
    "K23": (init_again, 1.08),
    "K24": (expert_share, 3.0),
}


@pytest.mark.parametrize("name", TWINS)
def test_the_twins_differ_by_the_fault(name: str) -> None:
    twin = TWINS[name]
    statistic, threshold = SHOWN.get(name) or SHOWN[name.partition(" ")[0]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        faulty, healthy = statistic(twin.faulty), statistic(twin.healthy)
    assert healthy <= threshold < faulty, (healthy, faulty)


def test_every_kind_has_twins() -> None:
    kinds = {name.partition(" ")[0] for name in TWINS}
    assert kinds == {f"K{i}" for i in range(1, 25)} - {"K22"}  # the width law takes three widths


def test_every_rule_named_exists() -> None:
    assert {rule for twin in TWINS.values() for rule in twin.rules} <= set(RULES)


Found = tuple[tuple[str, Severity, str], ...]


@cache  # many twins share the plain model
def findings_of(factory: Factory, watched: bool, backward: bool) -> Found:
    found = check_model(factory, watched, backward, SHORTER).findings
    return tuple((each.rule, each.severity, each.message) for each in found)


@pytest.mark.parametrize("name", TWINS)
def test_the_fault_is_caught_by_its_own_rule(name: str) -> None:
    twin = TWINS[name]
    found = findings_of(twin.faulty, twin.watched, twin.backward)
    assert any(is_the_kinds_own(twin, rule, severity) for rule, severity, _ in found), found


@pytest.mark.parametrize("name", TWINS)
def test_the_healthy_twin_has_no_error(name: str) -> None:
    twin = TWINS[name]
    found = findings_of(twin.healthy, twin.watched, twin.backward)
    assert [each for each in found if each[1] is Severity.ERROR or is_the_kinds_own(twin, *each[:2])] == []
