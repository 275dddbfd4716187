"""Encoders, encoder-decoders and PyTorch's own Transformer layers: two streams, cross-attention, no causality.

The oracle is plain forward hooks, as in tests/zoo/test_causal_lms.py: what a branch's last module gives, and what
stands on the stream after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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

torch.set_num_threads(1)

V, D, HEADS, FF, LAYERS, T = 300, 48, 4, 80, 2, 32
IDENTITY = 1e-5  # float32 sums of a few numbers
SAME_NUMBER = 1e-4  # float32 variances, accumulated in another order

Q, K, VALUE, OUT = "attention_query", "attention_key", "attention_value", "attention_out"
UP, DOWN, TOKENS, POSITIONS = "mlp_in", "mlp_out", "token_embedding", "position_embedding"


@dataclass(frozen=True)
class Expected:
    """One branch: out is the module whose output it is; the sum is input ("in") or output ("out") of module `sum`."""

    kind: str
    weight: str
    out: str
    sum: str
    side: str
    stream: int = 0


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    branches: tuple[Expected, ...]
    placement: str
    roles: Mapping[str, str]
    head: str
    embedding: str
    tied: bool
    forward: Callable[[nn.Module, Tensor], Any] | None = None
    causal: bool = True


# --- Hugging Face


def from_config(cls: str, **given: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    made = getattr(transformers, cls)
    module: nn.Module = made(made.config_class(**given))
    return module


BERT_SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": FF,
    "max_position_embeddings": 64,
}
BERT_ROLES = {
    "*word_embeddings.weight": TOKENS,
    "*position_embeddings.weight": POSITIONS,
    "*token_type_embeddings.weight": f"{POSITIONS}|{TOKENS}|other",
    "*.self.query.weight": Q,
    "*.self.key.weight": K,
    "*.self.value.weight": VALUE,
    "*.attention.output.dense.weight": OUT,
    "*.intermediate.dense.weight": UP,
    "*.output.dense.weight": DOWN,
    "*transform.dense.weight": f"other|{UP}",  # between the stream and the head
    "lm_head.dense.weight": f"other|{UP}",
}


def bert_branches(prefix: str) -> Iterator[Expected]:
    for n in range(LAYERS):
        layer = f"{prefix}.encoder.layer.{n}"
        for kind, part in (("attention", f"{layer}.attention.output"), ("mlp", f"{layer}.output")):
            yield Expected(kind, f"{part}.dense.weight", f"{part}.dense", f"{part}.LayerNorm", "in")


def bert(cls: str, prefix: str, head: str) -> Case:
    return Case(
        lambda: from_config(cls, **BERT_SIZES),
        tuple(bert_branches(prefix)),
        "post",
        BERT_ROLES,
        head,
        f"{prefix}.embeddings.word_embeddings.weight",
        tied=True,
        causal=False,
    )


def both(module: nn.Module, ids: Tensor) -> Any:
    return module(input_ids=ids, decoder_input_ids=ids)


def t5_branches() -> Iterator[Expected]:
    for stream, stack in enumerate(("encoder", "decoder")):
        parts = [
            ("attention", "SelfAttention.o"),
            ("cross_attention", "EncDecAttention.o"),
            ("mlp", "DenseReluDense.wo"),
        ]
        parts = [part for part in parts if stack == "decoder" or part[0] != "cross_attention"]
        for n in range(LAYERS):
            for i, (kind, name) in enumerate(parts):
                layer = f"{stack}.block.{n}.layer.{i}"
                yield Expected(kind, f"{layer}.{name}.weight", f"{layer}.{name}", layer, "out", stream)


def t5() -> Case:
    sizes = {"vocab_size": V, "d_model": D, "d_kv": D // HEADS, "d_ff": FF, "num_layers": LAYERS, "num_heads": HEADS}
    return Case(
        lambda: from_config("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0),
        tuple(t5_branches()),
        "pre",
        {
            "shared.weight": TOKENS,
            "*.q.weight": Q,
            "*.k.weight": K,
            "*.v.weight": VALUE,
            "*.o.weight": OUT,
            "*.wi.weight": UP,
            "*.wo.weight": DOWN,
            "*.relative_attention_bias.weight": f"{POSITIONS}|other",  # buckets of distances, added to attention logits
        },
        "lm_head.weight",
        "shared.weight",
        tied=True,
        forward=both,
        causal=False,  # the encoder reads all of the ids
    )


def bart_branches() -> Iterator[Expected]:
    for stream, stack in enumerate(("encoder", "decoder")):
        for n in range(LAYERS):
            layer = f"model.{stack}.layers.{n}"
            yield post(layer, "attention", "self_attn.out_proj", "self_attn_layer_norm", stream)
            if stream:
                yield post(layer, "cross_attention", "encoder_attn.out_proj", "encoder_attn_layer_norm", stream)
            yield post(layer, "mlp", "fc2", "final_layer_norm", stream)


def post(layer: str, kind: str, out: str, norm: str, stream: int) -> Expected:
    return Expected(kind, f"{layer}.{out}.weight", f"{layer}.{out}", f"{layer}.{norm}", "in", stream)


def bart() -> Case:
    sizes: dict[str, Any] = {"vocab_size": V, "d_model": D, "max_position_embeddings": 64}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": LAYERS, f"{stack}_attention_heads": HEADS, f"{stack}_ffn_dim": FF}
    return Case(
        lambda: from_config("BartForConditionalGeneration", **sizes),
        tuple(bart_branches()),
        "post",
        {
            "model.shared.weight": TOKENS,
            "*embed_positions.weight": POSITIONS,
            "*.q_proj.weight": Q,
            "*.k_proj.weight": K,
            "*.v_proj.weight": VALUE,
            "*.out_proj.weight": OUT,
            "*.fc1.weight": UP,
            "*.fc2.weight": DOWN,
        },
        "lm_head.weight",
        "model.shared.weight",
        tied=True,
        forward=both,
        causal=False,
    )


# --- torch.nn: their own layers, with a table before and a head behind


class Around(nn.Module):
    """Tables, PyTorch's layers, a head; N(0, 0.02²) and biases of zero, as in most code around them.

    Without that, the layers are copies of one: see test_layers_as_pytorch_makes_them_are_copies.
    """

    def __init__(self, norm_first: bool, batch_first: bool = True, initialised: bool = True) -> None:
        super().__init__()
        self.tok, self.pos, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V, bias=False)
        self.options: dict[str, Any] = {
            "d_model": D,
            "nhead": HEADS,
            "dim_feedforward": FF,
            "norm_first": norm_first,
            "batch_first": batch_first,
        }
        self.batch_first = batch_first
        self.make()
        if initialised:
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

    def make(self) -> None:
        raise NotImplementedError

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        return x if self.batch_first else x.transpose(0, 1)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x if self.batch_first else x.transpose(0, 1))

    def mask(self, ids: Tensor) -> Tensor:
        return nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)


class Encoder(Around):
    def make(self) -> None:
        layer = nn.TransformerEncoderLayer(**self.options)
        final = nn.LayerNorm(D) if self.options["norm_first"] else None
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=final, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.layers(self.embed(ids), mask=self.mask(ids), is_causal=True))


class Decoder(Around):
    """nn.TransformerDecoder over a memory: a table of its own, looked up by the same ids at the first position."""

    def make(self) -> None:
        layer = nn.TransformerDecoderLayer(**self.options)
        final = nn.LayerNorm(D) if self.options["norm_first"] else None
        self.layers = nn.TransformerDecoder(layer, LAYERS, norm=final)
        self.memory = nn.Embedding(V, D)

    def forward(self, ids: Tensor) -> Tensor:
        memory = self.memory(ids[:, :1])
        return self.logits(self.layers(self.embed(ids), memory, tgt_mask=self.mask(ids), tgt_is_causal=True))


class Both(Around):
    """nn.Transformer: the first token is the source, all of them the target."""

    def make(self) -> None:
        self.layers = nn.Transformer(num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, **self.options)

    def forward(self, ids: Tensor) -> Tensor:
        source, target = self.embed(ids[:, :1]), self.embed(ids)
        return self.logits(self.layers(source, target, tgt_mask=self.mask(ids), tgt_is_causal=True))


TORCH_ROLES = {
    "tok.weight": TOKENS,
    "memory.weight": TOKENS,
    "pos.weight": POSITIONS,
    "head.weight": "lm_head",
    "*.in_proj_weight": f"{Q}|{K}|{VALUE}|other",
    "*.out_proj.weight": OUT,
    "*.linear1.weight": UP,
    "*.linear2.weight": DOWN,
}


def torch_layer(layer: str, norm_first: bool, cross: bool, stream: int) -> Iterator[Expected]:
    """dropout1, dropout2 (and 3) give the branches; the next norm reads the sum, or this one does (post-norm)."""
    weights = [("attention", "self_attn.out_proj"), ("cross_attention", "multihead_attn.out_proj"), ("mlp", "linear2")]
    weights = [weight for weight in weights if cross or weight[0] != "cross_attention"]
    for i, (kind, name) in enumerate(weights, start=1):
        out = f"{layer}.dropout{i}"
        if not norm_first:
            yield Expected(kind, f"{layer}.{name}.weight", out, f"{layer}.norm{i}", "in", stream)
        elif i < len(weights):
            yield Expected(kind, f"{layer}.{name}.weight", out, f"{layer}.norm{i + 1}", "in", stream)
        else:
            yield Expected(kind, f"{layer}.{name}.weight", out, layer, "out", stream)


def torch_case(cls: type[Around], norm_first: bool, stacks: tuple[tuple[str, bool, int], ...], **options: Any) -> Case:
    branches = [
        expected
        for path, cross, stream in stacks
        for n in range(LAYERS)
        for expected in torch_layer(f"{path}.{n}", norm_first, cross, stream)
    ]
    return Case(
        lambda: cls(norm_first, **options),
        tuple(branches),
        "pre" if norm_first else "post",
        TORCH_ROLES,
        "head.weight",
        "tok.weight",
        tied=False,
    )


ENCODER, DECODER = (("layers.layers", False, 0),), (("layers.layers", True, 0),)
TWO = (("layers.encoder.layers", False, 0), ("layers.decoder.layers", True, 1))
CASES: dict[str, Case] = {
    "BertForMaskedLM": bert("BertForMaskedLM", "bert", "cls.predictions.decoder.weight"),
    "RobertaForMaskedLM": bert("RobertaForMaskedLM", "roberta", "lm_head.decoder.weight"),
    "T5ForConditionalGeneration": t5(),
    "BartForConditionalGeneration": bart(),
    "nn.TransformerEncoder pre": torch_case(Encoder, True, ENCODER),
    "nn.TransformerEncoder post": torch_case(Encoder, False, ENCODER),
    "nn.TransformerEncoder time first": torch_case(Encoder, True, ENCODER, batch_first=False),
    "nn.TransformerDecoder pre": torch_case(Decoder, True, DECODER),
    "nn.TransformerDecoder post": torch_case(Decoder, False, DECODER),
    "nn.Transformer pre": torch_case(Both, True, TWO),
    "nn.Transformer post": torch_case(Both, False, TWO),
}
every_case = pytest.mark.parametrize("name", CASES)


def build(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "enable_nested_tensor is True")  # nn.Transformer warns of its own default
        torch.manual_seed(seed)
        return CASES[name].build().eval()


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Without gradients PyTorch runs a whole encoder layer as one kernel, past its own modules, unless told not to."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def call(case: Case, module: nn.Module, ids: Tensor) -> Any:
    return case.forward(module, ids) if case.forward else module(ids)


def hooked(case: Case, module: nn.Module, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return (branch, stream after it) of every branch, as hooks see them."""
    seen: dict[tuple[str, str], Tensor] = {}
    handles = []
    for path in {path for one in case.branches for path in (one.out, one.sum)}:

        def keep(_: nn.Module, args: Any, kwargs: Any, output: Any, path: str = path) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            seen[path, "in"], seen[path, "out"] = given, output if isinstance(output, Tensor) else output[0]

        handles.append(module.get_submodule(path).register_forward_hook(keep, with_kwargs=True))
    with torch.no_grad(), no_fast_path():
        call(case, module, ids)
    for handle in handles:
        handle.remove()
    return [(seen[one.out, "out"], seen[one.sum, one.side]) for one in case.branches]


@dataclass(frozen=True)
class Examined:
    case: Case
    module: nn.Module
    ids: Tensor
    report: Report

    @property
    def branches(self) -> tuple[Branch, ...]:
        return self.report.run.measured.residual.branches

    @property
    def streams(self) -> list[int]:
        """The streams of the branches, counted in order: a memory without branches is a stream, too."""
        seen = list(dict.fromkeys(branch.stream for branch in self.branches))
        return [seen.index(branch.stream) for branch in self.branches]


def examine(name: str, seed: int) -> Examined:
    case, module = CASES[name], build(name, seed)
    read: list[Tensor] = []

    def forward(model: nn.Module, ids: Tensor) -> Any:
        read.append(ids.clone())
        return call(case, model, ids)

    subject = initdiag.Subject(module, forward=forward, vocab_size=V, name=name, causal=case.causal)
    report = initdiag.check(subject)
    return Examined(case, module, read[0], report)


examined = cache(examine)


def variance(x: Tensor) -> float:
    return float(x.double().var(correction=0))


@every_case
def test_the_expectations_are_true(name: str) -> None:
    """The oracle itself: branches are whole tensors of the stream's width, weights exist, every matrix has a role."""
    case, module = CASES[name], build(name)
    ids = torch.randint(4, V, (2, T), generator=torch.Generator().manual_seed(0))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    seen = hooked(case, module, ids)
    for expected, (branch, after) in zip(case.branches, seen, strict=True):
        assert expected.weight in parameters
        assert branch.shape == after.shape
        assert branch.shape[-1] == D
    if case.placement == "pre":  # after branch k + branch k + 1 = after branch k + 1, where both are of one stream
        pairs = zip(zip(case.branches, seen, strict=True), zip(case.branches[1:], seen[1:], strict=True), strict=False)
        for (one, (_, before)), (two, (branch, after)) in pairs:
            if one.stream == two.stream:
                assert float((after - before - branch).norm() / after.norm()) < IDENTITY
    assert (parameters[case.head].data_ptr() == parameters[case.embedding].data_ptr()) is case.tied
    assert [n for n, p in module.named_parameters() if p.dim() > 1 and not roles_of(case, n)] == []


def roles_of(case: Case, parameter: str) -> set[str]:
    found = next((roles for pattern, roles in case.roles.items() if fnmatchcase(parameter, pattern)), "")
    return set(found.split("|")) - {""}


@every_case
def test_every_branch_is_found(name: str) -> None:
    seen = examined(name, 0)
    found = [(b.kind, b.projection, stream) for b, stream in zip(seen.branches, seen.streams, strict=True)]
    assert found == [(e.kind, e.weight, e.stream) for e in seen.case.branches]
    assert all(branch.residue < IDENTITY and branch.joined == 1 and not branch.normed for branch in seen.branches)


@every_case
def test_variances_are_those_of_the_hooks(name: str) -> None:
    seen = examined(name, 0)
    for found, (branch, after) in zip(seen.branches, hooked(seen.case, seen.module, seen.ids), strict=True):
        assert found.branch_variance == pytest.approx(variance(branch), rel=SAME_NUMBER), found
        assert found.stream_variance == pytest.approx(variance(after), rel=SAME_NUMBER), found


@every_case
def test_wiring(name: str) -> None:
    seen = examined(name, 0)
    case, wiring = seen.case, seen.report.run.measured.wiring
    assert (wiring.placement, wiring.tied, wiring.broken) == (case.placement, case.tied, "")
    assert wiring.head in ({case.head, case.embedding} if case.tied else {case.head})
    assert wiring.d_model == D
    for stream in {expected.stream for expected in case.branches}:
        pairs = zip(seen.branches, seen.streams, strict=True)
        carried = [branch.carried for branch, its in pairs if its == stream]
        assert carried[0] == "first"
        assert set(carried[1:]) == {"same" if case.placement == "pre" else "normed"}


@every_case
def test_roles(name: str) -> None:
    seen = examined(name, 0)
    plan = seen.report.run.subject.plan.by_name
    wrong = []
    for parameter, tensor in seen.module.named_parameters():
        expected = roles_of(seen.case, parameter) if tensor.dim() > 1 else small_roles(seen.module, parameter)
        entry = plan[parameter].parameter
        if expected and str(entry.role) not in expected:
            wrong.append(f"{parameter} {tuple(tensor.shape)}: {entry.role} ({entry.evidence}), not {sorted(expected)}")
    assert not wrong, "\n".join(wrong)


def small_roles(module: nn.Module, parameter: str) -> set[str]:
    path, _, leaf = parameter.rpartition(".")
    if "norm" in type(module.get_submodule(path)).__name__.lower():
        return {"norm_scale" if leaf == "weight" else "norm_bias"}
    return {"bias"} if leaf in ("bias", "in_proj_bias") else set()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("nn.")])
def test_packed_projections_are_split(name: str) -> None:
    """Self-attention packs q, k, v in one product; cross-attention runs its first third on the target, the rest on the
    memory."""
    seen = examined(name, 0)
    plan = seen.report.run.subject.plan.by_name
    for parameter in (n for n, _ in seen.module.named_parameters() if n.endswith("in_proj_weight")):
        found = {str(part.role): part.rows for part in plan[parameter].parameter.parts}
        assert found == {Q: ((0, D),), K: ((D, 2 * D),), VALUE: ((2 * D, 3 * D),)}, parameter


@pytest.mark.parametrize("seed", [0, 1])
@every_case
def test_no_errors(name: str, seed: int) -> None:
    report = (examined(name, 0) if seed == 0 else examine(name, seed)).report
    assert [f for f in report.findings if f.severity is Severity.ERROR] == []


@every_case
def test_the_fast_path_is_as_it_was(name: str) -> None:
    assert torch.backends.mha.get_fastpath_enabled()
    examined(name, 0)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_as_pytorch_makes_them_are_copies(norm_first: bool) -> None:
    """nn.TransformerEncoder deep-copies the layer that it is given: all layers start with the same numbers (K5)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Encoder(norm_first, initialised=False).eval()
    layers = model.layers.layers
    assert torch.equal(layers[0].linear1.weight, layers[1].linear1.weight)
    report = initdiag.check(model, vocab_size=V)
    named = [f for f in report.findings if f.severity is Severity.ERROR and "layers.layers.1." in f.message]
    assert named, report.findings


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "BartForConditionalGeneration"])
def test_an_encoder_that_reads_the_targets_leaks_where_causality_is_claimed(name: str) -> None:
    """The same call, said to be causal: the encoder sees later tokens, and that is found."""
    case, module = CASES[name], build(name)
    report = initdiag.check(initdiag.Subject(module, forward=case.forward, vocab_size=V, causal=True))
    assert [f.name for f in report.findings if f.severity is Severity.ERROR] == ["future-leak"]
