"""Gradients that know the stream: what branches of the reference Transformer make of them, by autograd in float64, and
what few-token softmaxes have in common, by draws."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from initdiag.engines import Settings, dense
from initdiag.measure.observe import observe
from initdiag.model.positions import mask
from initdiag.theory import predict
from initdiag.theory.attention import attended
from initdiag.theory.attention_gradient import attention_gradient
from initdiag.theory.forward import model_of
from initdiag.theory.grams import Stream
from initdiag.theory.leaning import Back, Gradient, added, crosswise, through
from initdiag.theory.mlp_gradient import fed_gradient
from initdiag.theory.overlap import FEW, SMALL, met_by_few, overlap
from initdiag.theory.squares import Squares, add_norm
from tests.small_models import subject, tokens

WIDTH, LENGTH, DRAWS = 256, 24, 12
BASE: dict[str, Any] = {"vocab_size": 97, "context": LENGTH, "d_model": WIDTH, "n_layers": 1, "n_heads": 8}
BRANCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("mlp", {}),
    "relu": ("mlp", {"activation": "relu"}),
    "relu, inner norm": ("mlp", {"activation": "relu", "inner_norm": True}),  # of which only the rest is asked
    "gated": ("mlp", {"gated": True, "activation": "silu", "biases": False}),
    "attention": ("attention", {}),
    "attention, shared values": ("attention", {"n_kv_heads": 2}),
}
# Of 1/width, and in squares of third moments between tokens, which are left out. Without what leans, products with the
# stream would be 0, and squares a half or less
PRODUCTS, SQUARES = 0.04, 0.08
SIGMAS = 3.0  # of the mean over draws: alone, 1 % with 11 degrees of freedom


def leans(length: int) -> np.ndarray:
    """On itself, and half as much on the token before."""
    return np.eye(length) + 0.5 * np.eye(length, k=-1)


@pytest.mark.parametrize("name", BRANCHES)
def test_what_a_branch_sends_back_of_a_gradient_that_leans_on_its_output(name: str) -> None:
    part, fields = BRANCHES[name]
    of = subject("gpt2", std=(1.5 if part == "mlp" else 0.5) / math.sqrt(WIDTH), **BASE, **fields)
    model, lean = model_of(of), leans(LENGTH) * (0.0 if model_of(of).shape.inner_norm else 1.0)
    random = np.random.default_rng(0)
    gaps: dict[str, list[float]] = {}
    for seed in range(DRAWS):
        module = dense.realize(of, seed, Settings(device="cpu")).module.double()
        branch = getattr(module.blocks[0], part)  # type: ignore[index]
        x = torch.tensor(random.standard_normal((1, LENGTH, WIDTH)) + random.standard_normal(WIDTH) / 2)
        x.requires_grad_()
        given = branch(x) if part == "mlp" else branch(x, None, mask(LENGTH, model.shape, None, like=x))
        known = torch.tensor(lean) @ given.detach()
        size = 0.2 * float(known.detach().std()) if lean.any() else 1.0
        sent = known + size * torch.tensor(random.standard_normal(known.shape))
        given.backward(sent)
        assert x.grad is not None
        stream, back, g = x.detach()[0].numpy(), x.grad[0].numpy(), sent[0].numpy()
        squares = Squares(np.ones((LENGTH, LENGTH), dtype=bool), 1.0, 1.0)
        read = stream @ stream.T / WIDTH
        if part == "attention":
            heads = attended(model, 0, read, (1, LENGTH), 8, random)[1]
            gram, found = attention_gradient(model, 0, read, heads, g @ g.T, lean, random, squares)
        else:
            gram, found = fed_gradient(model, 0, read, g @ g.T, lean, random, squares)
        along = WIDTH * found @ read
        pairs = {
            "square": ((back**2).sum(), np.trace(gram + along @ found.T)),
            "sum over tokens": ((back.sum(axis=0) ** 2).sum(), (gram + along @ found.T).sum()),
        }
        if lean.any():
            pairs["with itself"] = np.trace(back @ stream.T), np.trace(along)
            pairs["with all"] = (back @ stream.T).sum(), along.sum()
        for key, parameter in branch.named_parameters():
            pairs[key] = float((parameter.grad**2).sum()), squares.found.get(f"blocks.0.{part}.{key}", math.nan)
        for key, (measured, predicted) in pairs.items():
            if math.isnan(predicted):  # a bias of keys has no gradient
                continue
            gaps.setdefault(key, []).append(float(measured) / float(predicted) - 1)
    off = []
    for key, several in gaps.items():
        error = statistics.stdev(several) / math.sqrt(DRAWS)
        allowed = PRODUCTS if key.startswith("with") else SQUARES
        if abs(statistics.fmean(several)) > allowed + SIGMAS * error:
            off.append(f"{key}: {statistics.fmean(several):+.3f} ± {error:.3f}")
    assert not off


def stream_of(x: np.ndarray, own: np.ndarray) -> Stream:
    return Stream(x @ x.T / x.shape[1], np.zeros(len(x)), own)


def test_a_stream_and_a_norm_hand_on_all_that_is_known_of_a_gradient() -> None:
    """x is the RMSNorm of s, and s = kept·(a stream) + branches; all with vectors whose products are exact."""
    random = np.random.default_rng(1)
    n, width, kept = 5, 40, 0.7
    basis = math.sqrt(width) * np.linalg.qr(random.standard_normal((width, 2 * n)))[0].T
    embedding, s = basis[:n], random.standard_normal((n, n)) @ basis[n:] + 0.8 * basis[:n]
    factor = 1 / np.sqrt((s**2).mean(axis=1))
    x = s * factor[:, None]
    lean, weights = random.standard_normal((n, n)), random.standard_normal((n, 1))
    g = lean @ x + weights * embedding
    after = Gradient(g @ g.T, lean, np.diag(weights[:, 0] * width), g @ x.T, np.ones(n))
    assert np.allclose(after.along(stream_of(x, 0.8 * factor), width), g @ x.T)

    before = through(factor, stream_of(x, 0.8 * factor), g @ x.T, after, width)
    g = (g - x * ((g * x).sum(axis=1) / (x * x).sum(axis=1))[:, None]) * factor[:, None]
    stream = stream_of(s, np.full(n, 0.8))
    close = partial(np.allclose, atol=1e-5 * float((g**2).sum()))  # products are float32
    assert close(before.gram, g @ g.T)
    assert close(before.read, g @ x.T)
    assert close(before.along(stream, width), g @ s.T)
    assert close(before.lean @ s + np.diagonal(before.own)[:, None] / width * embedding, g)

    leans = random.standard_normal((n, n))
    back = Back(leans @ s @ s.T @ leans.T, leans, leans @ s @ s.T)
    total = added(before, kept, stream, back.plus(back), width)
    # by a stream s that the branches, too, read, of which kept·s is left: g leans on kept·s
    g = kept * (kept * before.lean @ s + np.diagonal(before.own)[:, None] / width * embedding) + 2 * leans @ s
    rest = kept**2 * (before.gram - (known := (g - 2 * leans @ s) / kept) @ known.T)  # what b was in the gradient
    assert close(total.gram, g @ g.T + rest)
    assert close(total.lean, kept**2 * before.lean + 2 * leans)
    assert close(total.read, kept * before.read + 2 * kept * leans @ s @ x.T / 1.0)
    assert close(total.along(stream, width), g @ s.T)
    assert close(total.held, kept * factor)


def test_the_gain_of_a_norm_gets_what_points_along_the_stream() -> None:
    """Σ_i g_i∘x_i of g = L·x + r, for L with and without a mean along the stream."""
    model, random = model_of(subject(**BASE)), np.random.default_rng(3)
    for lean in (np.eye(LENGTH), np.eye(LENGTH, k=-1), leans(LENGTH)):
        found = []
        for _ in range(40):
            x = random.standard_normal((LENGTH, WIDTH)) + 0.7 * random.standard_normal(WIDTH)
            g = lean @ x + 0.5 * random.standard_normal(x.shape)
            squares = Squares(np.ones((LENGTH, LENGTH), dtype=bool), 1.0, 1.0)
            add_norm(model, "final_norm", x @ x.T / WIDTH, g @ g.T, squares, WIDTH * lean @ (x @ x.T / WIDTH))
            found.append(float(((g * x).sum(axis=0) ** 2).sum()) / squares.found["final_norm.weight"] - 1)
        # 4 standard errors; without the product of both transposed it would be 15 % and more
        assert abs(statistics.fmean(found)) < 4 * statistics.stdev(found) / math.sqrt(len(found)) + 0.01


def test_a_gradient_along_its_own_state_is_all_taken_away() -> None:
    state = np.array([[1.0, 0.3], [0.3, 2.0]])
    assert not crosswise(np.diag([3.0, -1.0]), state).any()
    left = crosswise(np.array([[1.0, 0.5], [0.25, 1.0]]), state)
    assert np.allclose((left * state).sum(axis=1), 0.0)
    assert left[0, 1] == 0.5 and left[1, 0] == 0.25


@pytest.mark.parametrize(("std", "correlation"), [(1.0, 0.8), (3.5, 0.9), (12.0, 0.7), (12.0, 0.99)])
def test_what_few_tokens_have_in_common_is_that_of_draws(std: float, correlation: float) -> None:
    vocab_size, draws = 500, 1500
    random = np.random.default_rng(2)
    one = random.standard_normal((draws, vocab_size))
    other = correlation * one + math.sqrt(1 - correlation**2) * random.standard_normal((draws, vocab_size))
    both = [np.exp(std * (z - z.max(axis=1, keepdims=True))) for z in (one, other)]
    met = (both[0] / both[0].sum(axis=1, keepdims=True) * both[1] / both[1].sum(axis=1, keepdims=True)).sum(axis=1)
    error = float(met.std()) / math.sqrt(draws)
    # 4 standard errors: a false alarm in 16,000; and 1 % for the grids
    assert abs(met_by_few(vocab_size, std, correlation) - float(met.mean())) < 4 * error + 0.01 * float(met.mean())


@pytest.mark.parametrize("vocab_size", [30, 97, 4000])
@pytest.mark.parametrize("std", [2.2, 6.0, 20.0])
def test_overlap_is_exact_between_the_correlations_that_it_calculates(vocab_size: int, std: float) -> None:
    correlations = [0.2, 0.4, 0.6, 0.8, 0.9, 0.99]
    found = overlap(vocab_size, std**2 * np.array([[1.0, *correlations], *[[one] + [1.0] * 6 for one in correlations]]))
    for at, correlation in enumerate(correlations, 1):
        exact = vocab_size * met_by_few(vocab_size, std, correlation)
        assert found[0, at] == pytest.approx(exact, rel=0.05)
    assert (np.diff([1.0, *found[0, 1:], found[0, 0]]) > 0).all()  # nothing in common ... all


@pytest.mark.parametrize("vocab_size", [50, 4000, 50257])
def test_overlap_has_no_step_where_few_tokens_begin(vocab_size: int) -> None:
    variance = math.log(max(FEW * vocab_size, SMALL))
    alike = np.array([[1.0, 0.6], [0.6, 1.0]])
    before, behind = (overlap(vocab_size, times * variance * alike) for times in (0.999, 1.001))
    assert behind == pytest.approx(before, rel=0.06)


def test_overlap_of_many_and_of_one() -> None:
    alike = np.array([[1.0, 0.5], [0.5, 1.0]])
    assert overlap(10**7, alike) == pytest.approx(np.exp(alike), rel=1e-6)
    assert (overlap(1, 100 * alike) == 1).all()
    assert np.isfinite(overlap(2, 100 * alike)).all()


def test_a_tied_embedding_gets_its_gradient_as_head_and_as_input_at_once() -> None:
    """Without branches: of rows of std 0.15 the two have so much in common that it is 8 % of the norm of their sum."""
    ratios = []
    for seed in range(4):
        fields = {"vocab_size": 500, "final_norm": False, "position": "none", "std": 0.15}
        of = subject("zero-residual", **{**BASE, "context": 64, **fields})
        batch = tokens(of, 2, seed=seed)
        measured = dense.run(of, batch, seed, Settings(device="cpu"), partial(observe, backward=True))[0]
        norms = []
        for one in (measured, predict(of, batch, backward=True).values):
            assert one.gradients is not None
            norms.append(dict(one.gradients.norms)["token_embedding.weight"])
        ratios.append(norms[0] / norms[1] - 1)
    # 4 % of what the softmax's chance is left out of; 3 standard errors, with 3 degrees of freedom 6 %
    assert abs(statistics.fmean(ratios)) < 0.04 + 3 * statistics.stdev(ratios) / math.sqrt(len(ratios))
