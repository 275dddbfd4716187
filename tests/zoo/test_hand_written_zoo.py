"""Hand-written models of many styles: what initdiag reports is what they note themselves: additions, wiring, roles."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import initdiag
from initdiag.measure import Branch
from initdiag.report import Report
from initdiag.rules import Severity
from tests.zoo.hand_written_zoo import VOCAB, ZOO, D, Note, T, Zoo, taking_notes

torch.set_num_threads(1)

# A few float32 additions in another order; the notes hold the very tensors, the report re-reads them.
IDENTITY = 1e-5
SAME_NUMBER = 1e-4  # variances of about 1500 numbers, accumulated in float32 or float64

every_model = pytest.mark.parametrize("name", [cls.__name__ for cls in ZOO])
BY_NAME = {cls.__name__: cls for cls in ZOO}


def build(name: str, seed: int = 0) -> Zoo:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BY_NAME[name]()
        model.eval()
    return model


@dataclass(frozen=True)
class Examined:
    model: Zoo
    report: Report
    notes: list[Note]

    @property
    def branches(self) -> tuple[Branch, ...]:
        return self.report.run.measured.residual.branches

    def names(self, weights: tuple[Tensor, ...]) -> set[str]:
        """Names by identity: a tied or shared tensor has one."""
        return {n for n, p in self.model.named_parameters() if any(p is weight for weight in weights)}

    def pairs(self) -> list[tuple[Note, Branch]]:
        """Notes with branches; those that were summed before they were added may come in either order."""
        pairs, i = [], 0
        while i < len(self.notes):
            notes = self.notes[i : i + self.notes[i].joined]
            found = (
                sorted(
                    self.branches[i : i + len(notes)],
                    key=lambda b: [b.projection in self.names(one.weights) for one in notes].index(True),
                )
                if len(notes) > 1
                else self.branches[i : i + 1]
            )
            pairs += list(zip(notes, found, strict=True))
            i += len(notes)
        return pairs


@cache
def examined(name: str) -> Examined:
    model = build(name)
    read: list[Tensor] = []
    handle = model.register_forward_pre_hook(lambda _, args: read.append(args[0].clone()))
    report = initdiag.check(model, vocab_size=VOCAB)
    handle.remove()
    with torch.no_grad(), taking_notes() as notes:
        model(read[0])
    return Examined(model, report, notes)


def variance(x: Tensor) -> float:
    return float(x.double().var(correction=0))


@every_model
def test_the_notes_are_true(name: str) -> None:
    """The oracle itself, without initdiag: what is noted adds up, and every matrix has a role."""
    model = build(name)
    ids = torch.randint(VOCAB, (2, T), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), taking_notes() as notes:
        model(ids)
    assert len(notes) == model.branches
    i = 0
    while i < len(notes):
        group = notes[i : i + notes[i].joined]
        total = group[0].before.reshape(-1, D) + sum(one.branch.reshape(-1, D) for one in group)
        after = group[-1].after.reshape(-1, D)
        assert float((after - total).norm() / after.norm()) < IDENTITY
        i += len(group)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    assert (parameters[model.head_name] is parameters[model.embedding]) is model.tied
    assert [n for n, p in model.named_parameters() if p.dim() > 1 and not expected(model, n)] == []


def expected(model: Zoo, parameter: str) -> set[str]:
    return {
        role for pattern, roles in model.roles.items() if fnmatchcase(parameter, pattern) for role in roles.split("|")
    }


@every_model
def test_every_branch_is_found(name: str) -> None:
    seen = examined(name)
    found = "\n".join(f"{b.kind} {b.projection} joined {b.joined} {b.source}" for b in seen.branches)
    assert len(seen.branches) == len(seen.notes), found or seen.report.run.measured.wiring.tried
    for note, branch in seen.pairs():
        assert branch.projection in seen.names(note.weights), found
        assert branch.kind in note.kind.split("|"), found
        assert branch.normed is note.normed, found
        assert branch.joined == note.joined, found
        assert branch.stream == 0


@every_model
def test_numbers_are_those_of_the_notes(name: str) -> None:
    seen = examined(name)
    first = seen.notes[0].before
    assert seen.report.run.measured.residual.embedding_variance == pytest.approx(variance(first), rel=SAME_NUMBER)
    for note, branch in seen.pairs():
        assert branch.branch_variance == pytest.approx(variance(note.branch), rel=SAME_NUMBER, abs=1e-15), branch
        assert branch.stream_variance == pytest.approx(variance(note.after), rel=SAME_NUMBER), branch
        assert branch.residue < IDENTITY, branch


@every_model
def test_wiring(name: str) -> None:
    seen = examined(name)
    model, wiring = seen.model, seen.report.run.measured.wiring
    first = {n for n, _ in model.named_parameters()}
    assert wiring.placement == model.placement
    assert wiring.tied is model.tied
    assert wiring.head in ({model.head_name, model.embedding} if model.tied else {model.head_name})
    assert wiring.embedding in ({model.head_name, model.embedding} & first if model.tied else {model.embedding})
    assert (wiring.d_model, wiring.broken) == (D, "")
    assert seen.branches[0].carried == "first"
    assert {branch.carried for branch in seen.branches[1:]} <= set(model.carried.split("|"))


@every_model
def test_roles(name: str) -> None:
    seen = examined(name)
    plan = seen.report.run.subject.plan.by_name
    wrong = []
    for parameter, tensor in seen.model.named_parameters():
        wanted = expected(seen.model, parameter) or small_roles(seen.model, parameter)
        if seen.model.tied and seen.model.get_parameter(parameter) is seen.model.get_parameter(seen.model.embedding):
            wanted = {"token_embedding"}
        entry = plan[parameter].parameter
        if wanted and str(entry.role) not in wanted:
            wrong.append(f"{parameter} {tuple(tensor.shape)}: {entry.role} ({entry.evidence}), not {sorted(wanted)}")
    assert not wrong, "\n".join(wrong)


def small_roles(model: nn.Module, parameter: str) -> set[str]:
    path, _, leaf = parameter.rpartition(".")
    if "norm" in type(model.get_submodule(path)).__name__.lower():
        return {"norm_scale"} if leaf in ("weight", "scale", "a_2") else {"norm_bias"}
    return {"bias"} if leaf in ("bias", "in_proj_bias") else set()


@pytest.mark.parametrize("name", [cls.__name__ for cls in ZOO if cls.parts])
def test_packed_matrices_are_split(name: str) -> None:
    seen = examined(name)
    plan = seen.report.run.subject.plan.by_name
    for pattern, parts in seen.model.parts.items():
        for parameter in (n for n, _ in seen.model.named_parameters() if fnmatchcase(n, pattern)):
            found = {str(part.role): part.rows for part in plan[parameter].parameter.parts}
            assert found == dict(parts), parameter


@every_model
def test_no_errors(name: str) -> None:
    for seed in (0, 1):
        report = initdiag.check(build(name, seed), vocab_size=VOCAB) if seed else examined(name).report
        assert [f for f in report.findings if f.severity is Severity.ERROR] == []


def state(model: nn.Module) -> dict[str, Any]:
    return {n: t.clone() for n, t in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("name", ["NanoStyle", "InPlace", "Checkpointed", "InferenceMode", "Experts"])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_comes_back_as_it_was(name: str, training: bool) -> None:
    model = build(name).train(training)
    before, random_state = state(model), torch.random.get_rng_state()
    initdiag.check(model, vocab_size=VOCAB)
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert model.training is training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    after = state(model)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n], after[n]) for n in before)
