"""What a tensor's memory holds, as a value, and what an operation makes of it. No torch.

Everything here is of the form mean + scale·x with x from one base: "normal" N(0, 1), "truncated" N(0, 1) cut at ±cut,
"uniform" on (−1, 1), "constant" (the mean alone), "itself" (what the tensor of the name `owner` held before),
"unknown" (written, but no law that we can name) or "nothing" (memory as it was allocated).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

from initdiag.schemes.distributions import Constant, Normal, Truncated, Uniform

# Rows zeroed after a draw (padding): 2 % of them change the std by 1 %, a third of what any check of a std allows.
FEW = 0.02
NO_CUT = 8.0  # a normal exceeds 8σ once in 1e15 draws: cutting it there is not cutting it


@dataclass(frozen=True)
class Content:
    """What the memory of one storage holds.

    fresh: some of it may be memory that nothing wrote. author: whose code wrote it last, "torch" for the constructors
    of torch.nn, else "user". rewritten: the user's code wrote over what those constructors had written. zeroed: share
    of it that was zeroed after the last whole write. pieces: other writes to parts of it since then. piece_factor: a
    number that a part of "itself" was multiplied by. parts: where parts of it hold something else each, all of them, in
    order; () where it is one. why: of an "unknown" one, what made it so. draw: the number of a draw that was copied,
    the same for both; REPEATED where entries occur several times in one tensor.
    """

    base: str
    mean: float = 0.0
    scale: float = 1.0
    cut: float = math.inf
    owner: str = ""
    fresh: bool = False
    author: str = "user"
    rewritten: bool = False
    zeroed: float = 0.0
    pieces: int = 0
    piece_factor: float = 1.0
    parts: tuple[Part, ...] = ()
    why: str = ""
    draw: int = 0

    @property
    def distribution(self) -> Normal | Uniform | Constant | Truncated | None:
        """The law as a distribution of the house; None where it is no centred one, or written in pieces."""
        if self.pieces or self.zeroed > FEW or not (math.isfinite(self.mean) and math.isfinite(self.scale)):
            return None
        if self.base == "constant" or (self.scale == 0 and self.base in ("normal", "uniform", "truncated")):
            return Constant(self.mean)
        scale = abs(self.scale)
        if abs(self.mean) > 1e-9 * scale:  # rounding of 2·u − 1 and the like
            return None
        match self.base:
            case "normal":
                return Normal(scale)
            case "uniform":
                return Uniform(scale)
            case "truncated":
                return Truncated(scale, self.cut)
        return None


class Part(NamedTuple):
    """Entries start … stop − 1 of a storage, and what they hold."""

    start: int
    stop: int
    content: Content


DRAWN = ("normal", "truncated", "uniform")
REPEATED = -1
UNKNOWN = Content("unknown")
NOTHING = Content("nothing", fresh=True)

# Writes that do not read what they overwrite, and whose law we don't name.
OTHER_DRAWS = ("random", "bernoulli", "exponential", "log_normal", "cauchy", "geometric", "eye", "arange", "linspace")
SAME = ("clone", "_to_copy", "contiguous", "_unsafe_view", "_reshape_copy", "view_copy", "alias_copy", "detach_copy")


def root(operation: str) -> str:
    """Return the name without what tells variants apart: "aten::new_zeros", "zeros_like" and "zero_" are "zeros"."""
    name = operation.removeprefix("aten::")
    name = name[:-1] if name.endswith("_") else name
    name = name.removeprefix("new_").removesuffix("_like").removesuffix("_strided")
    return {"zero": "zeros", "empty_quantized": "empty", "empty_permuted": "empty"}.get(name, name)


def drawn(operation: str, given: Mapping[str, Any], number: float | None) -> Content | None:
    """Return what a draw, a fill or an allocation leaves, whatever was there before; None for every other operation.

    Args:
        operation: a root. given: its arguments by name. number: the value of a fill, where it is one number.
    """
    match operation:
        case "empty":
            return NOTHING
        case "zeros":
            return Content("constant")
        case "ones":
            return Content("constant", 1.0)
        case "full" | "fill":
            return unknown_after("filled with a value of its own") if number is None else Content("constant", number)
        case "randn":
            return Content("normal")
        case "rand":
            return Content("uniform", 0.5, 0.5)
        case "normal" if isinstance(given.get("mean"), float | int) and isinstance(given.get("std"), float | int):
            return Content("normal", float(given["mean"]), float(given["std"]))
        case "uniform":
            low, high = float(given["from"]), float(given["to"])
            return Content("uniform", (low + high) / 2, (high - low) / 2)
        case name if name in OTHER_DRAWS:
            return unknown_after(f"filled by {name}()")
    return None


def unknown_after(why: str) -> Content:
    """Return an unknown content with the words for what made it so."""
    return replace(UNKNOWN, why=why)


def truncated(mean: float, std: float, low: float, high: float) -> Content:
    """Return N(mean, std²) cut to [low, high]."""
    if not std > 0:
        return unknown_after("trunc_normal_ without a spread")
    below, above = (mean - low) / std, (high - mean) / std
    if min(below, above) >= NO_CUT:
        return Content("normal", mean, std)
    if math.isclose(below, above, rel_tol=1e-6):
        return Content("truncated", mean, std, above)
    return unknown_after("trunc_normal_ with bounds that don't lie evenly around the mean")


def transformed(operation: str, content: Content, number: float | None, given: Mapping[str, Any]) -> Content:
    """Return what an operation makes of a whole content; "unknown" where the result has no law that we name.

    Args:
        operation: a root. number: the other operand, where it is one number.
    """
    if operation in SAME:
        return content
    made = _transformed(operation, replace(content, parts=()), number, given)
    parts = (part._replace(content=_transformed(operation, part.content, number, given)) for part in content.parts)
    return replace(made, parts=tuple(parts))


def _transformed(operation: str, content: Content, number: float | None, given: Mapping[str, Any]) -> Content:
    unknown = replace(content, base="unknown", cut=math.inf, why=content.why or f"{operation}() was applied to it")
    if operation == "neg":
        return _affine(content, -1.0, 0.0)
    if operation == "erfinv":
        return _erfinv(content) or unknown
    if operation in ("clamp", "clamp_min", "clamp_max"):
        low, high = given.get("min"), given.get("max")
        inside = content.base == "truncated" and _reaches(content, low, high)
        return content if inside else unknown
    if number is None or not math.isfinite(number):
        return unknown
    match operation:
        case "mul":
            return _affine(content, number, 0.0)
        case "div" if number and given.get("rounding_mode") is None:
            return _affine(content, 1 / number, 0.0)
        case "add":
            return _affine(content, 1.0, number * float(given.get("alpha", 1)))
        case "sub":
            return _affine(content, 1.0, -number * float(given.get("alpha", 1)))
        case "rsub" if given.get("alpha", 1) == 1:
            return _affine(content, -1.0, number)
    return unknown


def in_part(content: Content, new: Content | None, share: float, factor: float | None) -> Content:
    """Return a content after a write to a share of it: `new` stands there now, or it was multiplied by a factor."""
    zeros = new is not None and new.base == "constant" and new.mean == 0
    if same_constant(content, new):
        return content
    if zeros and content.base != "itself" and content.zeroed + share <= FEW:
        return replace(content, zeroed=content.zeroed + share)
    if content.base == "itself" and factor is not None and not content.pieces:
        return replace(content, pieces=1, piece_factor=factor)
    return replace(content, pieces=content.pieces + 1)


def same_constant(content: Content, new: Content | None) -> bool:
    """Whether a write leaves a constant as it is."""
    return content.base == "constant" and new is not None and (new.base, new.mean) == ("constant", content.mean)


def _affine(content: Content, factor: float, shift: float) -> Content:
    lost = 1 if shift and content.zeroed else 0  # rows that were zero are no longer
    return replace(
        content,
        mean=content.mean * factor + shift,
        scale=content.scale * factor,
        pieces=content.pieces + lost,
    )


def _erfinv(content: Content) -> Content | None:
    """erfinv(u)·√2 is a truncated standard normal for u uniform on (−b, b): cut where 2Φ(c) − 1 = b."""
    bound = abs(content.scale)
    if content.base != "uniform" or content.mean or not 0 < bound <= 1:
        return None
    cut = NormalDist().inv_cdf((1 + bound) / 2) if bound < 1 else math.inf
    base = "normal" if cut >= NO_CUT else "truncated"
    return replace(content, base=base, scale=math.sqrt(0.5), cut=cut if base == "truncated" else math.inf)


def _reaches(content: Content, low: Any, high: Any) -> bool:
    """Whether a clamp to [low, high] leaves a truncated normal as it is, up to rounding."""
    reach = abs(content.scale) * content.cut * (1 - 1e-4)
    below = low is None or (isinstance(low, float | int) and low <= content.mean - reach)
    above = high is None or (isinstance(high, float | int) and high >= content.mean + reach)
    return below and above
