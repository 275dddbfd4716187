"""What a scheme demands of the forward pass, in words that hold for any module."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.errors import PlanError
from initdiag.report.formulas import is_number, names_in, spelled_out
from initdiag.schemes import Scheme
from initdiag.schemes.formula import evaluate
from initdiag.schemes.settings import formula_names

# field of the reference Transformer -> what its number is, in a forward pass
NUMBERS = {
    "embedding_multiplier": "token embeddings times",
    "residual_multiplier": "every branch, before it is added to the stream, times",
    "stream_multiplier": "the stream, before a branch is added to it, times",
    "logit_multiplier": "logits times",
    "attention_scale": "attention logits are query · key times",
    "attention_softcap": "attention logits x become cap·tanh(x / cap) with cap",
    "logit_softcap": "logits x become cap·tanh(x / cap) with cap",
    "eps": "eps of every norm",
}
# and what its words are
WORDS: Mapping[str, Mapping[str, str]] = {
    "placement": {
        "pre": "a norm before every branch: x + f(norm(x))",
        "post": "a norm after every addition: norm(x + f(x))",
        "sandwich": "norms before and after every branch: x + norm(f(norm(x)))",
        "reordered": "a norm after every branch: x + norm(f(x))",
        "parallel": "both branches read the stream at once, each through its norm",
        "parallel_shared": "both branches read the stream at once, through one norm",
        "none": "no norms on the branches: x + f(x)",
    },
    "branch_gain": {
        "scalar": "a learned scalar, role multiplier, at the end of every branch",
        "vector": "a learned vector, role multiplier, at the end of every branch",
    },
    "norm": {"layernorm": "norms are LayerNorm", "rmsnorm": "norms are RMSNorm"},
    "norm_scale": {
        "learned": "norms multiply by a learned vector",
        "one_plus": "norms multiply by 1 + a learned vector",
        "none": "norms have no parameters",
    },
    "qk_norm": {
        "none": "no norms on queries and keys",
        "per_head": "norms on the queries and keys of each head",
        "full": "norms on queries and keys, over their full width",
    },
    "inner_norm": {"true": "norms before the output projections of attention and MLP, too"},
    "embedding_norm": {"true": "a norm on the embeddings"},
    "final_norm": {"true": "a norm before the head", "false": "no norm before the head"},
    "tied": {"true": "the head is the token embedding", "false": "the head is a matrix of its own"},
}


CALIBRATIONS = {
    "lsuv": "after the draw each matrix is divided, in the order of the forward pass, by the std of what it computes "
    "on a batch, where that is off 1 by more than 0.1 (LSUV)"
}


def calibration(scheme: Scheme) -> str:
    """Return what a scheme does to the weights after the draw; '' if nothing."""
    return CALIBRATIONS.get(scheme.calibration, scheme.calibration)


def demands(scheme: Scheme) -> tuple[str, ...]:
    """Return a line for each demand: in words, its formula, and the field of a config that sets it."""
    lines = (_line(field, value, _by_default(value, scheme)) for field, value in scheme.forward.items())
    return (*lines, *_terms(scheme))


def demands_with_numbers(
    scheme: Scheme, sizes: Mapping[str, float], settings: Mapping[str, float | str]
) -> tuple[str, ...]:
    """Return the same with numbers, where the sizes that they take are known; formulas of a layer stay formulas."""
    lines = (_line(field, value, _computed(value, scheme, sizes, settings)) for field, value in scheme.forward.items())
    return (*lines, *_terms(scheme))


def _terms(scheme: Scheme) -> tuple[str, ...]:
    """Return what the short names in formulas stand for."""
    return tuple(f"where {name} is {formula}" for name, formula in scheme.terms.items())


def _line(field: str, value: str, shown: str) -> str:
    if words := WORDS.get(field, {}).get(value.lower()):
        return f"{words} ({field}: {value})"
    if field in NUMBERS:
        return f"{NUMBERS[field]} {shown} ({field})"
    return f"{field}: {shown}"


def _by_default(value: str, scheme: Scheme) -> str:
    if not any(name in scheme.settable for name in names_in(value)):
        return value
    return f"{value} = {spelled_out(value, scheme, numbers=True)} by default"


def _computed(value: str, scheme: Scheme, sizes: Mapping[str, float], settings: Mapping[str, float | str]) -> str:
    if is_number(value):
        return value
    try:
        return f"{value} = {evaluate(value, formula_names(scheme, sizes, settings)):.6g}"
    except PlanError:  # a word, or a formula of what isn't known here
        return value
