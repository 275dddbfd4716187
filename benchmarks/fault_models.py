"""Small models that have every fault of initialization, and their healthy twins.

One hand-written GPT of 6 layers (small_gpt.py) is varied by small functions: wirings (`join`s), losses, and steps of
its init function (init_steps.py). `TWINS` are for tests/faults and benchmarks/faults.py, which prints the detection
matrix; legitimate designs that only look faulty are in trap_models.py. The numbers of kinds (K1) are those of
facts/faults.md. A faulty model and its healthy twin differ by the fault alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpt_parts import STD
from benchmarks.init_steps import (
    HEALTHY,
    constant_up,
    equal_blocks,
    equal_experts,
    equal_halves,
    fill_scales,
    gains_of_one,
    gate_is_up,
    heavy_tails,
    linears_only,
    moved,
    normal,
    normal_but_out,
    outlier,
    rank_one,
    recompute_frequencies,
    redraw,
    scaled,
    scaled_copy,
    scaled_in_place,
    scaled_twice,
    table_of_zeros,
    torch_defaults,
    truncated,
    uniform,
    zero,
    zero_frequencies,
    zero_routers,
)
from benchmarks.model_factories import ROTARY, Factory, build, in_place_loss, small_llama
from benchmarks.small_gpt import (
    WithLabels,
    WithTargets,
    amplified_everywhere,
    amplified_once,
    detached_skip,
    lost_skip,
    normed_stream,
    scaled_branch,
)


@dataclass(frozen=True)
class Twin:
    """A fault and its healthy twin; both factories take a seed.

    rules: ids of which one at least must speak about the faulty model. severity: the least it must have.
    watched: the factory is to be checked, not the module, since the fault shows while it is built.
    """

    faulty: Factory
    healthy: Factory
    rules: tuple[str, ...]
    severity: str = "error"
    watched: bool = False
    backward: bool = False


PLAIN: Factory = partial(build)


def twin(*rules: str, faulty: Any = (), healthy: Any = (), both: Mapping[str, Any] | None = None, **how: Any) -> Twin:
    """Make a Twin: `faulty` and `healthy` are the damages of either, or arguments of build; `both` are of both.

    Twins whose model is the plain one share its factory.
    """

    def factory(what: Any) -> Factory:
        arguments = dict(both or {})
        if isinstance(what, Mapping):
            arguments |= what
            what = ()
        damages = what if isinstance(what, tuple) else (what,)
        return partial(build, *damages, **arguments) if damages or arguments else PLAIN

    return Twin(factory(faulty), factory(healthy), rules, **how)


MIXTURE = {"experts": 8, "n_layers": 3}
TIED_ON_META = {"tied": True, "on_meta": True}
LABELS = {"kind": WithLabels}
TARGETS = {"kind": WithTargets}
OWN_LOSS = {"loss": moved(1)}

TWINS: dict[str, Twin] = {
    "K1 head drawn with std 1": twin("LOGIT001", faulty=redraw("head", std=1.0)),
    "K2 head takes an N(1) table": twin(
        "LOGIT002",
        faulty=(lambda model: setattr(model.head, "weight", model.tokens.weight),),
        healthy=(lambda model: setattr(model.tokens, "weight", model.head.weight),),
        both={"init": (torch_defaults,), **ROTARY},  # learned positions of N(1) would drown the tokens
    ),
    "K2 shared table drawn last, N(1)": twin(
        "LOGIT002", faulty=redraw("tokens", std=1.0), healthy=redraw("tokens", std=STD), both={"tied": True}
    ),
    "K3 tie lost by to_empty": twin("TIE001", healthy={"tied_again": True}, both=TIED_ON_META, watched=True),
    "K3 tie lost, module handed in": twin("TIE001", healthy={"tied_again": True}, both=TIED_ON_META),
    "K4 no scaling": twin("RES001", faulty={"init": (normal,)}, severity="warning"),
    "K4 scaled twice": twin("RES002", faulty=scaled_twice),
    "K4 wrong matrices": twin(
        "RES003", faulty={"init": (normal, redraw("query", "key", "value", "up", std=STD / 12**0.5))}
    ),
    "K4 MLP in for MLP out": twin(
        "RES003", faulty={"init": (normal, redraw("attention.out", "mlp.up", std=STD / 12**0.5))}
    ),
    "K4 attention alone": twin(
        "RES001", "RES003", faulty={"init": (normal, redraw("attention.out", std=STD / 12**0.5))}, severity="warning"
    ),
    "K5 equal blocks": twin("INIT003", faulty=equal_blocks),
    "K5 equal experts": twin("INIT003", faulty=equal_experts, both=MIXTURE),
    "K5 equal halves of a matrix": twin("INIT003", faulty=equal_halves),
    "K5 gate is a copy of up": twin("INIT003", faulty=gate_is_up, both={"gated": True}),
    "K5 a copy times 0.5": twin("INIT003", faulty=scaled_copy),
    "K6 parameter": twin(
        "INIT004", healthy=fill_scales(0.1), both={"extra": "vector", "join": scaled_branch}, watched=True
    ),
    "K6 buffer": twin("INIT004", healthy=recompute_frequencies, both={**ROTARY, "on_meta": True}, watched=True),
    "K7 init never called": twin("INIT002", faulty={"init": (torch_defaults,)}, both={"declares_std": True}),
    "K7 embeddings forgotten": twin("INIT002", faulty={"init": (linears_only, scaled)}, both={"declares_std": True}),
    "K8 bfloat16 truncated normal": twin("INIT005", faulty=truncated(torch.bfloat16), healthy=truncated(torch.float32)),
    "K8 uniform off its centre": twin("INIT005", faulty=uniform(-STD), healthy=uniform(-STD * math.sqrt(3))),
    "K8 a single outlier": twin("INIT005", faulty=outlier),
    "K8 heavy tails": twin("INIT005", faulty=heavy_tails),
    "K9 value and out both zero": twin(
        "GRAD003",
        faulty=zero("attention.value.weight", "attention.out.weight"),
        healthy=zero("attention.out.weight"),
        backward=True,
    ),
    "K9 final gain and head both zero": twin(
        "GRAD003", faulty=zero("head.weight", "norm.weight"), healthy=zero("head.weight"), backward=True
    ),
    "K10 a constant matrix": twin("INIT006", faulty=constant_up),
    "K10 a matrix of rank 1": twin("INIT006", faulty=rank_one),
    "K10 positive entries alone": twin("INIT006", faulty=uniform(0), healthy=uniform(-STD * math.sqrt(3))),
    "K11 gain 1 + w with w = 1": twin("NORM001", faulty=gains_of_one, both={"norm_offset": 1.0}),
    "K12 norm overwrites the stream": twin("RES004", faulty={"join": normed_stream}),
    "K12 a skip is missing": twin("RES004", faulty={"join": lost_skip}),
    "K13 no final norm": twin("NORM002", faulty={"final_norm": False}, severity="warning"),
    "K14 scale 1, Xavier q and k": twin(
        "ATTN001",
        faulty={"attention_scale": 1.0},
        both={"n_heads": 1, "init": (*HEALTHY, redraw("query", "key", std=64**-0.5))},
    ),
    "K15 no mask": twin("SIG001", faulty={"causal": False}),
    "K15 mask off by one": twin("SIG001", faulty={"diagonal": 1}),
    "K15 one layer without mask": twin("SIG001", faulty={"unmasked_layer": 5}),
    "K15 no mask, zero out matrices": twin(
        "SIG001", faulty={"causal": False}, both={"init": (*HEALTHY, zero("attention.out.weight", "mlp.out.weight"))}
    ),
    "K16 labels moved twice": twin("LABEL001", faulty={"loss": moved(2)}, healthy=OWN_LOSS, both=LABELS),
    # of a module of one's own, `labels` may be moved by its caller, so that this can't be more than a warning
    "K16 labels not moved": twin(
        "LABEL001", faulty={"loss": moved(0)}, healthy=OWN_LOSS, both=LABELS, severity="warning"
    ),
    "K16 targets moved again": twin("LABEL001", faulty=OWN_LOSS, healthy={"loss": moved(0)}, both=TARGETS),
    "K16 labels not moved, Llama": Twin(partial(small_llama, loss=in_place_loss), partial(small_llama), ("LABEL001",)),
    "K17 summed loss": twin("LABEL002", faulty={"loss": moved(1, "sum")}, healthy=OWN_LOSS, both=LABELS),
    "K18 token embedding of zero": twin("SIG002", faulty=zero("tokens.weight")),
    "K18 token embedding of 0.001": twin("SIG002", faulty=redraw("tokens", std=1e-3)),
    "K19 no positions": twin("SIG003", faulty={"positions": "none"}, severity="warning"),  # some mean it: NoPE
    "K19 rotary frequencies of zero": twin("SIG003", faulty=zero_frequencies, both=ROTARY),
    "K20 skip detached": twin("GRAD001", faulty={"join": detached_skip}, backward=True),
    "K20 backward × 4 in every block": twin("GRAD001", faulty={"join": amplified_everywhere}, backward=True),
    "K20 backward × 10 in one block": twin("GRAD001", faulty={"join": amplified_once}, backward=True),
    "K21 squared ReLU beyond float16": twin(
        "NUM002",
        faulty=redraw("mlp.up", std=4.0),
        both={"squared_relu": True, "dtype": torch.float16},
    ),
    "K21 attention beyond float16": twin(
        "NUM002",
        faulty=redraw("query", "key", std=3.0),
        both={"attention_scale": 1.0, "dtype": torch.float16},
    ),
    "K23 multiplied in place": twin(
        "INIT008",
        faulty={"init": (normal_but_out, scaled_in_place)},
        healthy={"init": (normal, scaled_in_place)},
        watched=True,
    ),
    "K24 route table of zeros": twin("MOE001", faulty=table_of_zeros, both={**MIXTURE, "routed_by_table": True}),
    "K24 router of zeros": twin("MOE001", faulty=zero_routers, both=MIXTURE),
}
