"""Every rule against real models, damaged for real: cases are data in tests/cases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from benchmarks.fault_models import TWINS
from initdiag import rules, theory
from initdiag.case import prepare
from initdiag.config import ConfigFile, load, with_init
from initdiag.engines import Settings, dense
from initdiag.measure.observe import observe
from initdiag.rules import RULES, Finding

CASES = Path(__file__).parent.parent / "cases"


def read(rule: str) -> dict[str, list[dict[str, Any]]]:
    return yaml.safe_load((CASES / f"{rule}.yaml").read_text())


def all_cases(verdict: str) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule}: {case['name']}")
        for rule in RULES
        if (CASES / f"{rule}.yaml").exists()
        for case in read(rule)[verdict]
    ]


def configured(case: dict[str, Any]) -> ConfigFile:
    values = dict(case.get("set", {}))
    scheme = values.pop("init.scheme", None)  # as --scheme: it drops the parameters that the new scheme doesn't have
    values.setdefault("tokens.length", 32)  # a quarter of tiny's
    overrides = [f"{path}={yaml.safe_dump(value).splitlines()[0]}" for path, value in values.items()]
    return with_init(load("tiny", overrides), scheme=scheme)


def findings_of(case: dict[str, Any]) -> tuple[Finding, ...]:
    prepared = prepare(configured(case))
    weights = dense.realize(prepared.subject, 0, Settings(device="cpu", dtype=case.get("dtype", "float32")))
    for damage in case.get("damage", []):
        ((kind, what),) = damage.items()
        DAMAGES[kind](weights.module, what, prepared)
    measured = dense.forward(prepared.subject, weights, prepared.batch, observe)
    expected = theory.expect(prepared.subject, prepared.batch, measured)
    return rules.judge(prepared.subject, measured, expected, prepared.file.config.gate)


def matching(module: nn.Module, pattern: str) -> list[torch.Tensor]:
    regex = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [parameter.data for name, parameter in module.named_parameters() if regex.fullmatch(name)]
    assert found, f"no parameter matches {pattern}"
    return found


def fresh(shape: torch.Size, std: float) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) * std


def multiply(module: nn.Module, what: dict[str, float], _: Any) -> None:
    for pattern, factor in what.items():
        for tensor in matching(module, pattern):
            tensor.mul_(factor)


def add(module: nn.Module, what: dict[str, float], _: Any) -> None:
    for pattern, value in what.items():
        for tensor in matching(module, pattern):
            tensor.add_(value)


def fill(module: nn.Module, what: dict[str, float], _: Any) -> None:
    for pattern, value in what.items():
        for tensor in matching(module, pattern):
            tensor.fill_(value)


def fill_one(module: nn.Module, what: dict[str, float], _: Any) -> None:
    for pattern, value in what.items():
        for tensor in matching(module, pattern):
            tensor.view(-1)[0] = value


def redraw(module: nn.Module, what: dict[str, float], _: Any) -> None:
    for pattern, std in what.items():
        for tensor in matching(module, pattern):
            tensor.copy_(fresh(tensor.shape, std))


def rows(module: nn.Module, what: dict[str, list[float]], _: Any) -> None:
    for pattern, (first, std) in what.items():
        for tensor in matching(module, pattern):
            tensor[int(first) :] = fresh(tensor[int(first) :].shape, std)


def train(module: nn.Module, steps: int, prepared: Any) -> None:
    """Some steps on the very batch that is then measured."""
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    inputs, targets = torch.tensor(prepared.batch.inputs), torch.tensor(prepared.batch.targets)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()


DAMAGES = {
    "multiply": multiply,
    "add": add,
    "fill": fill,
    "fill_one": fill_one,
    "redraw": redraw,
    "rows": rows,
    "train": train,
}


OF_MODULES = {rule for twin in TWINS.values() for rule in twin.rules}  # tests/faults: faulty models and healthy twins
BY_THEMSELVES = {"INIT007", "INIT009", "INIT010", "GRAD002"}  # in test_*_rules.py and test_freshness.py


@pytest.mark.parametrize("rule", sorted(set(RULES) - OF_MODULES - BY_THEMSELVES))
def test_every_rule_has_cases_that_pass_and_cases_that_fail(rule: str) -> None:
    cases = read(rule)
    assert cases["pass"] and cases["fail"]


def test_every_file_of_cases_belongs_to_a_rule() -> None:
    assert {path.stem for path in CASES.glob("*.yaml")} <= set(RULES)


@pytest.mark.parametrize(("rule", "case"), all_cases("pass"))
def test_the_rule_is_silent(rule: str, case: dict[str, Any]) -> None:
    assert [finding.message for finding in findings_of(case) if finding.rule == rule] == []


@pytest.mark.parametrize(("rule", "case"), all_cases("fail"))
def test_the_rule_speaks(rule: str, case: dict[str, Any]) -> None:
    found = [finding for finding in findings_of(case) if finding.rule == rule]
    assert len(found) == 1, [finding.rule for finding in findings_of(case)]
    (finding,) = found
    assert finding.severity == case.get("severity", "error")
    assert case.get("says", "") in finding.message
    assert finding.help and finding.subject
    if "at" in case:
        assert finding.location == configured(case).locate(case["at"])
