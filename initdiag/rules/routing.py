"""Rules on the routers of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator

from initdiag.measure import RouterMeasure
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble

# Load alone can't tell: attention is an average, so tokens grow alike with depth and width, and of the tokens of fresh
# Mixtral, Qwen-MoE and GPT-OSS models (24 to 30 seeds) 0.99 go to one expert from the second layer on. A router that
# can't tell tokens apart sends 1.
ALL = 0.9
FEWEST_TOKENS = 32  # fewer may agree by chance


def _collapse(evidence: Evidence) -> Iterator[Trouble]:
    blank: list[tuple[float, RouterMeasure, str]] = []
    alike: list[tuple[float, RouterMeasure]] = []
    for router in evidence.measured.routers:
        tokens, chosen = _tokens(evidence, router)
        load, filled = min(1.0, router.max_share * chosen), _filled_alike(evidence, router)
        if tokens < FEWEST_TOKENS or not load >= ALL:
            continue
        table = filled == router.name and _has_experts(evidence)  # it doesn't say how many experts there are
        if filled and (table or router.experts > chosen):
            blank.append((load, router, filled))
        elif router.experts > chosen:
            alike.append((load, router))
    if blank:
        load, router, filled = blank[0]
        more = f" and {len(blank) - 1} more" if len(blank) > 1 else ""
        yield Trouble(
            f"router {router.name}{more}: {load:.0%} of the tokens go to one expert; all entries of {filled} are the "
            "same number, so it tells no token from another",
            router.name,
            f"fill {filled}: a matrix with nn.init.normal_(weight, std=0.02), a table of routes with all experts in "
            "turn, torch.arange(vocab_size) % n_experts",
            "init",
        )
    if alike:
        load, router = max(alike, key=lambda entry: entry[0])
        yield Trouble(
            f"router {router.name}: {load:.0%} of the tokens go to one expert of {router.experts}; its matrix is "
            "drawn, so its tokens are alike",
            router.name,
            "attention averages tokens, and small embeddings drown in it: a larger std of the embedding, or residual "
            "projections with std/√(2N), keep tokens apart; many released models start so and rely on a balance loss",
            "init",
            Severity.INFO,
        )


def _has_experts(evidence: Evidence) -> bool:
    """Tell a table of routes from other integers that are looked up, such as token types: there are experts."""
    kinds = any(branch.kind == "moe" for branch in evidence.measured.residual.branches)
    return kinds or any("expert" in parameter.name for parameter in evidence.measured.parameters)


def _tokens(evidence: Evidence, router: RouterMeasure) -> tuple[int, int]:
    """Return how many tokens the router saw, and how many experts each chose; 1 where that can't be told."""
    tokens = len(evidence.measured.positions)
    if tokens and router.assignments and router.assignments % tokens == 0:
        return tokens, router.assignments // tokens
    return router.assignments, 1


def _filled_alike(evidence: Evidence, router: RouterMeasure) -> str | None:
    """Return the name of the router's matrix, or of its table of routes, where all entries are one number.

    The table is a buffer of integers, and the router is named after it (hash layers).
    """
    for tensor in (*evidence.measured.parameters, *evidence.measured.buffers):
        table = tensor.name == router.name and tensor.dtype.startswith(("int", "uint"))
        mine = tensor.name == router.name or tensor.name.startswith(f"{router.name}.")
        matrix = mine and len(tensor.shape) >= 2 and not tensor.buffer
        if (matrix or table) and tensor.numel > 1 and tensor.not_finite == 0 and tensor.std == 0:
            return tensor.name
    return None


COLLAPSE = Rule(
    id="MOE001",
    name="router-collapse",
    severity="error; info where the router is drawn and its tokens are alike",
    what="90 % of the tokens or more choose the same expert, and all entries of the router's matrix, or of its table "
    "of routes, are one number. The same load in a router that is drawn is reported once, as info: tokens grow alike "
    "with depth, and fresh Mixtral and Qwen-MoE models send up to 99 % of them to one expert from the second layer "
    "on. Routers that send every token to all experts, and fewer than 32 tokens, are not judged.",
    why="Experts that get no token get no gradient. With a zero router all experts tie, top-k takes the first ones for "
    "every token, and only chance or a balance loss leads out. The loss of the untrained model does not see it.",
    example="`nn.init.zeros_(gate.weight)`: two experts of 8 get every token.",
    instead="`nn.init.normal_(gate.weight, std=0.02)`, and a balancing bias that starts at 0.",
    references=("arXiv 2101.03961, section 2.2 (load balancing)", "arXiv 2106.04426 (hash layers)"),
    check=_collapse,
)
