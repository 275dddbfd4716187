"""Causal language models of transformers: branches, wiring, roles and numbers are those that their source says.

Each row of tests/zoo/causal_lms.py is first held against plain forward hooks, which know nothing of our tracer; then
what `initdiag.check` reports is held against the row and the hooks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import initdiag
from initdiag.measure import Branch, Measurements
from initdiag.report import Report
from initdiag.rules import Severity
from tests.zoo.causal_lms import ROWS, Added, Row, T, V

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # tensors this small only wait for a second thread

# Sums of a few float32 numbers, re-associated: some ulps of 6e-8, over up to 48 features a little more.
IDENTITY = 1e-5
# Variances accumulated in float64 or float32 in another order: 1e-4 is 100 times what that can differ by.
SAME_NUMBER = 1e-4

NAMES = [row.name for row in ROWS]
BY_NAME = {row.name: row for row in ROWS}
every_row = pytest.mark.parametrize("name", NAMES)

# What initdiag rightly says of released classes on their own default init, with the evidence in transformers 5.24.0.
REAL_FAULTS: dict[tuple[str, str], str] = {
    ("nemotron", "NORM001"): "NemotronLayerNorm1P.forward multiplies by weight + 1.0, and nn.LayerNorm and "
    "_init_weights fill weight with ones: every norm starts with a gain of 2",
    ("bart", "LABEL001"): "BartForCausalLM.forward compares logits[:, i] with labels[:, i] (its docstring: the labels "
    "are not shifted): the ids themselves as labels, as for the other classes, train a copy of the input",
}


@cache
def build(row: Row, seed: int) -> nn.Module:
    """The module on its own default init; it comes back from a check as it was, so one does for all tests."""
    cls = getattr(transformers, row.cls)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module: nn.Module = cls(cls.config_class(**row.given)).eval()
    return module


# --- the oracle: forward hooks


@dataclass
class Layer:
    """Of one layer, as (B·T, d): what goes in and comes out, every branch, and the stream after it (where a norm
    reads it, or the layer ends)."""

    before: Tensor
    after: Tensor
    branches: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    residues: list[float] = field(default_factory=list)


def first(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else first(values[0])


def hooked(row: Row, module: nn.Module, ids: Tensor) -> list[Layer]:
    """Run the module with hooks on every module that the row names, and add up what they saw."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for path in {p for layer in range(row.layers) for p in paths(row, layer)}:

        def keep(_: nn.Module, args: Any, kwargs: Any, output: Any, path: str = path) -> None:
            # cloned: Falcon adds to the output of its MLP in place
            seen[path] = (first(args or kwargs["hidden_states"]).clone(), first(output).clone())

        handles.append(module.get_submodule(path).register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad():
        module(ids)
    for handle in handles:
        handle.remove()
    return [added_up(row, layer, seen) for layer in range(row.layers)]


def paths(row: Row, layer: int) -> Iterator[str]:
    root = row.layer.format(layer)
    yield root
    for added in row.of(layer):
        yield f"{root}.{added.output}"
        if added.read_by:
            yield f"{root}.{added.read_by}"


def added_up(row: Row, number: int, seen: dict[str, tuple[Tensor, Tensor]]) -> Layer:
    root = row.layer.format(number)
    before, after = (tensor.reshape(-1, tensor.shape[-1]) for tensor in seen[root])
    layer = Layer(before, after)
    x = before
    for added in row.of(number):
        branch = row.times * seen[f"{root}.{added.output}"][1].reshape(x.shape)
        x = x + branch
        layer.branches.append(branch)
        layer.sums.append(x)
        if added.read_by:
            read, x_normed = (tensor.reshape(x.shape) for tensor in seen[f"{root}.{added.read_by}"])
            layer.residues.append(distance(read, x))
            x = x_normed
    layer.residues.append(distance(after, x))
    return layer


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / a.norm())


def variance(x: Tensor) -> float:
    return float(x.double().var(correction=0))


# --- what initdiag reports


@dataclass(frozen=True)
class Examined:
    row: Row
    module: nn.Module
    ids: Tensor
    report: Report

    @property
    def measured(self) -> Measurements:
        return self.report.run.measured

    @property
    def branches(self) -> tuple[Branch, ...]:
        return self.measured.residual.branches

    def by_layer(self) -> list[tuple[tuple[Added, Branch], ...]]:
        """Pair what is expected with what was found; parallel branches may be reported in either order."""
        found = iter(self.branches)
        pairs = []
        for layer in range(self.row.layers):
            expected = self.row.of(layer)
            group = [next(found) for _ in expected]
            if expected[0].joined > 1:
                root = self.row.layer.format(layer)
                group.sort(key=lambda b: [f"{root}.{added.weights[0]}" for added in expected].index(b.projection or ""))
            pairs.append(tuple(zip(expected, group, strict=True)))
        return pairs


def examined(name: str, seed: int = 0) -> Examined:
    return _examined(name, seed)


@cache  # which takes (name) and (name, 0) for two
def _examined(name: str, seed: int) -> Examined:
    row = BY_NAME[name]
    module = build(row, seed)
    read: list[Tensor] = []
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(ids_of(args, kwargs)), with_kwargs=True
    )
    report = initdiag.check(module, vocab_size=V, overrides=[f"tokens.length={T}"])
    handle.remove()
    return Examined(row, module, read[0], report)


def ids_of(args: Any, kwargs: Any) -> Tensor:
    return (args[0] if args else kwargs["input_ids"]).clone()


# --- the table itself, against hooks


def some_ids() -> Tensor:
    return torch.randint(3, V, (2, T), generator=torch.Generator().manual_seed(0))


def test_there_are_enough_classes() -> None:
    assert len({row.cls for row in ROWS}) >= 45
    assert len(set(NAMES)) == len(ROWS)


@every_row
def test_hooks_agree_with_the_row(name: str) -> None:
    row = BY_NAME[name]
    module = build(row, seed=0)
    for layer in hooked(row, module, some_ids()):
        assert max(layer.residues) < IDENTITY, f"{row.where}: {layer.residues}"
    parameters = dict(module.named_parameters(remove_duplicate=False))
    assert (parameters[row.head].data_ptr() == parameters[row.embedding].data_ptr()) is row.tied
    for parameter in (f"{row.layer.format(n)}.{w}" for n in range(row.layers) for a in row.of(n) for w in a.weights):
        assert parameter in parameters


@every_row
def test_the_row_knows_every_matrix(name: str) -> None:
    row = BY_NAME[name]
    module = build(row, seed=0)
    matrices = {n: p for n, p in module.named_parameters() if p.dim() >= 2}
    assert [n for n in matrices if not expected_roles(row, n)] == []
    for pattern, parts in row.parts.items():
        sizes = [p.shape for n, p in matrices.items() if fnmatchcase(n, pattern)]
        assert sizes, f"{pattern} matches no parameter"
        rows = sorted(r for part in parts.values() for r in part)
        assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(rows))
        assert rows[0][0] == 0
        assert all(rows[-1][1] in shape for shape in sizes), f"{rows[-1][1]} outputs, {sizes}"


def expected_roles(row: Row, parameter: str) -> set[str]:
    return set(
        next((roles for pattern, roles in row.roles.items() if fnmatchcase(parameter, pattern)), "").split("|")
    ) - {""}


# --- what initdiag found, against the row


@every_row
def test_every_branch_is_found(name: str) -> None:
    seen = examined(name)
    row = seen.row
    expected = [(n, added) for n in range(row.layers) for added in row.of(n)]
    found = "\n".join(f"{b.layer} {b.kind} {b.projection} joined {b.joined}" for b in seen.branches)
    assert len(seen.branches) == len(expected), f"{row.where}; found:\n{found or seen.measured.wiring.tried}"
    assert [b.index for b in seen.branches] == list(range(1, len(expected) + 1))
    for layer, pairs in enumerate(seen.by_layer()):
        for added, branch in pairs:
            assert branch.projection in {f"{row.layer.format(layer)}.{weight}" for weight in added.weights}, found
            assert branch.kind in added.kind.split("|"), found
            assert (branch.layer, branch.stream) == (layer, 0)
            assert branch.joined == added.joined, found
            assert branch.normed is added.normed, found


@every_row
def test_the_additive_identity_holds(name: str) -> None:
    for branch in examined(name).branches:
        assert branch.residue < IDENTITY, branch


@every_row
def test_variances_are_those_of_the_hooks(name: str) -> None:
    seen = examined(name)
    layers = hooked(seen.row, seen.module, seen.ids)
    assert seen.measured.residual.embedding_variance == pytest.approx(variance(layers[0].before), rel=SAME_NUMBER)
    for layer, pairs in zip(layers, seen.by_layer(), strict=True):
        last = len(pairs) - 1
        for i, (added, branch) in enumerate(pairs):
            assert branch.branch_variance == pytest.approx(variance(layer.branches[i]), rel=SAME_NUMBER), branch
            if added.joined == 1 or i == last:  # of branches that were summed first, the stream after both is known
                assert branch.stream_variance == pytest.approx(variance(layer.sums[i]), rel=SAME_NUMBER), branch


@every_row
def test_wiring(name: str) -> None:
    seen = examined(name)
    row, wiring = seen.row, seen.measured.wiring
    assert wiring.placement == row.placement
    assert wiring.tied is row.tied
    assert wiring.head in ({row.head, row.embedding} if row.tied else {row.head})
    assert wiring.embedding == row.embedding
    assert wiring.n_layers == row.layers
    assert wiring.d_model == next(iter(hooked(row, seen.module, seen.ids))).before.shape[-1]
    assert wiring.broken == ""
    carried = [branch.carried for branch in seen.branches]
    assert carried[0] == "first"
    if row.placement == "post":
        assert set(carried[1:]) == {"normed"}
    else:
        assert set(carried[1:]) <= {"same"}
        assert all(branch.keep == 1.0 for branch in seen.branches)


@every_row
def test_roles(name: str) -> None:
    seen = examined(name)
    plan = seen.report.run.subject.plan.by_name
    wrong = []
    for parameter, tensor in seen.module.named_parameters():
        expected = expected_roles(seen.row, parameter) if tensor.dim() >= 2 else small_roles(seen.module, parameter)
        if expected and str(plan[parameter].parameter.role) not in expected:
            entry = plan[parameter].parameter
            wrong.append(f"{parameter} {tuple(tensor.shape)}: {entry.role} ({entry.evidence}), not {sorted(expected)}")
    assert not wrong, "\n".join(wrong)


def small_roles(module: nn.Module, parameter: str) -> set[str]:
    """Of a vector: a norm's scale or bias where a norm's class holds it, else a bias; nothing is claimed of others."""
    path, _, leaf = parameter.rpartition(".")
    if "encoder_attn" in parameter:  # BART's decoder without an encoder: never called
        return set()
    if "norm" in type(module.get_submodule(path)).__name__.lower():
        return {"norm_scale" if leaf == "weight" else "norm_bias"}
    if leaf == "bias":
        return {"router_bias" if path.endswith("router") else "bias"}
    return set()


@pytest.mark.parametrize("name", [row.name for row in ROWS if row.parts])
def test_packed_matrices_are_split(name: str) -> None:
    seen = examined(name)
    plan = seen.report.run.subject.plan.by_name
    for pattern, parts in seen.row.parts.items():
        for parameter in (n for n, _ in seen.module.named_parameters() if fnmatchcase(n, pattern)):
            found = {str(part.role): merged(part.rows) for part in plan[parameter].parameter.parts}
            assert found == {role: merged(rows) for role, rows in parts.items()}, parameter


def merged(rows: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Sort intervals and join those that touch."""
    out: list[tuple[int, int]] = []
    for start, stop in sorted(rows):
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return out


@pytest.mark.parametrize(
    "name", [row.name for row in ROWS if any(a.kind == "moe" for n in range(3) for a in row.of(n))]
)
def test_routers(name: str) -> None:
    seen = examined(name)
    routed = sum(added.kind == "moe" for n in range(seen.row.layers) for added in seen.row.of(n))
    assert [router.experts for router in seen.measured.routers] == [4] * routed


@every_row
def test_attention_is_seen_in_every_layer(name: str) -> None:
    seen = examined(name)
    row = seen.row
    layers = [n for n in range(row.layers) if any(added.kind == "attention" for added in row.of(n))]
    assert [attention.layer for attention in seen.measured.attention] == layers
    for attention in seen.measured.attention:
        assert math.isfinite(attention.logit_std)
        assert 0.5 < attention.entropy_ratio <= 1 + 1e-6  # default inits are far from saturated


@pytest.mark.parametrize("seed", [0, 1])
@every_row
def test_default_init_has_no_errors(name: str, seed: int) -> None:
    report = examined(name, seed).report
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    assert [f for f in errors if (name, f.rule) not in REAL_FAULTS] == []
    listed = {rule for row, rule in REAL_FAULTS if row == name}
    assert {f.rule for f in errors} == listed, "a fault that is listed by name is no longer found"
