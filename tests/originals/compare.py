"""Weights that a public package drew, beside the draw of a scheme of ours for the same shape, role by role."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from typing import Any

import pytest
import torch
from torch import Tensor

from initdiag.engines.draw import draw
from initdiag.model import Architecture
from initdiag.model.planning import planned
from initdiag.schemes import (
    Constant,
    Distribution,
    InitPlan,
    Orthogonal,
    PlannedParameter,
    Truncated,
    Uniform,
    scheme_named,
)
from tests.parity.tools import shape_of
from tests.sampling import SIGMAS, assert_near, assert_same_distribution, relative_error_of_std

torch.set_num_threads(1)  # tensors this small only wait for a second thread

ROUNDING = 1e-6  # of a bound that is computed in float32


@cache
def package(name: str, without_init: tuple[str, ...] = ()) -> Any:
    """Import a module of a package of requirements-originals.txt; a missing one skips the test, and in CI fails it.

    It is for tests with the fixture `originals`, not for where a file is collected: every worker collects all files.

    without_init: packages above it whose __init__ is left out, since it imports what this module doesn't need.
    Nothing takes the place of any code: what is imported is the package's own.
    """
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        missing = f"{top} is not installed: 'make test' installs it from requirements-originals.txt"
        assert not os.environ.get("CI"), missing
        pytest.skip(missing)
    with bare(without_init), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what their code is told at import is not about ours
        compiles = torch.compile
        try:
            return importlib.import_module(name)
        finally:
            torch.compile = compiles  # lightning puts a function of its own in its place


@contextmanager
def bare(names: Sequence[str]) -> Iterator[None]:
    """Let the submodules of some packages be imported without running the package's own __init__."""
    added = [name for name in names if name not in sys.modules]
    for name in added:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations is not None, f"{name} is no package"
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        module.__spec__ = spec
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


def same_draws(
    scheme: str,
    model: Mapping[str, Any],
    theirs: Mapping[str, Tensor],
    given: Mapping[str, float | str] | None = None,
    other: Sequence[str] = (),
) -> Architecture:
    """Assert that their weights are draws of a scheme: every parameter of this model, those of one role together.

    theirs: their weights by our names, in our shapes. other: parameters known to differ, by the ends of their names.

    Returns:
        The architecture with what the scheme demands of its forward pass.
    """
    shape, plan = planned(shape_of(model), scheme_named(scheme), given)
    same_as_plan(plan, theirs, other)
    return shape


def same_as_plan(plan: InitPlan, theirs: Mapping[str, Tensor], other: Sequence[str] = ()) -> None:
    """As same_draws, for a plan."""
    ours = {entry.parameter.name: torch.empty(entry.parameter.shape) for entry in plan.entries}
    draw(ours, plan, seed=11, threads=1)
    assert {name: tuple(x.shape) for name, x in theirs.items()} == {name: tuple(x.shape) for name, x in ours.items()}
    entries = [entry for entry in plan.entries if not entry.parameter.name.endswith(tuple(other))]
    assert entries
    for key, members in groupby(sorted(entries, key=_group), _group):
        alike = list(members)
        same_draw(*(_together(x, alike) for x in (theirs, ours)), alike[0].distribution, f"{plan.scheme}: {key}")


def _group(entry: PlannedParameter) -> tuple[str, str]:
    return str(entry.parameter.role), repr(entry.distribution)


def _together(tensors: Mapping[str, Tensor], entries: Sequence[PlannedParameter]) -> Tensor:
    return torch.cat([tensors[entry.parameter.name].detach().flatten() for entry in entries])


def same_draw(theirs: Tensor, ours: Tensor, law: Distribution, what: str) -> None:
    """Assert that their entries and ours are of one distribution, which is `law`.

    Std within five standard errors (6e-7), entries by two-sample Kolmogorov–Smirnov (1e-6), support within the bound:
    with some 1,000 groups in this folder, a false alarm once in 500 choices of seeds.
    """
    theirs = theirs.detach()
    if isinstance(law, Constant):
        assert bool((theirs == ours).all()), f"{what}: {theirs[:3].tolist()} …, ours {law}"
        return
    count = theirs.numel()
    root = float(theirs.double().square().mean().sqrt())
    error = 1e-5 / SIGMAS if isinstance(law, Orthogonal) else relative_error_of_std(count, law.kurtosis)
    assert_near(root, law.std, law.std * error, f"std of {what}")
    assert_same_distribution(theirs, ours, what)
    largest = float(theirs.abs().max())
    if isinstance(law, Uniform):  # the largest of n is below bound · (1 − 20/n) once in e^20
        assert (1 - 20 / count) * law.bound <= largest <= law.bound * (1 + ROUNDING), what
    if isinstance(law, Truncated):
        assert largest <= law.cut * law.sigma * (1 + ROUNDING), what
