"""What was measured of a model, as plain dicts and lists: a part of the JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from initdiag.measure import Branch, Read
from initdiag.report.report import Run
from initdiag.schemes import AsFound, Distribution, Part


def residual(run: Run) -> dict[str, Any]:
    """Return the residual stream and its branches."""
    measured = run.measured.residual
    return {
        "embedding_variance": measured.embedding_variance,
        "branch_variance_sum": measured.branch_variance_sum,
        "scaling_ratio": measured.scaling_ratio,
        "expected_scaling_ratio": run.expected.scaling_ratio,
        "branches": [_branch(branch, run.expected.branches.get(branch.index)) for branch in measured.branches],
    }


def _branch(branch: Branch, expected: Branch | None) -> dict[str, Any]:
    return {
        "index": branch.index,
        "name": branch.name,
        "layer": branch.layer,
        "kind": branch.kind,
        "branch_variance": branch.branch_variance,
        "expected_branch_variance": expected.branch_variance if expected else None,
        "stream_variance": branch.stream_variance,
        "expected_stream_variance": expected.stream_variance if expected else None,
        "ratio": branch.ratio,
        "module": branch.module,
        "source": branch.source,
        "stream": branch.stream,
        "carried": branch.carried,
        "carried_by": branch.carried_by,
        "joined": branch.joined,
        "keep": branch.keep,
        "residue": branch.residue,
        "token_share": branch.token_share,
        "normed": branch.normed,
        "reads": [_read(read) for read in branch.reads],
        "gradient_norm": branch.gradient_norm,
        "expected_gradient_norm": expected.gradient_norm if expected else None,
    }


def _read(read: Read) -> dict[str, Any]:
    return {"reader": read.reader, "normed": read.normed, "gain": read.gain, "rms": read.rms}


def wiring(run: Run) -> dict[str, Any]:
    """Return how the model is put together."""
    measured = run.measured.wiring
    return {
        "placement": measured.placement,
        "d_model": measured.d_model,
        "n_layers": measured.n_layers,
        "embedding": measured.embedding,
        "head": measured.head,
        "head_read": _read(measured.head_read) if measured.head_read else None,
        "tied": measured.tied,
        "broken": measured.broken,
        "tried": measured.tried,
    }


def attention(run: Run) -> list[dict[str, Any]]:
    """Return every attention, in the order in which they ran."""
    return [
        {
            "name": one.name,
            "layer": one.layer,
            "logit_std": one.logit_std,
            "entropy_ratio": one.entropy_ratio,
        }
        for one in run.measured.attention
    ]


def probes(run: Run) -> dict[str, Any]:
    """Return routers, the model's own loss, what the second forward showed, and the largest activation; None where
    there was nothing to look at."""
    measured = run.measured
    return {
        "routers": [asdict(router) for router in measured.routers],
        "labels": asdict(measured.labels) if measured.labels else None,
        "probe": asdict(measured.probe) if measured.probe else None,
        "headroom": asdict(measured.headroom) if measured.headroom else None,
    }


def gradients(run: Run) -> dict[str, Any] | None:
    """Return what one backward showed; None where none was run."""
    measured = run.measured.gradients
    if measured is None:
        return None
    return {
        "norms": dict(measured.norms),
        "not_finite": list(measured.not_finite),
        "zero": list(measured.zero),
        "dead": list(measured.dead),
        "steps": measured.steps,
        "skipped": measured.skipped,
    }


def history(run: Run) -> dict[str, Any]:
    """Return what the building of the module showed; what was drawn stands with each parameter."""
    seen = run.measured.history
    return {
        "watched": seen.watched,
        "unwritten": list(seen.unwritten),
        "untouched": list(seen.untouched),
        "rescaled": dict(seen.rescaled),
        "tie_declared": seen.tie_declared,
        "tie_found": seen.tie_found,
    }


def parameters(run: Run) -> list[dict[str, Any]]:
    """Return every parameter: role, what it was to be drawn from, and what it holds."""
    plan = run.subject.plan.by_name
    seen = {parameter.name: parameter for parameter in run.measured.roles}
    found = []
    for measured in run.measured.parameters:
        parameter, distribution = plan[measured.name].parameter, plan[measured.name].distribution
        role = seen.get(measured.name, parameter)  # what the operations showed of it, also where a config planned it
        found.append(
            {
                "name": measured.name,
                "role": str(parameter.role),
                "evidence": role.evidence,
                "parts": parts(role.parts),
                "shape": list(parameter.shape),
                "trainable": measured.trainable,
                "distribution": str(distribution),
                "declared_std": declared_std(distribution),
                "drawn": measured.drawn,
                "measured_std": measured.std,
                "measured_mean": measured.mean,
                "kurtosis": measured.kurtosis,
                "max_abs": measured.max_abs,
                "stable_rank": measured.stable_rank,
            }
        )
    return found


def parts(of: tuple[Part, ...]) -> list[dict[str, Any]]:
    """Return the rows of a packed matrix by role, as [start, stop) pairs."""
    return [{"role": str(part.role), "rows": [list(pair) for pair in part.rows]} for part in of]


def declared_std(distribution: Distribution) -> float | None:
    """Return the std that a distribution promises; None where nobody promised one."""
    return None if isinstance(distribution, AsFound) else distribution.std


def weightless(run: Run) -> dict[str, Any] | None:
    """What a weightless run did without; None for a dense one."""
    if run.notes is None:
        return None
    return {
        "parameters": run.notes.parameters,
        "entries": run.notes.entries,
        "asymptotic": list(run.notes.asymptotic),
        "made_real": [{"parameter": name, "why": why} for name, why in run.notes.made_real],
    }
