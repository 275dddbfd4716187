"""Which engine runs a subject, and why; what is free in memory is set by each test."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from torch import nn

from initdiag import subjects
from initdiag.config import load
from initdiag.engines import Settings, choose
from initdiag.engines.choose import Choice, costs, fits
from initdiag.schemes import Normal
from initdiag.subjects import Subject
from initdiag.subjects.loading import load_module
from initdiag.weightless import uniform_law

AUTO = Settings(engine="auto")
GIB = 2**30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """GiB that are free; 64 where a test sets nothing."""
    memory: dict[str, float | None] = {"gib": 64.0}

    def available(device: str) -> int | None:
        assert device == "cpu"
        return None if memory["gib"] is None else int(memory["gib"] * GIB)

    monkeypatch.setattr(choose, "available", available)
    return memory


def config(name: str, *overrides: str) -> Subject:
    return subjects.load(load(name, overrides))


def of_matrices(*shapes: tuple[int, int]) -> Subject:
    """A subject that was built without its large parameters."""
    module = nn.Module()
    for at, (m, n) in enumerate(shapes):
        module.add_module(str(at), nn.Linear(n, m, bias=False, device="meta"))
    laws = {f"{at}.weight": uniform_law(Normal(0.02), m) for at, (m, _) in enumerate(shapes)}
    return Subject(module, vocab_size=8, laws=laws)


def taken(subject: Subject, tokens: int, settings: Settings) -> str:
    return choose.choose(subject, tokens, settings).engine


@pytest.mark.parametrize("engine", ["dense", "weightless"])
def test_a_named_engine_is_taken_as_it_is(engine: str, free: dict[str, float | None]) -> None:
    for gib in (0.001, 64.0, None):
        free["gib"] = gib
        for subject in (config("tiny"), config("llama-3.1-405b"), of_matrices((512, 512))):
            assert choose.choose(subject, 64, Settings(engine=engine)) == Choice(engine)


def test_what_doesnt_fit_runs_without_its_weights(free: dict[str, float | None]) -> None:
    found = choose.choose(config("llama-3.1-405b"), 64, Settings())
    why = "its weights take 1511.9 GiB, more than 0.8 of the 64.0 GiB that are free"  # 405,853,388,800 · 4 / 2³⁰
    assert found == Choice("weightless", why)
    assert choose.choose(config("llama-3.1-405b"), 64, AUTO) == found


def test_weights_may_take_four_fifths_of_what_is_free(free: dict[str, float | None]) -> None:
    gpt2 = config("gpt2")
    size = 124_439_808 * 4 / GIB
    free["gib"] = size / 0.8 * 1.001
    assert choose.choose(gpt2, 512, Settings()) == Choice("dense")
    free["gib"] = size / 0.8 * 0.999
    found = choose.choose(gpt2, 512, Settings())
    assert found.engine == "weightless" and found.why.startswith("its weights take 0.5 GiB, more than 0.8 of ")


@pytest.mark.parametrize(("dtype", "bytes_each"), [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_the_dtype_counts(dtype: str, bytes_each: int, free: dict[str, float | None]) -> None:
    size = 124_439_808 * bytes_each / GIB
    for share, engine in ((1.01, "dense"), (0.99, "weightless")):
        free["gib"] = size / 0.8 * share
        assert taken(config("gpt2"), 512, Settings(dtype=dtype)) == engine


def test_where_the_system_tells_nothing_time_decides(free: dict[str, float | None]) -> None:
    free["gib"] = None
    assert taken(config("gpt2"), 512, AUTO) == "dense"
    assert taken(config("llama-3.1-405b"), 64, AUTO) == "weightless"


def test_what_fits_is_drawn_unless_that_takes_a_second_longer(free: dict[str, float | None]) -> None:
    """llama-3-70b with two layers: 3.8·10⁹ entries, at 1.5·10⁸ a second 25 s, where 64 tokens ask for 3·10⁷."""
    free["gib"] = 640.0
    found = choose.choose(config("llama-3-70b", "model.n_layers=2"), 64, Settings())
    assert found.engine == "weightless"
    assert found.why.startswith("drawing 14.2 GiB of weights would take about ") and found.why.endswith(" s more")
    seconds = int(found.why.split()[-3])
    assert 3.8e9 / 1.5e8 <= seconds <= 2 * 3.8e9 / 1.5e8
    assert taken(config("llama-3-70b", "model.n_layers=2"), 2**17, Settings()) == "dense"  # more tokens than it is wide


def test_only_who_asks_is_told_why_it_is_dense(free: dict[str, float | None]) -> None:
    assert choose.choose(config("tiny"), 256, Settings()) == Choice("dense")
    why = choose.choose(config("tiny"), 256, AUTO).why
    assert why == "its weights fit, 0.0009 GiB, and weightless is no faster"  # 241,024 · 4 / 2³⁰


def test_another_device_is_for_real_weights(free: dict[str, float | None]) -> None:
    free["gib"] = 0.001
    for device in ("cuda", "mps"):
        assert taken(config("gpt2"), 64, Settings(device=device)) == "dense"
    assert taken(config("gpt2"), 64, Settings(device="cpu")) == "weightless"


def test_a_module_has_its_weights(free: dict[str, float | None]) -> None:
    free["gib"] = 0.001
    there = load_module(nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8)), kwargs={})
    assert choose.choose(there, 64, Settings()) == Choice("dense")
    assert choose.choose(there, 64, AUTO) == Choice("dense", "its weights are there")


def test_what_was_built_without_weights_runs_without_them(free: dict[str, float | None]) -> None:
    lean = of_matrices((64, 64))
    for subject in (lean, replace(lean, laws={}, unrecorded={"0.weight": "cumsum() was applied to it"})):
        found = choose.choose(subject, 64, Settings())
        assert found.engine == "weightless" and found.why


def test_costs_of_one_matrix() -> None:
    """Entries drawn and multiplied, or a number for each token and output, and two Gram products of the vectors."""
    dense, weightless = costs([(4096, 2048)], 64)
    assert dense == pytest.approx(4096 * 2048 / 1.5e8 + 2 * 64 * 4096 * 2048 / 4e10)
    assert weightless == pytest.approx(64 * 4096 / 1.5e8 + 2 * 64**2 * (4096 + 2048) / 4e10)


def test_costs_of_what_is_drawn_anyway_are_the_same() -> None:
    for shapes in ([(768,)], [(256, 256)], [(4096, 100)], [(1, 2**20)]):  # a vector, small, narrow, a row
        dense, weightless = costs(shapes, 64)
        assert dense == weightless > 0


def test_experts_are_counted_once_each() -> None:
    """A stack of 8 experts draws 8 matrices; asked, its tokens meet no more outputs than one matrix's."""
    (dense, weightless), (one, asked) = costs([(8, 4096, 4096)], 64), costs([(4096, 4096)], 64)
    assert dense == pytest.approx(8 * one)
    assert weightless == pytest.approx(asked)


def test_a_module_is_built_with_its_weights_where_they_fit_and_cost_no_more(free: dict[str, float | None]) -> None:
    small, large = of_matrices((512, 512)), of_matrices((32768, 32768))
    assert fits(small, Settings())
    assert not fits(large, Settings())  # 1.07·10⁹ entries take 7 s
    free["gib"] = 0.0001
    assert not fits(small, Settings())
    free["gib"] = None
    assert fits(small, Settings()) and not fits(large, Settings())


def test_fits_reads_the_dtype(free: dict[str, float | None]) -> None:
    few = of_matrices((512, 512))  # 1 MiB in float32
    free["gib"] = 1.5 * 2**20 / 0.8 / GIB
    assert fits(few, Settings()) and fits(few, Settings(dtype="bfloat16"))
    assert not fits(few, Settings(dtype="float64"))
    assert math.isclose(choose.SHARE, 0.8)
