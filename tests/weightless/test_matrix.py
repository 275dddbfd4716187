"""A random matrix that is asked agrees with one matrix of independent normal entries, whatever is asked, and when."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from initdiag.weightless.matrix import Matrix
from initdiag.weightless.met import OverwrittenError
from initdiag.weightless.normals import Normals
from initdiag.weightless.span import Bases, Span

from .helpers import FAMILY, close, p_of_one_sample, p_of_two_samples, vectors

KINDS = ("new", "again", "sum", "equal", "nearly", "zero", "short", "axis", "answer")


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int, str, int]]]:
    """(m, n, steps), a step being (side, vectors, kind of vectors, seed)."""
    m, n = draw(st.integers(1, 14)), draw(st.integers(1, 14))
    step = st.tuples(
        st.sampled_from(("right", "left")), st.integers(1, 6), st.sampled_from(KINDS), st.integers(0, 9999)
    )
    return m, n, draw(st.lists(step, min_size=1, max_size=7))


def asked(kind: str, count: int, size: int, seed: int, before: list[Tensor], answers: list[Tensor]) -> Tensor:
    """Vectors to ask: new ones, or ones that depend on those before or on the answers of the other side."""
    new = vectors(count, size, seed)
    if kind == "again" and before:
        return before[seed % len(before)]
    if kind == "sum" and before:
        one = before[seed % len(before)]
        return vectors(count, len(one), seed) @ one
    if kind == "answer" and answers:
        return answers[seed % len(answers)]
    if kind == "equal":
        return new[:1].expand(count, size).contiguous()
    if kind == "nearly":
        return new[:1] + 10.0 ** -(seed % 16) * new
    if kind == "zero":
        return new * (torch.arange(count) % 2).unsqueeze(1)
    if kind == "short":  # rows whose lengths differ by many orders of magnitude
        return new * 10.0 ** -(4.0 * torch.arange(count, dtype=torch.float64).unsqueeze(1))
    if kind == "axis":
        return torch.eye(size, dtype=torch.float64)[torch.arange(seed, seed + count) % size]
    return new


def agrees(answer: Tensor, question: Tensor, w: Tensor, tolerance: float) -> None:
    """Each answer is off by a part of what its own vector could give at most."""
    bound = tolerance * float(torch.linalg.matrix_norm(w, 2)) * question.norm(dim=1, keepdim=True)
    off = (answer - question @ w).abs()
    assert bool((off <= bound).all()), f"off by {float((off / bound.clamp(min=1e-300)).max()):.3g} tolerances"


# The floor below which a direction counts as rounding is √(64·k·2⁻⁵²) of a row's length, 3e-7 for k = 6: what lies
# below is left out of an answer. Directions near it are known to a few digits only: a few times as much may come back.
FLOOR = 2e-6


@settings(max_examples=150, deadline=None, derandomize=True)
@given(interleavings(), st.booleans())
def test_any_interleaving_agrees_with_one_matrix(
    plan: tuple[int, int, list[tuple[str, int, str, int]]], copied: bool
) -> None:
    m, n, steps = plan
    matrix = Matrix(Normals(1, 1, torch.float64), "w", m, n, Bases(copied))
    questions: dict[str, list[Tensor]] = {"right": [], "left": []}
    answers: dict[str, list[Tensor]] = {"right": [], "left": []}

    def ask(side: str, x: Tensor) -> None:
        answers[side].append(matrix.right(x) if side == "right" else matrix.left(x))
        questions[side].append(x)

    for side, count, kind, seed in steps:
        other = "left" if side == "right" else "right"
        size = n if side == "right" else m
        ask(side, asked(kind, count, size, seed, questions[side], answers[other]))
    for x, wx in zip(questions["right"], answers["right"], strict=True):
        for y, yw in zip(questions["left"], answers["left"], strict=True):
            room = y.norm(dim=1, keepdim=True) * x.norm(dim=1) * (math.sqrt(m) + math.sqrt(n) + 6)
            assert bool(((y @ wx.T - yw @ x.T).abs() <= FLOOR * room).all())
    w = matrix.entries()
    assert float(torch.linalg.matrix_norm(w, 2)) < math.sqrt(m) + math.sqrt(n) + 7, "more than a Gaussian matrix has"
    assert matrix.entries() is w
    for x, wx in zip(questions["right"], answers["right"], strict=True):
        agrees(wx, x, w.T, FLOOR)
        agrees(matrix.right(x), x, w.T, 1e-12)
    for y, yw in zip(questions["left"], answers["left"], strict=True):
        agrees(yw, y, w, FLOOR)
        agrees(matrix.left(y), y, w, 1e-12)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("order", ["right", "left", "both"])
def test_vectors_in_general_position_are_answered_to_rounding(dtype: torch.dtype, tolerance: float, order: str) -> None:
    """Until the rank is used up: 40 and 50 directions, eight at a time, and eight more."""
    matrix = Matrix(Normals(2, 1, dtype), "w", 40, 50)
    told: list[tuple[str, Tensor, Tensor]] = []
    for at in range(8):
        if order != "left":
            x = vectors(8, 50, at, dtype)
            told.append(("right", x, matrix.right(x)))
        if order != "right":
            y = vectors(8, 40, 100 + at, dtype)
            told.append(("left", y, matrix.left(y)))
    for side, x, answer in list(told):
        told.append((side, x, getattr(matrix, side)(x)))
        close(told[-1][2], answer, tolerance, "asked twice")
    w = matrix.entries()
    for side, x, answer in told:
        close(answer, x @ (w.T if side == "right" else w), tolerance, side)


def test_nearly_equal_rows_in_float32() -> None:
    """Tokens at a cosine of 1 − 1e-6, as a deep stack makes them; float32 gives a large matrix's products to 1e-5."""
    matrix = Matrix(Normals(3, 1), "w", 300, 400)
    x = vectors(1, 400, 0, torch.float32) + 1e-3 * vectors(32, 400, 1, torch.float32)
    y = vectors(1, 300, 2, torch.float32) + 1e-3 * vectors(32, 300, 3, torch.float32)
    wx, yw, wx_again = matrix.right(x), matrix.left(y), matrix.right(x.flip(0))
    lengths = float(x.norm(dim=1).max() * y.norm(dim=1).max())
    assert float((y @ wx.T - yw @ x.T).abs().max()) < 1e-5 * lengths
    close(wx_again.flip(0), wx, 1e-5)
    w = matrix.entries().double()
    close(wx.double(), x.double() @ w.T, 2e-5)
    difference = (x[:1] - x[1:2]).double()  # what tells tokens apart is right to the digits that float32 leaves of it
    close((wx[:1] - wx[1:2]).double(), difference @ w.T, 2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("factor", [1e-3, 1e-8, 1e-16, 1e8, 1e16])
def test_a_vector_is_answered_at_its_own_scale(dtype: torch.dtype, factor: float) -> None:
    """A short vector beside long ones (gradients of far tokens, a token with massive activations)."""
    x = vectors(5, 50, 4, dtype)
    x[2:] *= factor
    for before in (False, True):
        matrix = Matrix(Normals(4, 1, dtype), "w", 40, 50)
        if before:
            matrix.right(vectors(3, 50, 5, dtype))
        answer = matrix.right(x)
        found = answer / (x @ matrix.entries().T)
        close(found, torch.ones_like(found), 1e-2, "row by row")


def test_no_vectors_get_no_answers() -> None:
    """An expert that no token chose."""
    matrix = Matrix(Normals(0), "w", 4, 5)
    assert matrix.right(torch.zeros(0, 5)).shape == (0, 4)
    assert matrix.left(torch.zeros(0, 4)).shape == (0, 5)
    matrix.right(vectors(2, 5, 0, torch.float32))
    assert matrix.right(torch.zeros(0, 5)).shape == (0, 4)
    assert matrix.left(torch.zeros(0, 4)).shape == (0, 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    """A forward that overflows must show it; the other tokens keep their answers."""
    x = vectors(4, 50, 6)
    x[1, 3] = bad
    for before in (False, True):
        matrix = Matrix(Normals(4, 1, torch.float64), "w", 40, 50)
        if before:
            matrix.right(vectors(3, 50, 5))
        answer = matrix.right(x)
        assert not bool(answer[1].isfinite().any())
        rest = [0, 2, 3]
        close(answer[rest], x[rest] @ matrix.entries().T)


def test_names_and_seeds_are_independent() -> None:
    """Correlations of 2,500 entries: a right program passes five standard errors, 0.1, but once in 3e5 runs of six."""
    drawn = [
        Matrix(Normals(seed, 1, torch.float64), name, 50, 50).entries().flatten()
        for seed, name in ((0, "a"), (0, "b"), (1, "a"), (1, "b"))
    ]
    correlations = torch.corrcoef(torch.stack(drawn)) - torch.eye(4, dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / 50
    again = Matrix(Normals(0, 1, torch.float64), "a", 50, 50).entries().flatten()
    assert torch.equal(again, drawn[0])


def test_answers_do_not_depend_on_threads() -> None:
    x = vectors(3, 1000, 0, torch.float32)
    one, two = (Matrix(Normals(0, threads), "w", 200_000, 1000).right(x) for threads in (1, 2))
    assert torch.equal(one, two)


@pytest.mark.parametrize("copied", [False, True])
def test_vectors_that_were_overwritten(copied: bool) -> None:
    """In place: with copies all stays right; without, the next question says so."""
    bases = Bases(copied)
    first, second = (Matrix(Normals(0, 1, torch.float64), name, 40, 50, bases) for name in "ab")
    x = vectors(3, 50, 0)
    before, answer = x.clone(), first.right(x)
    x.copy_(vectors(3, 50, 1))
    second_answer = second.right(x)
    close(second_answer, x @ second.entries().T, what="another matrix, the new numbers")
    if copied:
        close(first.right(x), x @ first.entries().T, what="the new numbers")
        close(answer, before @ first.entries().T, what="the old numbers")
    else:
        with pytest.raises(OverwrittenError):
            first.right(x)


def test_bases_are_shared_where_vectors_are_the_same_only() -> None:
    bases = Bases()
    x = vectors(3, 50, 0)
    one, same = bases.of(x), bases.of(x)
    assert one[0] is same[0]
    for other in (x[:2], x * 1, x.flip(1), x.float()):
        assert bases.of(other)[0] is not one[0]


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_span_is_orthonormal_and_gives_back_what_it_took(dtype: torch.dtype, tolerance: float) -> None:
    """The third vectors lie in the span of the first but for a thousandth."""
    span = Span(Bases())
    first, second, third = (vectors(6, 60, seed, dtype) for seed in range(3))
    taken = [first, second, vectors(6, 6, 3, dtype) @ first + 1e-3 * third]
    for x in taken:
        old, new, block = span.extend(x)
        assert block is not None
        back = block.combine(new)
        if old is not None:
            back = back + span.combine(torch.cat((old, old.new_zeros(len(old), block.rank)), 1))
        close(back, x, tolerance)
    q = span.combine(torch.eye(span.rank, dtype=dtype))
    close(q @ q.T, torch.eye(span.rank, dtype=dtype), tolerance)


# --- distribution -----------------------------------------------------------------------------------------------------


def by_rights(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    for part in x.split(3):
        matrix.right(part)


def by_lefts(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    for part in y.split(3):
        matrix.left(part)


def by_turns(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    for a, b in zip(x.split(3), y.split(3), strict=True):
        matrix.right(a)
        matrix.left(b)


def by_half(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    matrix.right(x[:6])
    matrix.left(y[:4])


def by_answers(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    """Power iteration from both ends: every question depends on the answer before."""
    a, b = x[:2], y[:2]
    for _ in range(3):
        a = matrix.left(torch.nn.functional.normalize(matrix.right(a)))
        b = matrix.right(torch.nn.functional.normalize(matrix.left(b)))
        a, b = torch.nn.functional.normalize(a), torch.nn.functional.normalize(b)


def by_no_question(matrix: Matrix, x: Tensor, y: Tensor) -> None:
    pass


WAYS = {way.__name__: way for way in (by_rights, by_lefts, by_turns, by_half, by_answers, by_no_question)}
SIZE = 18  # rows and columns of the matrices here
DRAWS = 40


def real(seed: int, size: int = SIZE) -> Tensor:
    return vectors(size, size, 10_000 + seed)


def revealed(way: str, seed: int, fixed: bool) -> Tensor:
    """A matrix whose entries were found out in some way; questions are the same for all seeds, so that W is not
    independent of them by chance. fixed: some rows were known beforehand."""
    normals = Normals(seed, 1, torch.float64)
    known = (torch.tensor([1, 4, 16]), normals("rows", 3, SIZE)) if fixed else None
    matrix = Matrix(normals, "w", SIZE, SIZE, fixed=known)
    WAYS[way](matrix, vectors(SIZE, SIZE, 1), vectors(SIZE, SIZE, 2))
    return matrix.entries()


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_revealed_matrix_is_gaussian_with_independent_entries(way: str, fixed: bool) -> None:
    """Eight tests of each of 12 ways: a right program fails one of all 96 with probability 1e-4.

    Moments of n = 12,960 entries have standard errors √(1/n), √(2/n), √(15/n), √(96/n); a covariance between two
    rows or columns over all draws has 1/√(SIZE·DRAWS), and that of the largest of 2·153 is a Bonferroni bound.
    """
    rate = FAMILY / (8 * 2 * len(WAYS))
    drawn = torch.stack([revealed(way, seed, fixed) for seed in range(DRAWS)])
    x = drawn.flatten()
    count = x.numel()
    for power, (expected, variance) in enumerate(((0, 1), (1, 2), (0, 15), (3, 96)), 1):
        off = (float(x.pow(power).mean()) - expected) / math.sqrt(variance / count)
        assert math.erfc(abs(off) / math.sqrt(2)) > rate, f"moment {power}: {off:.1f} standard errors"
    assert p_of_one_sample(x) > rate
    for name, side in (("rows", drawn.transpose(0, 1).flatten(1)), ("columns", drawn.permute(2, 0, 1).flatten(1))):
        covariance = side @ side.T / side.shape[1]
        pairs = covariance[torch.triu_indices(SIZE, SIZE, 1).unbind()] * math.sqrt(side.shape[1])
        smallest = float(torch.erfc(pairs.abs() / math.sqrt(2)).min()) * len(pairs)
        assert smallest > rate, f"{name}: {float(pairs.abs().max()):.1f} standard errors"
    singular = torch.linalg.svdvals(drawn)
    beside = torch.linalg.svdvals(torch.stack([real(seed) for seed in range(4 * DRAWS)]))
    for name, pick in (("largest", 0), ("middle", SIZE // 2), ("smallest", -1)):  # one of each draw: independent
        assert p_of_two_samples(singular[:, pick], beside[:, pick]) > rate / 3, name


def power_iteration(w: Matrix | Tensor, start: Tensor) -> list[float]:
    """‖Wᵀ W x‖ / ‖x‖ three times over, each time of the vector that came out."""
    found, x = [], start
    for _ in range(3):
        after = w.left(w.right(x)) if isinstance(w, Matrix) else x @ w.T @ w
        found.append(float(after.norm() / x.norm()))
        x = after / after.norm()
    return found


@pytest.mark.slow
def test_questions_that_depend_on_answers_are_answered_as_a_real_matrix_does() -> None:
    """Power iteration over 250 seeds beside 250 real draws of another shape than square; three tests, 1e-4 together."""
    start = vectors(1, 30, 3)
    asked = torch.tensor(
        [power_iteration(Matrix(Normals(seed, 1, torch.float64), "w", 20, 30), start) for seed in range(250)]
    )
    beside = torch.tensor([power_iteration(vectors(20, 30, 50_000 + seed), start) for seed in range(250)])
    for step in range(3):
        assert p_of_two_samples(asked[:, step], beside[:, step]) > FAMILY / 3, f"step {step + 1}"


def test_first_rows_then_products() -> None:
    """The angle between what W x and the looked-up rows say is none: rows known beforehand are met by both sides."""
    normals = Normals(0, 1, torch.float64)
    rows = normals("rows", 3, 50)
    at = torch.tensor([7, 0, 39])
    matrix = Matrix(normals, "w", 40, 50, fixed=(at, rows))
    x, y = vectors(6, 50, 0), vectors(6, 40, 1)
    wx, yw = matrix.right(x), matrix.left(y)
    close(wx[:, at], x @ rows.T)
    close(matrix.left(torch.eye(40, dtype=torch.float64)[at]), rows)
    close(y @ wx.T, yw @ x.T)
    w = matrix.entries()
    assert torch.equal(w[at], rows)
    close(wx, x @ w.T)
    close(yw, y @ w)


def test_all_rows_known_beforehand() -> None:
    rows = vectors(5, 50, 0)
    matrix = Matrix(Normals(0, 1, torch.float64), "w", 5, 50, fixed=(torch.arange(5), rows))
    x, y = vectors(3, 50, 1), vectors(3, 5, 2)
    close(matrix.left(y), y @ rows)
    close(matrix.right(x), x @ rows.T)
    assert torch.equal(matrix.entries(), rows)


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.1, 0.03, 0.012, 0.003, 1e-4])
def test_both_sides_agree_on_vectors_that_are_alike(spread: float) -> None:
    """128 tokens of one direction and little else, as post-norm and deep models have them: float32 rounds 1e-7."""
    x = vectors(1, 1024, 0).float() + spread * vectors(128, 1024, 1).float()
    y = vectors(64, 512, 2).float()
    matrix = Matrix(Normals(0), "w", 512, 1024)
    answer, other = matrix.right(x), matrix.left(y)
    off = (y @ answer.T - other @ x.T).abs() / (y.norm(dim=1, keepdim=True) * x.norm(dim=1))
    assert float(off.max()) < 1e-4
    apart = x - x.mean(0)  # what tells them apart is rounded with them
    off = (y @ (answer - answer.mean(0)).T - other @ apart.T).abs()
    off = off / (y.norm(dim=1, keepdim=True) * apart.norm(dim=1))
    assert float(off.max()) < max(5e-4, 3e-6 / spread)


@pytest.mark.parametrize("side", ["right", "left"])
def test_equal_vectors_are_asked_once(side: str) -> None:
    """To the bit, since a leak of the future is told by answers that differ; and not as rows that are nearly equal."""
    few = vectors(3, 40, 1).float()
    order = [0, 1, 0, 2, 1, 1]
    matrix = Matrix(Normals(0), "w", 40, 40)
    found = getattr(matrix, side)(few[order])
    assert torch.equal(found, found[[0, 1, 0, 3, 1, 1]])
    (block,) = (matrix._inputs if side == "right" else matrix._outputs).span.blocks
    assert block.rank == 3 and block.factor is not None
    torch.testing.assert_close(getattr(matrix, side)(few), found[[0, 1, 3]], rtol=1e-5, atol=1e-5)
