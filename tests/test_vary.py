"""`initdiag.vary`: which key is meant, what goes with it, and the laws that come out, against closed forms."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import numpy as np
import pytest

import initdiag
from initdiag.report.growth import HOLDS, STAYS, growth
from initdiag.report.varied import Varied

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "context": 32,
    "d_model": 128,
    "n_layers": 4,
    "n_heads": 4,
    "activation": "gelu_tanh",
}
DEPTHS = [6, 12, 24, 48]
# as in test_growth_laws.py: attention's part of a branch grows from layer to layer, by a few percent of the sum
DRIFT = 0.1


def config(**model: Any) -> dict[str, Any]:
    return {"model": {**SMALL, **model}, "tokens": {"batch": 1, "length": 32}}


@cache
def over_depth(scheme: str, **init: Any) -> Varied:
    std = {"std": math.sqrt(2 / (5 * 128))} if scheme in ("gpt2", "scaled") else {}
    return initdiag.vary({**config(), "init": {"scheme": scheme, **std, **init}}, "n_layers", DEPTHS)


# --- the fit itself, against exact laws


@pytest.mark.parametrize("exponent", [-2, -1, -0.5, -0.2, 0.1, 0.5, 1, 1.7, 2])
def test_a_power_is_found_exactly(exponent: float) -> None:
    x = [6, 12, 24, 48, 96]
    found = growth(x, [3.7 * n**exponent for n in x])
    assert found.law == "power"
    assert found.exponent == pytest.approx(exponent, abs=1e-12)
    assert found.miss < 1e-12


@pytest.mark.parametrize(
    ("exponent", "words"),
    [
        (1, "grows like x"),
        (1.09, "grows like x"),
        (1.11, "grows"),
        (0.5, "grows like √x"),
        (2, "grows like x²"),
        (-1, "falls like 1/x"),
        (-0.5, "falls like 1/√x"),
        (-2, "falls like 1/x²"),
        (-0.25, "falls"),
        (0.06, "stays"),
        (-0.06, "stays"),
        (0.08, "grows"),
        (-0.08, "falls"),
    ],
)
def test_an_exponent_in_words(exponent: float, words: str) -> None:
    assert growth([4, 8, 16], [n**exponent for n in (4, 8, 16)]).words == words


def test_the_fit_is_least_squares_in_log_log() -> None:
    """Against numpy's polyfit, on noisy points in any order."""
    generator = random.Random(0)
    x = [96, 6, 48, 12, 24]
    y = [0.3 * n**0.8 * math.exp(generator.gauss(0, 0.01)) for n in x]
    slope, shift = np.polyfit(np.log(x), np.log(y), 1)
    found = growth(x, y)
    assert found.exponent == pytest.approx(slope, rel=1e-10)
    off = max(abs(math.exp(shift) * n**slope / value - 1) for n, value in zip(x, y, strict=True))
    assert found.miss == pytest.approx(off, rel=1e-9)


def test_a_logarithm_is_told_from_a_power() -> None:
    x = [6, 12, 24, 48, 96]
    found = growth(x, [2 + 3 * math.log(n) for n in x])
    assert (found.law, found.words) == ("logarithm", "grows logarithmically")
    assert (found.offset, found.slope) == (pytest.approx(2), pytest.approx(3))
    assert found.miss < 1e-12
    assert growth(x, [30 - 3 * math.log(n) for n in x]).words == "falls logarithmically"
    # the harmonic sum, which σ/√(2(l+1)) gives: ln N + 0.577 + 1/(2N)
    assert growth(x, [math.fsum(1 / (1 + layer) for layer in range(n)) for n in x]).law == "logarithm"


def test_a_logarithm_is_named_only_where_it_is_clear() -> None:
    """Points 2 % to both sides of a small power lie as far from a logarithm; over a short way the two are the same."""
    x = [6, 12, 24, 48, 96]
    found = growth(x, [n**0.15 * (1 + 0.02 * (-1) ** i) for i, n in enumerate(x)])
    assert found.law == "power" and found.exponent == pytest.approx(0.15, abs=0.01)
    found = growth([10, 12, 14], [2 + 3 * math.log(n) for n in (10, 12, 14)])
    assert found.law == "power" and found.miss < 0.01


def test_what_no_law_holds_for_is_said() -> None:
    """A constant and a line: between x^0 and x^1, with another exponent at every point."""
    x = [6, 12, 24, 48, 96]
    found = growth(x, [30 + n for n in x])
    assert found.law == "none" and found.miss > HOLDS
    first, last = math.log(42 / 36) / math.log(2), math.log(126 / 78) / math.log(2)
    assert found.words == f"no power law: x^{first:.2f} first, x^{last:.2f} last"
    assert found.fit == "–"


def test_a_number_that_goes_up_and_down_does_not_stay() -> None:
    found = growth([1, 2, 4], [1.0, 1.5, 1.0])
    assert abs(found.exponent) < STAYS and not found.stays and found.law == "none"


@pytest.mark.parametrize("y", [[0.0, 1.0, 2.0], [1.0, -1.0, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.inf]])
def test_numbers_without_a_logarithm_have_no_law(y: list[float]) -> None:
    found = growth([1, 2, 4], y)
    assert (found.law, found.fit, found.words) == ("none", "–", "no power law")
    assert math.isnan(found.exponent)


def test_what_never_changes_stays() -> None:
    for y in ([0.0, 0.0, 0.0], [-2.0, -2.0, -2.0], [7.0, 7.0, 7.0]):
        assert growth([1, 2, 4], y).words == "stays"


# --- the laws of the schemes


@pytest.mark.parametrize(("scheme", "law", "exact"), [("gpt2", 1.0, 1.0), ("scaled", 0.0, 0.0), ("wang", -1.0, -1.0)])
def test_branches_grow_with_depth_as_the_scheme_promises(scheme: str, law: float, exact: float) -> None:
    """facts/schemes.md, section B: unscaled N, σ/√(2N) 0, wang 1/N; the ratio counts unscaled branches, exactly."""
    fits = over_depth(scheme).fits
    assert fits["Σ branch variance"].exponent == pytest.approx(law, abs=DRIFT)
    assert fits["scaling ratio"].exponent == pytest.approx(exact, abs=1e-9)
    assert fits["logit std"].stays


def test_a_std_by_layer_makes_the_branches_grow_logarithmically() -> None:
    """σ/√(2(l+1)): Σ over l of 1/(l+1), which is ln N + 0.577."""
    found = over_depth("olmo-mitchell").fits["Σ branch variance"]
    assert found.law == "logarithm" and found.slope > 0


def test_the_final_stream_follows_its_branches() -> None:
    assert over_depth("gpt2").fits["final stream variance"].words == "grows like x"
    assert over_depth("scaled").fits["final stream variance"].words == "stays"


WIDTHS = [256, 512, 1024, 4096]


@cache
def over_width(scheme: str) -> Varied:
    """Of a head that isn't tied: a tied one has a self-logit, which is a part of the std of so few logits."""
    untied = config(n_layers=2, tied=False)
    return initdiag.vary({**untied, "init": {"scheme": scheme, "std": 0.02}}, "d_model", WIDTHS)


def test_a_constant_std_makes_logits_grow_like_the_root_of_the_width() -> None:
    """s = σ·√d, and its excess s²/2 = d·σ²/2."""
    varied = over_width("gpt2")
    assert varied.fits["logit std"].exponent == pytest.approx(0.5, abs=0.01)
    assert varied.fits["excess over ln V"].exponent == pytest.approx(1.0, abs=0.02)
    for width, std in zip(WIDTHS, varied.numbers["logit std"], strict=True):
        assert std == pytest.approx(0.02 * math.sqrt(width), rel=0.01)  # 1 % is left to the norm's eps


def test_mup_keeps_branches_and_lets_logits_shrink() -> None:
    """facts/schemes.md: activations are independent of the width; logits shrink like 1/√d."""
    fits = over_width("eleuther-mup").fits
    assert fits["Σ branch variance"].exponent == pytest.approx(0, abs=0.01)
    assert fits["final stream variance"].exponent == pytest.approx(0, abs=0.01)
    assert fits["attn-logit std, max"].exponent == pytest.approx(0, abs=0.01)
    assert fits["logit std"].exponent == pytest.approx(-0.5, abs=0.01)


def test_an_std_takes_logits_along() -> None:
    assert initdiag.vary(config(), "init.std", [0.01, 0.02, 0.04]).fits["logit std"].words == "grows like x"


def test_the_loss_is_fitted_where_the_vocabulary_changes() -> None:
    """It is ln V and the excess; with one V the excess says all."""
    varied = initdiag.vary({**config(), "init": {"std": 0.001}}, "vocab_size", [256, 1024, 4096])
    assert varied.fits["loss"].law == "logarithm"
    assert varied.fits["loss"].slope == pytest.approx(1, abs=0.01)
    assert "loss" not in over_width("gpt2").fits


# --- every run is the prediction of one config


def test_each_run_is_the_prediction_of_its_config() -> None:
    varied = initdiag.vary("tiny", "n_layers", [5, 2], scheme="gpt2", seed=3, overrides=["init.std=0.03"])
    for n_layers, run in zip((5, 2), varied.runs, strict=True):
        alone = initdiag.predict(
            "tiny", scheme="gpt2", seed=3, overrides=["init.std=0.03", f"model.n_layers={n_layers}"]
        )
        assert run.measured == alone.run.measured
        assert run.subject.typed == f"tiny --set init.std=0.03 --set model.n_layers={n_layers}"
    assert varied.key == "model.n_layers" and varied.values == (5, 2)


def test_a_word_is_varied_without_fits() -> None:
    varied = initdiag.vary(config(), "norm", ["layernorm", "rmsnorm"])
    assert [run.subject.architecture.norm for run in varied.runs if run.subject.architecture] == [
        "layernorm",
        "rmsnorm",
    ]
    assert varied.fits == {} and "growth" not in str(varied)


def test_schemes_are_varied_as_scheme_does() -> None:
    """Another scheme goes without the parameters of the old one: residual_std of a config is not carried over."""
    named = {**config(), "init": {"scheme": "scaled", "residual_std": 0.5}}
    varied = initdiag.vary(named, "scheme", ["gpt2", "wang"])
    assert [run.scheme for run in varied.runs] == ["gpt2", "wang"]
    alone = [initdiag.predict(named, scheme=scheme).run for scheme in ("gpt2", "wang")]
    assert [run.measured for run in varied.runs] == [run.measured for run in alone]


def test_a_seed_has_no_growth() -> None:
    assert initdiag.vary(config(), "init.seed", [1, 2, 3]).fits == {}


def test_one_failing_value_fails_all() -> None:
    varied = initdiag.vary(config(), "init.std", [0.02, 1.0])
    assert [run.verdict for run in varied.runs] == ["pass", "fail"]
    assert varied.verdict == varied.report.verdict == "fail"
    assert initdiag.vary(config(), "init.std", [0.01, 0.02]).verdict == "pass"


def test_numbers_of_numpy_are_numbers() -> None:
    assert initdiag.vary(config(), "n_layers", list(np.array([2, 3]))).values == (2, 3)


def test_backward_is_predicted_where_it_is_asked_for() -> None:
    asked = initdiag.vary(config(), "n_layers", [2, 4], backward=True)
    assert "gradient ratio per layer" in asked.numbers
    assert "gradient ratio per layer" not in initdiag.vary(config(), "n_layers", [2, 4]).numbers


# --- sizes that follow the width


def shapes(varied: Varied) -> list[tuple[int, ...]]:
    of = [run.subject.architecture for run in varied.runs]
    return [(one.d_model, one.n_heads, one.n_kv_heads, one.head_dim, one.d_ff) for one in of if one]


def test_heads_and_d_ff_go_with_the_width() -> None:
    varied = initdiag.vary(config(n_kv_heads=2, d_ff=384), "d_model", [64, 256])
    assert shapes(varied) == [(64, 2, 1, 32, 192), (256, 8, 4, 32, 768)]
    assert varied.followed == ("head_dim stays 32", "n_heads 2, 8", "n_kv_heads 1, 4", "d_ff 192, 768")
    assert "head_dim stays 32" in str(varied).replace("\n  ", " ")


def test_heads_are_told_once_where_all_have_keys_of_their_own() -> None:
    varied = initdiag.vary(config(), "d_model", [64, 256])
    assert varied.followed == ("head_dim stays 32", "n_heads 2, 8", "d_ff 256, 1024")
    assert shapes(varied) == [(64, 2, 2, 32, 256), (256, 8, 8, 32, 1024)]


def test_a_single_key_head_stays_single() -> None:
    varied = initdiag.vary(config(n_kv_heads=1), "d_model", [64, 256])
    assert [shape[2] for shape in shapes(varied)] == [1, 1]


def test_experts_go_with_the_width() -> None:
    moe = {"experts": 4, "top_k": 2, "d_ff": 64}
    varied = initdiag.vary(config(moe=moe), "d_model", [64, 256])
    found = [run.subject.architecture.moe for run in varied.runs if run.subject.architecture]
    assert [one.d_ff for one in found if one] == [32, 128]


def test_what_the_user_sets_wins() -> None:
    varied = initdiag.vary(config(), "d_model", [64, 256], overrides=["model.n_heads=2", "model.d_ff=100"])
    assert shapes(varied) == [(64, 2, 2, 32, 100), (256, 2, 2, 128, 100)]
    varied = initdiag.vary(config(), "d_model", [64, 256], overrides=["model.head_dim=16"])
    assert shapes(varied) == [(64, 2, 2, 16, 256), (256, 8, 8, 16, 1024)]


@pytest.mark.parametrize("width", [100, 65])
def test_a_width_that_breaks_a_head_is_refused(width: int) -> None:
    with pytest.raises(
        initdiag.UsageError, match=rf"--vary d_model={width}: n_heads, 4 at d_model 128, would be .*32\)"
    ):
        initdiag.vary(config(), "d_model", [128, width])


def test_a_d_ff_that_breaks_is_named() -> None:
    with pytest.raises(initdiag.UsageError, match=r"d_model=160: d_ff, 341 at d_model 128, .* or --set model\.d_ff"):
        initdiag.vary(config(d_ff=341), "d_model", [128, 160])


def test_nothing_follows_another_size() -> None:
    varied = initdiag.vary(config(), "n_layers", [2, 4])
    assert varied.followed == () and shapes(varied) == [(128, 4, 4, 32, 512)] * 2


# --- bad input


@pytest.mark.parametrize(
    ("key", "values", "says"),
    [
        ("n_layer", [2, 4], r"--vary n_layer: unknown key; .* \(did you mean 'n_layers'\?\)"),
        ("hidden_size", [2, 4], r"unknown key; .* \(here it is model\.d_model\)"),
        ("modle.norm", ["a", "b"], r"expected a key of model, init, tokens, .*\(did you mean 'model'\?\)"),
        ("gate.max_excess", [1, 2], "expected a key of model, init, tokens"),
        ("model", [1, 2], "unknown key"),
        ("init.", [1, 2], "expected a key of"),
        ("init.stdd", [1, 2], r"--vary init\.stdd=1: unknown key \(did you mean 'std'\?\)"),
        ("n_layers", [], "found no value, expected two values or more"),
        ("n_layers", [6], "found only 6, expected two values or more"),
        ("n_layers", [6, 12, 6], "6 is there twice"),
        ("n_layers", 6, r"n_layers: found 6, expected a list"),
        ("n_layers", "6,12", "found '6,12', expected a list"),
        ("n_layers", [6, "a"], "--vary n_layers=a: found 'a' .*, expected a whole number"),
        ("n_layers", [6, 0], "--vary n_layers=0: found 0, expected at least 1"),
        ("n_layers", [6, 7.5], r"--vary n_layers=7\.5: found 7\.5"),
        ("n_layers", [6, object()], r"of type object\), expected a number or a word"),
        ("norm", ["layernorm", "layer"], "--vary norm=layer: found 'layer', expected one of"),
        ("tokens.length", [16, 5000], "--vary tokens.length=5000: found 5000, expected at most"),
        ("scheme", ["gpt2", "nope"], "unknown scheme 'nope'"),
    ],
)
def test_bad_input_is_one_clear_sentence(key: str, values: Any, says: str) -> None:
    told: list[str] = []
    with pytest.raises(initdiag.InitdiagError, match=says) as caught:
        initdiag.vary("tiny", key, values, progress=told.append)
    assert len(str(caught.value).splitlines()) == 1
    assert not told  # all cases are prepared before the first is predicted


def test_what_is_varied_is_not_set_as_well() -> None:
    with pytest.raises(initdiag.UsageError, match=r"--set model\.n_layers=3: model\.n_layers is varied"):
        initdiag.vary("tiny", "n_layers", [2, 4], overrides=["model.n_layers=3"])
    with pytest.raises(initdiag.UsageError, match=r"--scheme gpt2: init\.scheme is varied"):
        initdiag.vary("tiny", "scheme", ["gpt2", "scaled"], scheme="gpt2")
    with pytest.raises(initdiag.UsageError, match=r"--set model=.*: model\.n_layers is varied"):
        initdiag.vary("tiny", "n_layers", [2, 4], overrides=[f"model={config()['model']}"])


def test_a_module_is_refused() -> None:
    with pytest.raises(initdiag.UsageError, match=r"model\.py:GPT: theory needs an architecture that it knows"):
        initdiag.vary("model.py:GPT", "n_layers", [2, 4])
