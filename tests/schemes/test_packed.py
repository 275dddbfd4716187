"""Packed matrices: what a scheme says of each part, and the moments of the mixture."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from initdiag.schemes import SCHEMES, Constant, Normal, Parameter, Part, Role, Uniform, make_plan
from initdiag.schemes.distributions import AsFound, Distribution, Orthogonal, Packed, Piece, Truncated
from initdiag.weightless.law import law_of

Q, K, V = Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE
GROUPED = (Part(Q, ((0, 64),)), Part(K, ((64, 80),)), Part(V, ((80, 96),)))
HEADS = tuple(Part(role, ((at, at + 8), (24 + at, 32 + at))) for at, role in ((0, Q), (8, K), (16, V)))  # NeoX
QKV = Parameter("qkv.weight", (96, 48), Q, 48, 0, parts=GROUPED)
SIZES = {"n_layers": 2.0, "d_model": 48.0, "head_dim": 16.0, "vocab_size": 97.0, "tied": 1.0}


def distribution(scheme: str, parameter: Parameter) -> Distribution:
    return make_plan(SCHEMES[scheme], [parameter], SIZES)[parameter.name].distribution


def pieces(scheme: str, parameter: Parameter) -> tuple[Piece, ...]:
    found = distribution(scheme, parameter)
    assert isinstance(found, Packed)
    return found.pieces


# --- the mixture


def mixture(*parts: tuple[int, Distribution]) -> Packed:
    found, start = [], 0
    for rows, drawn in parts:
        found.append(Piece(Q, ((start, start + rows),), drawn))
        start += rows
    return Packed(tuple(found), -2)


def test_moments_of_a_mixture() -> None:
    """E[x²] and E[x⁴] are the means over rows: of N(1) 1 and 3, of U(3) 3 and 81/5."""
    packed = mixture((30, Normal(1.0)), (10, Uniform(3.0)))
    assert packed.std == pytest.approx(math.sqrt((3 * 1 + 1 * 3) / 4))
    assert packed.kurtosis == pytest.approx(((3 * 3 + 1 * 81 / 5) / 4) / ((3 * 1 + 1 * 3) / 4) ** 2)


def test_rows_of_nothing_count() -> None:
    packed = mixture((1, Constant(0.0)), (3, Normal(2.0)))
    assert packed.std == pytest.approx(2 * math.sqrt(3 / 4))
    assert packed.kurtosis == pytest.approx(3 / (3 / 4))  # x⁴ of 3·2⁴·¾ over (4·¾)²
    nothing = mixture((1, Constant(0.0)), (3, Constant(0.0)))
    assert nothing.std == 0.0
    assert math.isnan(nothing.kurtosis)


def test_words() -> None:
    assert str(mixture((1, Normal(0.5)), (1, Uniform(0.25)))) == "attention_query N(0.5), attention_query U(0.25)"


# --- the answers


def test_each_part_is_asked_as_a_matrix_of_its_own() -> None:
    """xavier: bound √(6/(fan_in + fan_out)), fan_out 64 of the queries and 16 of keys and values, not 96."""
    bounds = [piece.distribution for piece in pieces("xavier-uniform", QKV)]
    assert bounds == [Uniform(math.sqrt(6 / (48 + 64))), Uniform(math.sqrt(6 / (48 + 16))), Uniform(math.sqrt(6 / 64))]
    assert [piece.rows for piece in pieces("xavier-uniform", QKV)] == [part.rows for part in GROUPED]
    assert [piece.role for piece in pieces("xavier-uniform", QKV)] == [Q, K, V]


def test_by_role() -> None:
    """T5: N(1/√(fan_in·head_dim)) for queries, N(1/√fan_in) for keys and values."""
    stds = [piece.distribution.std for piece in pieces("t5", replace(QKV, shape=(48, 48), parts=HEADS))]
    assert stds == pytest.approx([1 / math.sqrt(48 * 16), 1 / math.sqrt(48), 1 / math.sqrt(48)])
    whole = distribution("t5", replace(QKV, shape=(48, 48), parts=HEADS))
    assert whole.std == pytest.approx(math.sqrt((1 / 16 + 1 + 1) / 3 / 48))


@pytest.mark.parametrize("scheme", ["gpt2", "scaled", "olmo-mitchell", "default", "megatron"])
def test_equal_answers_are_one(scheme: str) -> None:
    assert distribution(scheme, QKV) == distribution(scheme, replace(QKV, parts=()))


def test_orthogonal_parts_are_never_one() -> None:
    """A whole of 144 × 48 has entries of variance 1/144; three of 48 × 48 have 1/48."""
    thirds = tuple(Part(role, ((at, at + 48),)) for at, role in ((0, Q), (48, K), (96, V)))
    found = pieces("orthogonal", replace(QKV, shape=(144, 48), parts=thirds))
    assert [piece.distribution for piece in found] == [Orthogonal(1.0, 48)] * 3
    assert distribution("orthogonal", replace(QKV, shape=(144, 48), parts=thirds)).std == pytest.approx(48**-0.5)


def test_rows_that_belong_to_no_part_are_asked_as_the_matrix_itself() -> None:
    some = replace(QKV, parts=(Part(K, ((10, 20),)), Part(V, ((40, 60), (70, 75)))))
    assert some.all_parts[-1] == Part(Q, ((0, 10), (20, 40), (60, 70), (75, 96)))
    *_, rest = pieces("t5", some)
    assert rest.outputs == 96 - 10 - 25
    assert rest.distribution == Normal(1 / math.sqrt(48 * 16))
    assert QKV.all_parts == GROUPED
    inside = replace(QKV, parts=(Part(K, ((0, 40),)), Part(V, ((10, 20),))))
    assert inside.all_parts[-1] == Part(Q, ((40, 96),))


def test_a_depth_factor_is_taken_off_part_by_part() -> None:
    """DeepNorm: only the value matrix has (8N)^-1/4; U(b) has variance b²/3."""
    entry = make_plan(SCHEMES["deepnorm"], [QKV], SIZES)["qkv.weight"]
    bounds = [math.sqrt(3 / (48 + fan_out)) for fan_out in (64, 16, 16)]
    scaled = [bounds[0], bounds[1], bounds[2] * 16**-0.25]
    assert entry.distribution.std == pytest.approx(
        math.sqrt(sum(rows * b**2 / 3 for rows, b in zip((64, 16, 16), scaled, strict=True)) / 96)
    )


def test_transposed_matrices_and_experts() -> None:
    stored = Parameter("c_attn.weight", (48, 96), Q, 48, 0, transposed=True, parts=GROUPED)
    found = distribution("xavier-uniform", stored)
    assert isinstance(found, Packed)
    assert found.axis == -1
    assert found.pieces == pieces("xavier-uniform", QKV)
    halves = (Part(Role.MLP_GATE, ((0, 100),)), Part(Role.MLP_IN, ((100, 200),)))
    experts = Parameter("gate_up", (4, 200, 48), Role.MLP_GATE, 48, 0, parts=halves)
    assert experts.alone(halves[0]).shape == (4, 100, 48)
    assert experts.alone(halves[1]).role is Role.MLP_IN
    gate, up = pieces("torchtitan", experts)
    assert gate.distribution.std == pytest.approx(0.02)
    assert up.distribution.std == pytest.approx(0.02 / math.sqrt(2))  # w3 is scaled with w2


def test_fan_out_of_every_way_to_store_a_matrix() -> None:
    def stored(*shape: int, fan_in: int, transposed: bool = False) -> tuple[int, int]:
        parameter = Parameter("w", shape, Role.MLP_IN, fan_in, transposed=transposed)
        return parameter.fan_out, parameter.axis

    assert stored(96, 48, fan_in=48) == (96, -2)
    assert stored(48, 96, fan_in=48, transposed=True) == (96, -1)
    assert stored(4, 96, 48, fan_in=48) == (96, -2)
    assert stored(4, 48, 96, fan_in=48, transposed=True) == (96, -1)
    assert stored(96, 48, 1, fan_in=48) == (96, -3)  # a convolution of width 1
    assert stored(96, 48, 3, fan_in=144) == (96, -3)
    assert stored(4, 1, 48, fan_in=48) == (1, -2)  # experts of one output
    assert stored(96, fan_in=48) == (96, -1)


def test_a_part_that_has_no_answer_is_left_as_it_is_and_the_whole_is_not_judged() -> None:
    roles = {role: draw for role, draw in SCHEMES["gpt2"].roles.items() if role is not V}
    found = make_plan(replace(SCHEMES["gpt2"], roles=roles), [QKV], SIZES)["qkv.weight"].distribution
    assert isinstance(found, Packed)
    assert [piece.distribution for piece in found.pieces[:2]] == [Normal(0.02)] * 2
    assert isinstance(found.pieces[2].distribution, AsFound)
    assert math.isnan(found.std)


# --- without entries


def test_the_law_has_the_rows_in_their_places() -> None:
    packed = distribution("t5", replace(QKV, shape=(48, 48), parts=HEADS))
    law = law_of(packed, (48, 48))
    assert [(piece.start, piece.stop) for piece in law.pieces] == [(at, at + 8) for at in range(0, 48, 8)]
    query, other = 1 / math.sqrt(48 * 16), 1 / math.sqrt(48)
    assert [piece.std for piece in law.pieces] == pytest.approx([query, other, other] * 2)
    assert law.std == pytest.approx(packed.std)
    assert law.exact


def test_the_law_of_experts_repeats() -> None:
    packed = mixture((3, Normal(1.0)), (2, Truncated(2.0, 2.0)))
    law = law_of(packed, (4, 5, 48))
    assert [(piece.start, piece.stop) for piece in law.pieces] == [
        *((0, 3), (3, 5), (5, 8), (8, 10)),
        *((10, 13), (13, 15), (15, 18), (18, 20)),
    ]
    assert [piece.distribution for piece in law.pieces] == [Normal(1.0), Truncated(2.0, 2.0)] * 4
    assert not law.exact


@pytest.mark.parametrize(("shape", "each"), [((5, 48), 1), ((5, 48, 3), 48)])
def test_the_law_of_a_convolution(shape: tuple[int, ...], each: int) -> None:
    """Rows of a parameter are all its axes but the last; trailing axes of 1 are gone."""
    law = law_of(replace(mixture((3, Normal(1.0)), (2, Normal(2.0))), axis=-3), shape)
    assert [(piece.start, piece.stop) for piece in law.pieces] == [(0, 3 * each), (3 * each, 5 * each)]


def test_columns_have_no_law_of_rows() -> None:
    packed = replace(mixture((3, Normal(1.0)), (2, Normal(2.0))), axis=-1)
    (piece,) = law_of(packed, (48, 5)).pieces
    assert (piece.start, piece.stop, piece.distribution) == (0, 48, packed)
