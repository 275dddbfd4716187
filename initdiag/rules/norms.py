"""Rules on norms."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.measure import Read
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python

LOWEST, HIGHEST = 0.7, 1.4  # of the RMS of a norm's output: a gain of 1 gives 1, half or double is no accident
CLOSE = 0.1  # relative: what an RMS is compared with is known to a sampling error far below it


def _gains(evidence: Evidence) -> Iterator[Trouble]:
    doubled: dict[str, Read] = {}
    small: dict[str, Read] = {}
    for read in _reads(evidence):
        gain = _gain(evidence, read)
        if not math.isfinite(read.rms) or LOWEST <= read.rms <= HIGHEST or _explained(read, gain):
            continue
        if gain is not None and abs(gain - 1) < CLOSE and abs(read.rms / (1 + gain) - 1) < CLOSE:
            doubled[read.gain or read.reader] = read
        else:
            small[read.gain or read.reader] = read
    if doubled:
        first = next(iter(doubled.values()))
        more = f" ({len(doubled)} norms)" if len(doubled) > 1 else ""
        yield Trouble(
            f"the norm with gain {first.gain} gives a root mean square of {first.rms:.3g}; expected 1: it computes "
            f"(1 + gain), and its gain starts at 1{more}",
            first.gain or first.reader,
            f"nn.init.zeros_({as_python(first.gain or first.reader)}), as (1 + gain) norms have it; or multiply by the "
            "gain alone",
            "model",
        )
    if small:
        first = next(iter(small.values()))
        more = f" ({len(small)} norms)" if len(small) > 1 else ""
        yield Trouble(
            f"{first.reader} reads a normed stream with a root mean square of {first.rms:.3g}; expected between "
            f"{LOWEST:g} and {HIGHEST:g}{more}",
            first.gain or first.reader,
            "look at the gain and at the eps of this norm: an eps that is no longer small beside the variance of the "
            "stream shrinks what the norm gives, and an embedding of a larger std is the cure",
            "init.std",
            Severity.WARNING,
        )


def _reads(evidence: Evidence) -> Iterator[Read]:
    wiring = evidence.measured.wiring
    reads = [read for branch in evidence.measured.residual.branches for read in branch.reads]
    for read in (*reads, *((wiring.head_read,) if wiring.head_read else ())):
        if read.normed and not read.scaled:
            yield read


def _gain(evidence: Evidence, read: Read) -> float | None:
    """Root mean square of the gain parameter."""
    for parameter in evidence.measured.parameters:
        if parameter.name == read.gain:
            return math.hypot(parameter.mean, parameter.std)
    return None


def _explained(read: Read, gain: float | None) -> bool:
    """The norm gives what its own gain says: another gain than 1, zero included, is somebody's choice."""
    if gain is None or abs(gain - 1) < CLOSE:
        return False
    return read.rms == 0 if gain == 0 else abs(read.rms / gain - 1) < CLOSE


def _no_final_norm(evidence: Evidence) -> Iterator[Trouble]:
    wiring, residual = evidence.measured.wiring, evidence.measured.residual
    read = wiring.head_read
    if wiring.placement != "pre" or read is None or read.normed or not residual.branches:
        return
    yield Trouble(
        f"{read.reader} reads the stream as it is, with a root mean square of {read.rms:.3g}, while every branch reads "
        f"it through a norm; expected a final norm before the head",
        read.reader,
        "logits = head(norm(x)) with a norm of its own; without it the logits grow with depth, as √(Σ branch variance)",
        "model.final_norm",
        Severity.WARNING,
    )


GAIN = Rule(
    id="NORM001",
    name="norm-gain",
    severity="error where a (1 + gain) norm starts with gains of 1; warning for another RMS outside 0.7 to 1.4",
    what="What a branch or the head reads through a norm has not the root mean square that the norm's gain says.",
    why="There are two conventions, gain and 1 + gain. A norm of the second kind whose gains are filled with 1 doubles "
    "everything that is read: attention logits are four times as large, and a loss near ln V doesn't show it.",
    example="Gemma's RMSNorm with `nn.init.ones_` from a loop over all norms.",
    instead="Gains of 1 for x·gain, of 0 for x·(1 + gain).",
    references=("transformers, models/gemma/modeling_gemma.py, GemmaRMSNorm", "docs/concepts.md, norm output RMS"),
    check=_gains,
)

NO_FINAL_NORM = Rule(
    id="NORM002",
    name="no-final-norm",
    severity="warning",
    what="The head of a pre-norm model reads the stream without a norm.",
    why="The variance of the stream grows with every branch, and the logits with it: their std then depends on depth, "
    "and on whether the residual projections are scaled.",
    example="`self.ln_f` is built, but forward ends with `return self.head(x)`.",
    instead="`return self.head(self.ln_f(x))`.",
    references=("arXiv 2002.04745, section 3",),
    check=_no_final_norm,
)
