"""Any module is called by what its forward takes, and what comes back is read whatever its form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import initdiag
from initdiag.errors import RunError
from initdiag.subjects.calling import Outcome, call
from initdiag.subjects.module import from_module
from initdiag.trace.tracer import Tracer

B, T, V, D = 3, 7, 50, 16


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """Embedding, learned positions, one layer, head: the frame that the styles below are written in."""

    def __init__(self, vocab: int = V, context: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, D), nn.Embedding(context, D)
        self.mlp, self.head = nn.Linear(D, D), nn.Linear(D, vocab)

    def states(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return x + self.mlp(x)

    def logits(self, ids: Tensor) -> Tensor:
        return self.head(self.states(ids))


class NanoGPT(Body):
    """Without targets only the last position, as the well-known teaching code does."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.states(idx)
        if targets is None:
            return self.head(x[:, [-1], :]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Lecture(Body):
    """Flattens its logits when it is given targets."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.logits(idx)
        if targets is None:
            return logits, None
        logits = logits.view(-1, logits.shape[-1])
        return logits, F.cross_entropy(logits, targets.reshape(-1))


class LossOnly(Body):
    calls = 0

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.calls += 1
        logits = self.logits(x)
        return logits if y is None else F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Labels(Body):
    """transformers' convention, in an object that is no mapping."""

    def forward(
        self, input_ids: Tensor, *, labels: Tensor | None = None, use_cache: bool = True, return_dict: Any = None
    ):
        assert not use_cache
        assert return_dict
        logits = self.logits(input_ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) if labels is not None else None
        return SimpleNamespace(hidden=self.states(input_ids), loss=loss, logits=logits)


class Returns(Body):
    """A forward whose result is what `form` makes of the logits."""

    def __init__(self, form: Callable[[Returns, Tensor], Any], **sizes: int) -> None:
        super().__init__(**sizes)
        self.form = form

    def forward(self, ids: Tensor) -> Any:
        return self.form(self, ids)


class Fails(Returns):
    pass


def outcome(module: nn.Module, ids: Tensor, targets: bool = True, **options: Any) -> Outcome:
    with torch.no_grad():
        return call(from_module(module, **options), module, ids, ids.roll(-1, 1) if targets else None)


def sentence(module: nn.Module, ids: Tensor, **options: Any) -> str:
    with pytest.raises(RunError) as caught:
        outcome(module, ids, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize("style", [NanoGPT, Lecture])
def test_targets_give_all_logits_and_the_own_loss_in_one_run(style: type[Body], ids: Tensor) -> None:
    module = style()
    found = outcome(module, ids)
    assert torch.equal(found.logits, module.logits(ids))
    assert found.loss is not None
    assert found.loss.item() == pytest.approx(entropy(found.logits, ids.roll(-1, 1)).item(), rel=1e-5)
    assert (found.argument, found.shifted) == ("targets", True)


def test_labels_get_the_ids_themselves(ids: Tensor) -> None:
    found = outcome(Labels(), ids)
    assert (found.argument, found.shifted) == ("labels", False)
    assert found.loss is not None
    assert found.loss.item() == pytest.approx(entropy(found.logits[:, :-1], ids[:, 1:]).item(), rel=1e-5)
    assert outcome(Labels(), ids, targets=False).argument == ""
    assert outcome(Labels(), ids, targets=False).loss is None


def test_a_forward_that_returns_its_loss_only_runs_twice(ids: Tensor) -> None:
    module = LossOnly()
    found = outcome(module, ids)
    assert found.logits.shape == (B, T, V)
    assert found.loss is not None
    assert found.loss.item() == pytest.approx(entropy(found.logits, ids.roll(-1, 1)).item(), rel=1e-5)
    assert (found.argument, module.calls) == ("y", 2)


FORMS: dict[str, Callable[[Body, Tensor], Any]] = {
    "tensor": lambda m, ids: m.logits(ids),
    "tuple": lambda m, ids: (m.logits(ids), None),
    "loss first": lambda m, ids: [torch.tensor(4.5), m.logits(ids)],
    "hidden first": lambda m, ids: (torch.zeros(B, T, 2 * V), m.logits(ids)),
    "dict": lambda m, ids: {"hidden_states": torch.zeros(B, T, V), "logits": m.logits(ids), "loss": torch.tensor(4.5)},
    "object": lambda m, ids: SimpleNamespace(hidden=torch.zeros(B, T, 99), lm_logits=m.logits(ids)),
    "nested": lambda m, ids: {"out": (torch.zeros(1), {"logits": m.logits(ids)})},
    "flat": lambda m, ids: m.logits(ids).flatten(0, 1),
    "sequence first": lambda m, ids: m.logits(ids).transpose(0, 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_found_in(form: str, ids: Tensor) -> None:
    module = Returns(FORMS[form])
    found = outcome(module, ids)
    assert torch.equal(found.logits, module.logits(ids))
    assert (found.loss is not None) == (form in ("loss first", "dict", "nested"))


def test_a_padded_vocabulary_is_wider(ids: Tensor) -> None:
    assert outcome(Returns(FORMS["tensor"], vocab=64), ids, vocab_size=V).logits.shape == (B, T, 64)


def test_a_forward_of_the_user_s_own_is_called_instead(ids: Tensor) -> None:
    module = Returns(lambda m, ids: m.states(ids))
    found = outcome(module, ids, forward=lambda m, ids: (m.head(m(ids)), torch.tensor(1.0)))
    assert torch.equal(found.logits, module.logits(ids))
    assert found.loss == 1
    assert found.argument == ""


class TwoStreams(Body):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.head(self.states(src).mean(1, keepdim=True) + self.states(tgt))


def test_an_encoder_decoder_reads_the_ids_twice(ids: Tensor) -> None:
    assert outcome(TwoStreams(), ids).logits.shape == (B, T, V)


EXPECTED = f"expected logits of (B, T, V) = ({B}, {T}, {V})"
WRONG: dict[str, tuple[Callable[[Body, Tensor], Any], str]] = {
    "last": (
        lambda m, ids: m.logits(ids)[:, [-1]],
        f"a tensor of shape (3, 1, 50): the logits of only the last position; {EXPECTED}: return all of them, or write",
    ),
    "one": (lambda m, ids: m.logits(ids)[:, -1], f"a tensor of shape (3, 50): logits of one position only; {EXPECTED}"),
    "transposed": (
        lambda m, ids: m.logits(ids).transpose(1, 2),
        f"a tensor of shape (3, 50, 7): the vocabulary is on axis 1 (transposed); {EXPECTED}: "
        "initdiag.Subject(module, forward=lambda m, ids: m(ids).transpose(1, 2))",
    ),
    "hidden": (
        lambda m, ids: m.states(ids),
        f"a tensor of shape (3, 7, 16): hidden states of width 16, no logits; {EXPECTED}: use the class with the head",
    ),
    "narrow": (
        lambda m, ids: m.logits(ids)[..., :40],
        f"a tensor of shape (3, 7, 40): logits over 40 entries, narrower than vocab_size 50; {EXPECTED}: "
        "if 40 is right, give it with --vocab-size 40 (vocab_size=40)",
    ),
    "nothing": (lambda m, ids: None, f"None with no tensor of logits in it; {EXPECTED}: return them, or say where"),
    "ids": (lambda m, ids: {"ids": ids}, f"a dict with no tensor of logits in it; {EXPECTED}"),
    "loss": (lambda m, ids: torch.tensor(1.0), f"a Tensor with no tensor of logits in it; {EXPECTED}"),
    "other": (lambda m, ids: m.logits(ids)[:, :4], f"a tensor of shape (3, 4, 50); {EXPECTED}: say how to get them"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_logits_of_another_shape(kind: str, ids: Tensor) -> None:
    form, expected = WRONG[kind]
    assert sentence(Returns(form), ids).startswith(f"Returns: forward(ids) returned {expected}")


def test_hidden_states_wider_than_the_vocabulary_are_no_padded_logits(ids: Tensor) -> None:
    assert "hidden states of width 16" in sentence(Returns(lambda m, i: m.states(i % 9), vocab=9), ids % 9)


class NeedsMask(Body):
    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.logits(ids) * attention_mask


def test_a_forward_that_needs_more_than_ids(ids: Tensor) -> None:
    assert sentence(NeedsMask(), ids) == (
        "NeedsMask: its forward needs 'attention_mask' besides the ids; say how to call it: "
        "initdiag.Subject(module, forward=lambda m, ids: m(ids, attention_mask=...))"
    )
    inner = NeedsMask()
    assert "Its forward needs 'attention_mask': say how" in sentence(Fails(lambda m, ids: inner(ids)), ids)


def long_ids(length: int = 40) -> Tensor:
    return torch.arange(length).remainder(V).expand(2, length).clone()


def asserts(m: Body, ids: Tensor) -> Tensor:
    assert ids.shape[1] <= 32, f"Cannot forward sequence of length {ids.shape[1]}, block size is only 32 (not 2)"
    return m.logits(ids)


def slices(m: Body, ids: Tensor) -> Tensor:
    return m.head(m.wte(ids) + m.wpe.weight[: ids.shape[1]])


@pytest.mark.parametrize(
    ("form", "line", "hint"),
    [
        (lambda m, ids: m.logits(ids), "in states: x = self.wte(ids)", "'wpe' has 32 positions for 40 tokens: "),
        (asserts, "in asserts: assert ids.shape[1] <= 32", "It takes at most 32 tokens: "),
        (slices, "in slices: return m.head(", "It takes at most 32 tokens: "),
    ],
)
def test_more_tokens_than_it_takes(form: Callable[..., Any], line: str, hint: str) -> None:
    told = sentence(Fails(form), long_ids())
    assert "tests/subjects/test_calling.py:" in told
    assert line in told
    assert "initdiag called forward(ids) with ids of int64, shape (2, 40), values 0..39" in told
    assert told.endswith(hint + "--set tokens.length=32")


def test_ids_beyond_the_embedding(ids: Tensor) -> None:
    told = sentence(Fails(lambda m, i: m.logits(i), vocab=20), ids, vocab_size=V)
    assert told.startswith("Fails fails in its own forward: IndexError: index out of range in self at ")
    assert told.endswith(f"'wte' has 20 rows, the largest id is {int(ids.max())}: --vocab-size 20 (vocab_size=20)")


def test_mixed_dtypes_and_layers_that_want_floats(ids: Tensor) -> None:
    module = Fails(lambda m, i: m.logits(i))
    module.head.to(torch.float64)
    assert "'wte.weight' in float32 and 'head.weight' in float64: bring them to one" in sentence(module, ids)
    module = Fails(lambda m, i: m.head(m.wte(i).double()))
    assert sentence(module, ids).endswith(
        "Its weights are float32; some tensor that its forward makes is not: give that one dtype=torch.float32"
    )
    wants = Fails(lambda m, i: m.mlp(i[:, :1].expand(B, D)))
    assert "A layer got the token ids themselves, not their embeddings" in sentence(wants, ids)


def test_the_cause_is_kept_and_memory_is_left_alone(ids: Tensor) -> None:
    def refuses(m: Body, ids: Tensor) -> Tensor:
        raise ValueError("first\nsecond")

    with pytest.raises(RunError, match=r"ValueError: first at .*in refuses: raise ValueError") as caught:
        outcome(Fails(refuses), ids)
    assert isinstance(caught.value.__cause__, ValueError)
    for error in (MemoryError("no"), torch.OutOfMemoryError("no"), RuntimeError("not enough memory: you tried")):

        def runs_out(m: Body, ids: Tensor, error: Exception = error) -> Tensor:
            raise error

        with pytest.raises(type(error)) as raised:
            outcome(Fails(runs_out), ids)
        assert raised.value is error


def test_what_a_forward_prints_is_not_on_stdout(ids: Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    outcome(Returns(lambda m, ids: print("here") or m.logits(ids)), ids)
    assert capsys.readouterr() == ("", "here\n")


def test_a_custom_autograd_function(ids: Tensor) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return 2 * grad

    module = Returns(lambda m, i: Twice.apply(m.logits(i)))
    assert outcome(module, ids).logits.shape == (B, T, V)


def test_the_line_is_the_user_s_under_a_tracer_too() -> None:
    module, ids = Fails(lambda m, ids: m.logits(ids)), long_ids()
    with torch.no_grad(), pytest.raises(RunError, match=r"in states: x = self\.wte\(ids\)"), Tracer(module, ids):
        call(from_module(module), module, ids)


@pytest.mark.parametrize("module", [Returns(FORMS["tensor"]), nn.Sequential(nn.Embedding(V, D), nn.Linear(D, V))])
def test_a_fault_of_our_own_is_not_laid_on_the_user(module: nn.Module, ids: Tensor) -> None:
    """An observer that fails runs below the user's line; its file is one of ours."""
    told: dict[str, Any] = {}
    code = compile(
        "def observe(*args):\n    raise KeyError('ours')", f"{Path(initdiag.__file__).parent}/measure/x.py", "exec"
    )
    exec(code, told)
    next(part for part in module.modules() if isinstance(part, nn.Embedding)).register_forward_hook(told["observe"])
    with pytest.raises(KeyError, match="ours"):
        outcome(module, ids)
