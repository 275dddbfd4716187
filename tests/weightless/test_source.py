"""Parameters of many matrices: laws of pieces, looked-up rows, and parts of rows that are asked by themselves."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from initdiag.schemes import Constant, Normal, Uniform
from initdiag.weightless.law import Law, Piece
from initdiag.weightless.source import Source

from .helpers import FAMILY, close, entries_of, made, p_of_one_sample, source, vectors

E, M, N = 3, 12, 10
PIECES = Law(
    (
        Piece(0, 1, Constant(0.0)),  # a padding row
        Piece(1, 7, Normal(0.5)),
        Piece(7, 15, Normal(2.0), mean=1.5),  # across two matrices
        Piece(15, 20, Constant(-0.75)),
        Piece(20, E * M, Uniform(0.3), mean=-0.25),
    )
)
# Answers here are off by float64's rounding, and by 3e-7 where vectors are nearly dependent (see test_matrix.py).
EXACT = 2e-6


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int, int, int]]:
    """(what, matrix, first row, last row + 1, seed)."""
    found = []
    for _ in range(draw(st.integers(1, 9))):
        start = draw(st.integers(0, M - 1))
        stop = draw(st.integers(start + 1, M))
        what = draw(st.sampled_from(("right", "left", "rows", "right", "left", "rows", "entries", "forget")))
        found.append((what, draw(st.integers(0, E - 1)), start, stop, draw(st.integers(0, 99))))
    return found


def ask(of: Source, what: str, matrix: int, start: int, stop: int, seed: int) -> Tensor:
    rows = range(start, stop)
    if what == "right":
        return of.right(vectors(1 + seed % 4, N, seed % 7), rows, matrix)
    if what == "left":
        return of.left(vectors(1 + seed % 4, M, seed % 7)[:, start:stop], rows, matrix)
    if what == "entries":
        return of.entries(rows, matrix)
    return of.look_up([matrix * M + (start if at % 3 else (start + at * seed) % M) for at in range(5)])


def expected(w: Tensor, what: str, matrix: int, start: int, stop: int, seed: int) -> Tensor:
    part = w[matrix, start:stop]
    if what == "right":
        return vectors(1 + seed % 4, N, seed % 7) @ part.T
    if what == "left":
        return vectors(1 + seed % 4, M, seed % 7)[:, start:stop] @ part
    if what == "entries":
        return part
    return w[matrix, [start if at % 3 else (start + at * seed) % M for at in range(5)]]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(steps(), st.booleans())
def test_any_interleaving_agrees_with_one_parameter(plan: list[tuple[str, int, int, int, int]], pieces: bool) -> None:
    of = source(E, M, N, law=PIECES if pieces else None)
    kept: list[tuple[tuple[str, int, int, int, int], Tensor]] = []
    for step in plan:
        if step[0] == "forget":
            of.forget()
            again = [(old, ask(of, *old)) for old, _ in kept]
            for (old, before), (_, after) in zip(kept, again, strict=True):
                assert torch.equal(before, after), f"{old} after forget"
            continue
        kept.append((step, ask(of, *step)))
    w = entries_of(of)
    for step, answer in kept:
        scale = float(w[step[1]].norm()) * 6
        assert float((answer - expected(w, *step)).abs().max()) <= EXACT * scale, step
        assert float((ask(of, *step) - expected(w, *step)).abs().max()) <= EXACT * scale, f"{step}, entries known"
    rows = of.look_up(range(E * M))
    close(rows, w.flatten(0, 1), EXACT, "rows, entries known")


def test_laws_hold_row_by_row() -> None:
    """Rows of 4,000 entries: mean to 5/√4000 stds, std to 5/√8000, constants to the last digit; rows by look-up, by
    products from both sides and by entries."""
    n = 4000
    law = PIECES
    for way in ("rows", "right", "left", "entries"):
        of = source(E, M, n, law=law, seed=3)
        if way == "rows":
            found = of.look_up(range(E * M))
        elif way == "left":
            found = torch.cat([of.left(torch.eye(M, dtype=torch.float64), range(M), at) for at in range(E)])
        else:
            if way == "right":
                for at in range(E):
                    of.right(vectors(5, n, 1), range(M), at)
            found = entries_of(of).flatten(0, 1)
        for piece in law.pieces:
            part = found[piece.start : piece.stop]
            assert bool(((part.mean(1) - piece.centre).abs() <= 5 * piece.std / math.sqrt(n) + 1e-12).all()), way
            assert bool(((part.std(1) - piece.std).abs() <= 5 * piece.std / math.sqrt(2 * n) + 1e-9).all()), way


def test_products_follow_the_mean_of_the_law() -> None:
    law = Law((Piece(0, 40, Normal(1e-3), mean=2.0),))
    of = source(40, 30, law=law)
    x, y = vectors(3, 30, 0), vectors(3, 40, 1)
    # 1e-3·√30·5 at most beside the product with the mean
    assert float((of.right(x, range(40)) - 2 * x.sum(1, keepdim=True)).abs().max()) < 0.05
    assert float((of.left(y, range(40)) - 2 * y.sum(1, keepdim=True)).abs().max()) < 0.05


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_constant_parameters_need_no_numbers(value: float) -> None:
    of = source(40, 30, law=Law((Piece(0, 40, Constant(value)),)))
    x, y = vectors(3, 30, 0), vectors(3, 10, 1)
    w = torch.full((40, 30), value, dtype=torch.float64)
    close(of.right(x, range(40)), x @ w.T)
    close(of.left(y, range(5, 15)), y @ w[5:15])
    close(of.look_up([3, 3, 0]), w[:3])
    close(of.entries(range(40)), w)


def test_rows_are_gaussian_and_independent_of_products_before() -> None:
    """Rows looked up after products, of 400 seeds: KS of 12,000 entries; what is left after the products' part."""
    drawn = []
    for seed in range(400):
        of = source(20, 30, seed=seed)
        of.right(vectors(4, 30, 0), range(20))
        drawn.append(of.look_up([seed % 20]) / 0.3)
    assert p_of_one_sample(torch.cat(drawn)) > FAMILY


def test_looked_up_after_made_real() -> None:
    of = source(40, 30)
    w = of.entries(range(40))
    close(of.look_up([3, 39]), w[[3, 39]])
    close(of.entries(range(40)), w)


def test_no_rows() -> None:
    assert source(E, M, N, law=PIECES).look_up([]).shape == (0, N)
    assert source(M, N).look_up([]).shape == (0, N)


def test_matrices_and_names_are_independent() -> None:
    """Six correlations of 10,000 entries, at five standard errors: one false alarm in 3e5 runs."""
    experts = entries_of(source(3, 100, 100)).flatten(1)
    other = entries_of(source(100, 100, name="v")).flatten()
    correlations = torch.corrcoef(torch.cat((experts, other.unsqueeze(0)))) - torch.eye(4, dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / 100


def test_the_budget_counts_what_is_real_once() -> None:
    of = made(40, 30, room=40 * 30 * 8)
    first = of.parameter.abs()
    assert of.budget.left == 0 and list(of.budget.made) == ["w"]
    assert torch.equal(of.parameter.abs(), first)
    of.source.forget()
    assert torch.equal(of.parameter.abs(), first), "forgotten entries take no room"


def test_more_vectors_than_half_the_width_are_answered_by_real_entries_where_there_is_room() -> None:
    x = vectors(20, 30, 0)
    roomy, tight = made(40, 30), made(40, 30, room=0)
    for of in (roomy, tight):
        answer = of.source.right(x, range(40))
        close(of.source.right(x, range(40)), answer)
        close(answer, x @ entries_of(of.source).T)
    assert roomy.budget.made and not tight.budget.made
