"""The tracer reports the same residual stream of the real classes of transformers 5.24.0 and of our Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import initdiag
from initdiag import subjects
from initdiag.config import from_mapping
from initdiag.measure import Branch, Measurements
from initdiag.measure.observe import observe
from initdiag.schemes import Role
from initdiag.subjects.loading import load_module
from initdiag.subjects.quiet import quiet
from initdiag.tokens import random_ids
from tests.parity import families_early, families_recent
from tests.parity.family import Family
from tests.parity.tools import B, T, pair

FAMILIES: dict[str, Family] = {family.name: family for family in (*families_early.FAMILIES, *families_recent.FAMILIES)}

# The activations of both agree to 1e-5 (test_logits.py says why) and variances are sums over thousands of them.
SAME = 1e-5

# A parallel block adds three tensors. Most of their classes sum the two branches first, like ours: "joined". These add
# attention to the stream and the MLP to the sum (CohereDecoderLayer.forward, StableLmDecoderLayer.forward), so that
# the tracer sees one more stream than on our side, which nothing reads.
ONE_BY_ONE = ("cohere", "stablelm, parallel")
# MiniCPM3ForCausalLM.forward multiplies what the head reads; ours its logits.
MULTIPLIED_BEFORE_THE_HEAD = ("minicpm3",)

every_family = pytest.mark.parametrize("name", FAMILIES)


@dataclass(frozen=True)
class Observed:
    ours: Measurements
    theirs: Measurements


@cache
def observed(name: str) -> Observed:
    family = FAMILIES[name]
    both = pair(family)
    of = subjects.load(from_mapping({"model": dict(family.model), "init": {"scheme": "gpt2"}}, name))
    batch = random_ids.draw(vocab_size=of.vocab_size, batch=B, length=T, seed=0)
    with torch.no_grad(), quiet():
        both.theirs.config._attn_implementation = "eager"
        theirs = load_module(initdiag.Subject(both.theirs), kwargs={})
        return Observed(observe(of, both.ours, batch), observe(theirs, both.theirs, batch))


def by_layer(measured: Measurements) -> list[Branch]:
    """The branches, attention first: those of a parallel block are added in either order."""
    return sorted(measured.residual.branches, key=lambda branch: (branch.layer, branch.kind))


def pairs(name: str) -> list[tuple[Branch, Branch]]:
    both = observed(name)
    return list(zip(by_layer(both.ours), by_layer(both.theirs), strict=True))


@every_family
def test_number_and_kinds_of_branches(name: str) -> None:
    both = observed(name)
    layers = range(FAMILIES[name].model["n_layers"])
    of_blocks = [(layer, place) for layer in layers for place in range(2)]
    assert [(branch.layer, place % 2) for place, branch in enumerate(both.ours.residual.branches)] == of_blocks
    assert [(b.layer, b.kind) for b in by_layer(both.theirs)] == [(b.layer, b.kind) for b in by_layer(both.ours)]
    assert {branch.kind for branch in both.ours.residual.branches} <= {"attention", "mlp", "moe"}


@every_family
def test_branch_variances(name: str) -> None:
    for mine, theirs in pairs(name):
        assert theirs.branch_variance == pytest.approx(mine.branch_variance, rel=SAME), mine.name


@every_family
def test_stream_variances(name: str) -> None:
    both = observed(name)
    assert both.theirs.residual.embedding_variance == pytest.approx(both.ours.residual.embedding_variance, rel=SAME)
    of_both = [both.ours.residual.branches, both.theirs.residual.branches]
    step = 2 if name in ONE_BY_ONE else 1  # then only after the block
    for mine, theirs in zip(*(branches[step - 1 :: step] for branches in of_both), strict=True):
        assert theirs.stream_variance == pytest.approx(mine.stream_variance, rel=SAME), mine.name
        assert theirs.token_share == pytest.approx(mine.token_share, rel=SAME), mine.name


@every_family
def test_wiring_of_branches(name: str) -> None:
    """How many are summed before they are added, where norms stand, and what the branches read."""
    joined = 2 if FAMILIES[name].model.get("placement") in ("parallel", "parallel_shared") else 1
    for mine, theirs in pairs(name):
        assert mine.joined == joined, mine.name
        assert theirs.joined == (1 if name in ONE_BY_ONE else joined), mine.name
        assert theirs.normed == mine.normed, mine.name
        assert theirs.keep == pytest.approx(mine.keep, rel=SAME)
        assert max(mine.residue, theirs.residue) < SAME


@every_family
def test_what_branches_read(name: str) -> None:
    """The same, by more matrices on our side where theirs are packed; of experts, which read some of the tokens, only
    what the router reads."""
    for mine, theirs in pairs(name):
        one, other = list(mine.reads), list(theirs.reads)
        assert one
        assert other
        assert len({read.normed for read in (*one, *other)}) == 1
        if mine.kind == "moe":
            one, other = ([read for read in reads if "experts" not in read.reader][:1] for reads in (one, other))
        reads = [*one, *other]
        assert [read.rms for read in reads] == pytest.approx([reads[0].rms] * len(reads), rel=SAME)


@every_family
def test_what_happens_to_the_stream(name: str) -> None:
    """In the order of the additions: nothing; multiplied; normed, and by a norm with parameters."""
    of_both = (observed(name).ours, observed(name).theirs)
    carried = [[(b.carried, b.carried_by is None) for b in of.residual.branches] for of in of_both]
    assert carried[0] == carried[1]


def numbers(module: nn.Module, name: str | None) -> Tensor:
    """The numbers of a parameter, sorted, so that it is found again under another name and transposed."""
    assert name is not None
    return module.get_parameter(name).detach().reshape(-1).sort().values


@every_family
def test_residual_projections(name: str) -> None:
    """They are the same tensors on both sides, with the same roles."""
    both, modules = observed(name), pair(FAMILIES[name])
    roles = [{parameter.name: parameter.role for parameter in of.roles} for of in (both.ours, both.theirs)]
    for mine, theirs in pairs(name):
        assert torch.equal(numbers(modules.ours, mine.projection), numbers(modules.theirs, theirs.projection))
        expected = Role.ATTENTION_OUT if mine.kind == "attention" else Role.MLP_OUT
        assert [roles[0][str(mine.projection)], roles[1][str(theirs.projection)]] == [expected, expected]


@every_family
def test_head(name: str) -> None:
    both, modules = observed(name), pair(FAMILIES[name])
    mine, theirs = both.ours.wiring, both.theirs.wiring
    assert torch.equal(numbers(modules.ours, mine.head), numbers(modules.theirs, theirs.head))
    assert torch.equal(numbers(modules.ours, mine.embedding), numbers(modules.theirs, theirs.embedding))
    assert (mine.placement, mine.n_layers, mine.d_model) == (theirs.placement, theirs.n_layers, theirs.d_model)
    assert mine.tied == theirs.tied == modules.ours.shape.tied
    assert (mine.head_bias is None) == (theirs.head_bias is None) == (not modules.ours.shape.biases.head)
    assert mine.head_read is not None and theirs.head_read is not None
    normed = modules.ours.shape.final_norm or modules.ours.shape.placement == "post"
    assert theirs.head_read.normed == mine.head_read.normed == normed
    factor = modules.ours.shape.logit_multiplier if name in MULTIPLIED_BEFORE_THE_HEAD else 1
    assert theirs.head_read.rms == pytest.approx(factor * mine.head_read.rms, rel=SAME)
    assert mine.broken == theirs.broken == ""


@every_family
def test_loss_and_logits(name: str) -> None:
    """Measured in our case by pieces, a range of the vocabulary at a time."""
    both = observed(name)
    assert both.theirs.loss.value == pytest.approx(both.ours.loss.value, rel=SAME)
    for field in ("std", "self_logit", "max_abs", "entropy_ratio"):
        assert getattr(both.theirs.logits, field) == pytest.approx(getattr(both.ours.logits, field), rel=SAME)


@every_family
def test_sharpness_of_attention(name: str) -> None:
    both = observed(name)
    assert len(both.ours.attention) == FAMILIES[name].model["n_layers"]
    for mine, theirs in zip(both.ours.attention, both.theirs.attention, strict=True):
        assert theirs.logit_std == pytest.approx(mine.logit_std, rel=SAME)
        assert theirs.entropy_ratio == pytest.approx(mine.entropy_ratio, rel=SAME)
