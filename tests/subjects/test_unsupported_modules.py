"""What a module is, before it runs: its vocabulary, what its config promises, and what can't be looked at."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from initdiag.errors import InitdiagError, UsageError
from initdiag.subjects.module import from_module
from initdiag.subjects.subject import Declared


class Small(nn.Module):
    def __init__(self, vocab: int = 20, context: int = 100, **attributes: Any) -> None:
        super().__init__()
        self.wte, self.position_embedding = nn.Embedding(vocab, 8), nn.Embedding(context, 8)
        self.head = nn.Linear(8, vocab)
        for name, value in attributes.items():
            setattr(self, name, value)


def sentence(module: Any, **options: Any) -> str:
    with pytest.raises(InitdiagError) as caught:
        from_module(module, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")  # no other imports inductor, 10 s


def test_wrappers_are_taken_off() -> None:
    module = Small()
    for wrapped in (compiled(module), nn.DataParallel(module), compiled(nn.DataParallel(module))):
        subject = from_module(wrapped)
        assert (subject.module is module, subject.name) == (True, "Small")


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(2, 2))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, dtype=torch.qint8)


def with_weight(weight: torch.Tensor) -> nn.Module:
    module = Small()
    module.head.weight = nn.Parameter(weight, requires_grad=False)
    return module


class DTensor(torch.Tensor):
    """Stands for torch.distributed's, which needs a process group."""


class FullyShardedDataParallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)


def test_modules_that_cannot_be_looked_at() -> None:
    assert sentence(nn.Sequential(scripted())) == (
        "Sequential.0 is a TorchScript module, which can't be traced; give the nn.Module that it was made from"
    )
    assert sentence(nn.Sequential(nn.ReLU())) == "Sequential has no parameters, so there is nothing to diagnose"
    assert sentence(nn.Sequential(nn.LazyLinear(3))) == (
        "Sequential: '0.weight' is not initialized yet (a lazy module); run one forward first"
    )
    with torch.device("meta"):
        assert sentence(Small()).startswith("Small: 'wte.weight' is on the meta device, so it has no weights; build")
    mixed = Small()
    mixed.head.to("meta")
    assert "'head.weight' is on the meta device" in sentence(mixed)
    assert "expected an nn.Module" in sentence("model.py")
    assert "expected an nn.Module" in sentence(Small)


def test_quantized_modules() -> None:
    assert sentence(quantized()) == (
        "Sequential.0 is quantized (Linear), and init is not: give the module before quantization"
    )
    eight = with_weight(torch.zeros(20, 8, dtype=torch.int8))
    assert (
        sentence(eight)
        == "Small: 'head.weight' is quantized (int8), and init is not: give the module before quantization"
    )
    assert "quantized (float8_e4m3fn)" in sentence(with_weight(torch.zeros(20, 8).to(torch.float8_e4m3fn)))
    gptq = Small()
    gptq.head.register_buffer("qweight", torch.zeros(2, dtype=torch.int32))
    assert "Small.head is quantized" in sentence(gptq)


def test_sharded_modules() -> None:
    assert sentence(nn.Sequential(FullyShardedDataParallel())) == (
        "Sequential.0 is sharded (FSDP), which initdiag can't read; give it the module before it is sharded"
    )
    module = Small()
    module.head.register_buffer("part", torch.zeros(2).as_subclass(DTensor))
    assert "'head.part' is sharded (DTensor)" in sentence(module)


def test_bf16_and_float64_are_ordinary_weights() -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert from_module(Small().to(dtype)).vocab_size == 20


def test_a_module_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second device here: a tensor that says it is elsewhere."""

    class Elsewhere(nn.Parameter):
        device = torch.device("cuda:1")  # type: ignore[assignment]
        is_meta = False  # type: ignore[assignment]

    module = Small()
    module.head.weight = Elsewhere(torch.zeros(20, 8))
    assert sentence(module) == (
        "Small is on more than one device: 'wte.weight' on cpu, 'head.weight' on cuda:1; "
        "move it to one with module.to(...)"
    )


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Small, 20),  # not the position table, which has more rows
        (lambda: Small(config=SimpleNamespace(vocab_size=17)), 17),  # a padded table
        (lambda: Small(config={"vocab_size": 18}), 18),
        (lambda: Small(hparams=SimpleNamespace(n_vocab=19)), 19),
        (lambda: Small(vocab_size=16), 16),
        (lambda: Small(args=SimpleNamespace(num_tokens=5000)), 20),  # counts something else
        (lambda: Small(config=SimpleNamespace(vocab_size="many")), 20),
        (lambda: nn.Sequential(nn.Embedding(31, 4), nn.Linear(4, 31)), 31),
        (lambda: nn.Sequential(nn.Embedding(300, 4), nn.Embedding(31, 4), nn.Linear(4, 31)), 31),  # the head decides
        (lambda: nn.ModuleDict({"wpe": nn.Embedding(99, 4), "wte": nn.Embedding(12, 4)}), 12),  # the head is tied
        (lambda: nn.ModuleDict({"pos": nn.Embedding(12, 4)}), 12),
    ],
)
def test_the_vocabulary_is_found(module: Any, expected: int) -> None:
    assert from_module(module()).vocab_size == expected


def test_a_vocabulary_that_is_not_found_or_not_right() -> None:
    assert sentence(nn.Linear(2, 2)) == (
        "Linear: no vocab_size found, neither in a config nor as an nn.Embedding; give it with "
        "--vocab-size (vocab_size=)"
    )
    assert from_module(nn.Linear(2, 2), vocab_size=9).vocab_size == 9

    class Named(Small):
        def get_input_embeddings(self) -> nn.Module:
            return self.wte

    assert sentence(Named(config=SimpleNamespace(vocab_size=60))) == (
        "Named: its config says vocab_size 60, its embedding has 20 rows; give the right one with "
        "--vocab-size (vocab_size=)"
    )
    assert from_module(Named()).vocab_size == 20
    assert "vocab_size -3: expected at least 1" in sentence(Small(), vocab_size=-3)
    with pytest.raises(UsageError, match="vocab_size: found True"):
        from_module(Small(), vocab_size=True)


def test_what_a_config_promises() -> None:
    config = SimpleNamespace(init_std=0.006, weight_tying=True, block_size=64, vocab_size=20, is_causal=True)
    assert from_module(Small(config=config)).declared == Declared(0.006, True, True, None, 64, None)
    assert from_module(Small(), causal=False).declared == Declared(causal=False, context=100)
    assert from_module(Small(config=config), causal=False).causal is False
    odd = SimpleNamespace(initializer_range=True, tie_word_embeddings="yes", n_ctx=None, max_seq_len=0.5)
    assert from_module(Small(config=odd)).declared == Declared(context=100)
    assert from_module(nn.Sequential(nn.Embedding(4, 2))).declared == Declared()


def test_the_context_of_a_table_of_positions_that_is_a_parameter() -> None:
    for shape in ((30, 8), (1, 30, 8), (30, 1, 8)):
        module = nn.Sequential(nn.Embedding(9, 8))
        module.pos_emb = nn.Parameter(torch.zeros(shape))
        assert from_module(module).declared.context == 30


def test_names() -> None:
    subject = from_module(Small())
    assert (subject.name, subject.target) == ("Small", "Small")
    named = from_module(Small(), name="mine", target="model.py:Small")
    assert (named.name, named.target) == ("mine", "model.py:Small")
