"""Rules on what reaches a position: the tokens before it, their order, and nothing of what comes later."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from initdiag.rules.finding import Severity
from initdiag.rules.matrices import code
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import Role

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

# The leak of a causal model is exactly 0, as all rows share their shapes; where experts sum their tokens in another
# order it is a few roundings. A model without a mask leaks 0.1 to 4.
LEAK = 1e-4
LEAK_ROUNDINGS = 4.0

# Without positions float32 sums in another order and moves by 3e-7, half precision rounds that away; twenty-two classes
# with positions move by 1e-3 (rotary, width 64) to 1 (ALiBi).
POSITION = 1e-5
POSITION_ROUNDINGS = 1 / 32

# Depth mixes tokens: of 48 unscaled post-norm layers over 2,048 tokens 0.13 are left, of 48 pre-norm ones 0.39.
# Embeddings of std 0.001 beside positions of 0.02 leave 0.0025, of 0.02 beside sinusoids of 0.7 they leave 0.001.
HEARD = (
    1e-2  # logit std of the first attention below which its weights are equal, and hide any order: it is so where it
)
# reads an embedding of 0.02 without a norm (post-norm)
TOKENS = 0.01
LARGER = 3  # times the token embedding's std: learned positions that are to blame
FEW_TOKENS = 0.05

POSITION_NAME = re.compile(
    r"(^|[._])(wpe|pe|pos|pos_emb\w*|positions?|position(al)?_?(emb|enc|bias)\w*|embed_positions|rope|rotary\w*"
    r"|inv_freq|freqs_cis|alibi\w*|slopes|rel(ative)?_?(pos|attention_bias)\w*)([._]|$)",
    re.IGNORECASE,
)


def _epsilon(evidence: Evidence) -> float:
    """Return the spacing of the coarsest number format among the parameters."""
    dtypes = {parameter.dtype for parameter in evidence.measured.parameters if not parameter.buffer}
    return max((EPSILON.get(dtype, 0.0) for dtype in dtypes), default=0.0)


def _leaks(evidence: Evidence) -> Iterator[Trouble]:
    probe = evidence.measured.probe
    if probe is None or not probe.causal:
        return
    allowed = max(LEAK, LEAK_ROUNDINGS * _epsilon(evidence))
    if probe.leak > allowed:
        yield Trouble(
            f"changing later tokens moves the logits of earlier positions by {probe.leak:.3g} of their std; a causal "
            f"model gives 0, and roundings {allowed:.0e} at most",
            "attention",
            "mask the future in every attention: F.scaled_dot_product_attention(q, k, v, is_causal=True), or "
            "scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -inf) before the softmax; convolutions are "
            "padded on the left only; a model that is meant to see both sides says so with causal=False, or "
            "--bidirectional",
            "model",
        )


def _tokens_lost(evidence: Evidence) -> Iterator[Trouble]:
    branches = evidence.measured.residual.branches
    share = branches[-1].token_share if branches else math.nan
    if share < FEW_TOKENS:
        table = evidence.measured.wiring.embedding or "the token embedding"
        stds = [parameter.std for parameter in evidence.measured.parameters if parameter.name == table]
        yield Trouble(
            f"{share:.2g} of the variance of the stream differs between sequences after the last branch; a healthy "
            f"model keeps 0.1 to 1" + (f". {table} has std {stds[0]:.3g}" if stds else ""),
            table,
            _larger_positions(evidence, stds)
            or f"give {table} the std of what is added to it: 0.02 beside learned positions of 0.02; beside sinusoids, "
            f"which have rms 0.7, multiply by √d_model in the forward ({_multiplied(evidence)}) or draw with std 1; if "
            "the embedding is not small, look for layers whose output is the same for every token",
            "init.std",
            Severity.ERROR if share < TOKENS else Severity.WARNING,
        )


def _multiplied(evidence: Evidence) -> str:
    own = evidence.subject.architecture is not None
    return 'model.embedding_multiplier: "sqrt(d_model)"' if own else "x = embedding(ids) * math.sqrt(d_model)"


def _larger_positions(evidence: Evidence, stds: list[float]) -> str:
    """Say what to write where learned positions are larger than the token embedding, whose std is given."""
    roles = {found.name: found.role for found in evidence.measured.roles}
    for parameter in evidence.measured.parameters:
        if roles.get(parameter.name) is Role.POSITION_EMBEDDING and stds and parameter.std > LARGER * stds[0]:
            own = evidence.subject.architecture is not None
            key = f"init.roles: {{position_embedding: {{normal: {stds[0]:.3g}}}}}"
            return (
                f"{parameter.name} has std {parameter.std:.3g}: give it that of the tokens that it is added to, "
                f"{key if own else code(parameter.name, stds[0])}"
            )
    return ""


def _machinery(evidence: Evidence) -> str | None:
    """Return what is there to give positions: the name of a parameter or buffer, or what the config says."""
    for found in evidence.measured.roles:
        if found.role is Role.POSITION_EMBEDDING:
            return found.name
    blank_first = sorted(
        (*evidence.measured.parameters, *evidence.measured.buffers), key=lambda parameter: parameter.max_abs != 0
    )
    for parameter in blank_first:
        if POSITION_NAME.search(parameter.name) and not parameter.dtype.startswith(("int", "uint", "bool")):
            return parameter.name
    shape = evidence.subject.architecture
    return f"position: {shape.position}" if shape is not None and shape.position != "none" else None


def _positions_lost(evidence: Evidence) -> Iterator[Trouble]:
    probe, shape = evidence.measured.probe, evidence.subject.architecture
    epsilon = _epsilon(evidence)
    if probe is None or not probe.position < max(POSITION, POSITION_ROUNDINGS * epsilon):
        return
    machinery = _machinery(evidence)
    stds = [attention.logit_std for attention in evidence.measured.attention if math.isfinite(attention.logit_std)]
    if machinery is not None and stds and stds[0] < HEARD:
        return
    found = f"reversing the order of earlier tokens moves the first attention's output by {probe.position:.1g}"
    if machinery is not None:
        everything = (*evidence.measured.parameters, *evidence.measured.buffers)
        added = shape is not None or any(one.role is Role.POSITION_EMBEDDING for one in evidence.measured.roles)
        blank = any(tensor.name == machinery and tensor.max_abs == 0 for tensor in everything)
        yield Trouble(
            f"{found}, which is rounding, although there is {machinery}"
            + (", all of it zero" if blank else "")
            + "; expected 1e-3 or more",
            machinery,
            "see that its values differ from position to position and reach the attention: rotary frequencies are "
            "inv_freq = 1 / theta ** (torch.arange(0, head_dim, 2) / head_dim), computed on the real device, and turn "
            "q and k; a table is added to the tokens",
            "model.position",
            # frequencies may serve later layers alone (hybrids with NoPE); half precision rounds small effects away
            Severity.ERROR if blank or (added and epsilon <= EPSILON["float32"]) else Severity.WARNING,
        )
    elif shape is None and not probe.causal:
        yield Trouble(
            f"{found}, which is rounding, and attention that sees both sides has no other way to tell order",
            "attention",
            "add positions, such as x = x + position_embedding(torch.arange(T)), or rotary ones to q and k",
            "model.position",
        )
    elif shape is None:
        yield Trouble(
            f"{found}, which is rounding: the model has no positions, and learns order through the causal mask alone",
            "attention",
            "if that is meant (NoPE), ignore SIG003; else add x = x + position_embedding(torch.arange(T)), or rotary "
            "positions to q and k",
            "model.position",
            Severity.WARNING,
        )


LEAKS = Rule(
    id="SIG001",
    name="future-leak",
    severity="error",
    what="In a causal model, the logits of earlier positions change when later tokens do: by more than 1e-4 of their "
    "std, or four roundings of the model's number format. Short rows of tokens go through the model "
    "together, after all-zero rows and columns of matrices, and closed gates, were replaced by noise. Bidirectional "
    "models are not judged.",
    why="A position that sees its own target copies it. The training loss falls to near zero, generation is noise, "
    "and the loss of an untrained model shows nothing; a model whose output projections start at zero hides it even "
    "from gradients.",
    example="`F.scaled_dot_product_attention(q, k, v)` without is_causal=True.",
    instead="`F.scaled_dot_product_attention(q, k, v, is_causal=True)`.",
    references=("arXiv 1706.03762, section 3.2.3 (masking)",),
    check=_leaks,
    on_trained=True,
)

TOKENS_LOST = Rule(
    id="SIG002",
    name="token-information-lost",
    severity="error; warning between 0.01 and 0.05",
    what="After the last branch, less than 0.01 of the variance of the residual stream differs between sequences of "
    "random tokens: what is left is position and constants. Below 0.05 is a warning. Healthy models keep 0.1 "
    "to 1: half where positions are as large as tokens, less in deep unscaled ones, whose tokens grow alike.",
    why="Norms look at the whole stream. When positions, or a constant, are most of it, the tokens are a rounding "
    "error in every block. The loss starts at ln V all the same.",
    example="An embedding of N(0.02) beside sinusoidal positions without the factor √d_model: 0.001 is left.",
    instead="`x = embedding(ids) * math.sqrt(d_model) + sinusoids`, or an embedding with the std of the positions.",
    references=("arXiv 1706.03762, section 3.4 (embeddings are multiplied by √d_model)", "arXiv 2103.03404"),
    check=_tokens_lost,
)

POSITIONS_LOST = Rule(
    id="SIG003",
    name="position-information-lost",
    severity="error; warning for a causal model that has no positions at all, and for small effects in half precision",
    what="The first attention's output at the last position stays the same, but for rounding, when the earlier tokens "
    "are reversed: it moves by less than 1e-5 of its norm (in bfloat16 2.4e-4). Position encodings move it by "
    "1e-3 to 1. A causal model without any is a known design (NoPE) and only a warning; a config that says "
    "`position: none` is silent.",
    why="Deeper blocks see order through the causal mask, so the logits move and nothing looks wrong, but the model "
    "learns order slowly and badly.",
    example="Rotary frequencies in a buffer that `to_empty()` or a meta device left at zero: every angle is 0.",
    instead="`inv_freq = 1 / theta ** (torch.arange(0, head_dim, 2) / head_dim)`, registered after the weights exist.",
    references=("arXiv 2104.09864 (rotary)", "arXiv 2305.19466 (NoPE)"),
    check=_positions_lost,
)
