"""The tables of branches, weights and wiring, on numbers chosen by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from initdiag.measure import AttentionMeasure, Branch, ParameterMeasure, Wiring
from initdiag.report import Report, Run, Style, render
from initdiag.report.branches import branch_table, entropies, label
from initdiag.report.header import header_lines, init_code_seen, wiring
from initdiag.report.names import parts_in_words, pattern, role_of, starred
from initdiag.report.weights import weight_notes, weight_rows
from initdiag.schemes import AsFound, Constant, Distribution, Normal, Parameter, Part, PlannedParameter, Role
from tests.report.conftest import module_run, run


def attended(branches: list[tuple[str, int | None, str]], attentions: list[tuple[str, int | None]]) -> Run:
    """Branches (name, layer, kind), and attentions (name, layer) with entropies 0.1, 0.2, …"""
    whole = run()
    made = tuple(Branch(i + 1, name, layer, kind, None, 1.0, 2.0) for i, (name, layer, kind) in enumerate(branches))
    measured = replace(
        whole.measured,
        residual=replace(whole.measured.residual, branches=made),
        attention=tuple(AttentionMeasure(name, layer, 0.0, (i + 1) / 10) for i, (name, layer) in enumerate(attentions)),
    )
    return replace(whole, measured=measured)


CASES = {
    "by name": (
        [("b.0.attn.out", 0, "attention"), ("b.0.mlp", 0, "mlp"), ("b.1.attn.out", 1, "attention")],
        [("b.0.attn", 0), ("b.1.attn", 1)],
        {1: 0.1, 3: 0.2},
    ),
    "b.1 is no beginning of b.10": (
        [("b.10.attn.out", 10, "attention"), ("b.1.attn.out", 1, "attention")],
        [("b.1", 1), ("b.10", 10)],
        {1: 0.2, 2: 0.1},
    ),
    "a shared layer, in order": (
        [("b.0.attn.out", 0, "attention"), ("b.0.attn.out", 0, "attention")],
        [("b.0.attn", 0), ("b.0.attn", 0)],
        {1: 0.1, 2: 0.2},
    ),
    "by layer": (
        [("b.0.proj", 0, "attention"), ("b.1.proj", 1, "attention")],
        [("h.1", 1), ("h.0", 0)],
        {1: 0.2, 2: 0.1},
    ),
    "in order, where nothing else tells": (
        [("out", None, "attention"), ("out2", None, "cross_attention")],
        [("", None), ("", None)],
        {1: 0.1, 2: 0.2},
    ),
    "not guessed": ([("out", None, "attention")], [("x", None), ("y", None)], {}),
    "never an MLP": ([("b.0.attn.mlp", 0, "mlp")], [("b.0.attn", 0)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_which_attention_belongs_to_which_branch(case: str) -> None:
    branches, attentions, expected = CASES[case]
    assert entropies(attended(branches, attentions)) == expected


def test_columns_that_hold_nothing_are_left_out() -> None:
    whole = attended([("b.0.mlp", 0, "mlp")], [])
    bare = replace(whole, expected=replace(whole.expected, prediction=None))
    assert [column.heading for column in branch_table(bare).columns] == ["#", "branch", "variance", "stream", "ratio"]
    headings = [column.heading for column in branch_table(module_run()).columns]
    assert headings == [
        "#",
        "branch",
        "variance",
        "expected",
        "stream",
        "ratio",
        "reads",
        "tokens",
        "entropy",
        "gradient",
    ]
    assert branch_table(module_run()).rows[0][-4:] == ("0.988", "0.432", "0.9999", "0.568")
    assert branch_table(module_run()).rows[1][-4:] == ("–", "0.412", "–", "0.457")


def test_what_is_unusual_about_a_branch_is_said_in_words() -> None:
    branch = Branch(1, "b.0.attn.out", 0, "attention", None, 1.0, 2.0)
    assert label(branch) == "b.0.attn.out"
    assert label(replace(branch, joined=2, stream=1)) == "b.0.attn.out, parallel, second stream"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_long_module_path_is_never_cut(width: int) -> None:
    name = "model.decoder.transformer_blocks.17.self_attention_sublayer.output_projection"
    text = render(Report((attended([(name, 17, "attention")], [(name, 17)]),)), "table", Style(width=width))
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "model." in line)
    rows = lines[start : lines.index("", start)]
    column = rows[0].index("model.")
    pieces = [row[column:].split()[0] for row in rows]
    assert "".join(pieces) == name and "1.000" in rows[0] and "2.000" in rows[0]
    assert max(map(len, text.splitlines())) <= width


def test_the_wiring_in_a_line() -> None:
    whole = module_run()
    assert wiring(whole) == "wiring: pre-norm, 1 layer, 2 branches; head token_embedding.weight, tied"
    untied = replace(whole.measured.wiring, tied=False, placement="post", broken="the head reads something else")
    assert wiring(replace(whole, measured=replace(whole.measured, wiring=untied))) == (
        "wiring: post-norm, 1 layer, 2 branches; head token_embedding.weight, not tied; the head reads something else"
    )


@pytest.mark.parametrize("format_", ["table", "markdown"])
def test_no_stream_is_said_with_what_was_tried(format_: str) -> None:
    whole = module_run()
    residual = replace(whole.measured.residual, branches=(), embedding_variance=math.nan, scaling_ratio=math.nan)
    measured = replace(whole.measured, residual=residual, wiring=Wiring(tried="the stream was followed from wte"))
    text = render(Report((replace(whole, measured=measured),)), format_)
    assert "iring: no residual stream was found: the stream was followed from wte" in text
    assert "Σ branch variance" not in text and "d_model" not in text.replace("\\", "") and "own loss" in text


def test_what_the_init_code_was_seen_to_do() -> None:
    whole = module_run()
    assert init_code_seen(whole) == (
        "init code: seen to fill 20 of 20 parameters, 1 left to PyTorch's defaults, 1 changed again by a second call"
    )
    assert init_code_seen(run()) == ""  # nobody watched
    drawn_anew = replace(whole, subject=run().subject)
    assert init_code_seen(drawn_anew) == ""  # a scheme of ours drew it
    assert header_lines(whole)[0] == "model.py:GPT: as built, seed 0"
    assert header_lines(run())[0].startswith("tiny: scheme scaled (std 0.02, residual_std ")


def weighed(tensors: list[tuple[str, Role, Distribution, float]]) -> Run:
    """Parameters (name, role, distribution, std) of a module."""
    whole = module_run()
    entries = tuple(PlannedParameter(Parameter(name, (8, 8), role, 8), of, of.std) for name, role, of, _ in tensors)
    measured = tuple(
        ParameterMeasure(name, 0.0, std, 0, kurtosis=3.0, max_abs=4 * std, stable_rank=0.25)
        for name, _, _, std in tensors
    )
    subject = replace(whole.subject, plan=replace(whole.subject.plan, entries=entries))
    return replace(whole, subject=subject, measured=replace(whole.measured, parameters=measured, buffers=()))


def test_one_row_for_a_role() -> None:
    rows = weight_rows(
        weighed(
            [
                ("b.0.q", Role.ATTENTION_QUERY, Normal(0.02), 0.021),
                ("b.1.q", Role.ATTENTION_QUERY, Normal(0.02), 0.019),
                ("b.2.q", Role.ATTENTION_QUERY, Normal(0.02), 0.0205),
            ]
        )
    )
    assert rows == [("attention_query", "3", "N(0.02)", "0.02050", "3.00", "4.00", "0.25")]


def test_a_row_for_each_pattern_where_a_role_is_drawn_in_several_ways() -> None:
    whole = weighed(
        [
            ("b.0.down", Role.MLP_OUT, Normal(0.02), 0.02),
            ("b.0.shared.down", Role.MLP_OUT, Normal(0.5), 0.5),
            ("b.1.down", Role.MLP_OUT, Normal(0.01), 0.01),
            ("b.1.shared.down", Role.MLP_OUT, Normal(0.5), 0.5),
        ]
    )
    assert [row[:4] for row in weight_rows(whole)] == [
        ("mlp_out: b.*.down", "2", "N(0.02) to N(0.01)", "0.01500"),
        ("mlp_out: b.*.shared.down", "2", "N(0.5)", "0.5000"),
    ]


def test_weights_that_nobody_declared() -> None:
    """Alike within a tenth is one row; what differs is two, and nothing is compared with a plan."""
    found = AsFound(0.02)
    whole = weighed(
        [
            ("b.0.x", Role.OTHER, found, 0.02),
            ("b.0.y", Role.OTHER, found, 0.0215),
            ("b.0.z", Role.OTHER, found, 0.03),
        ]
    )
    assert [row[:4] for row in weight_rows(whole)] == [
        ("other: b.*.x, b.*.y", "2", "–", "0.02075"),
        ("other: b.*.z", "1", "–", "0.03000"),
    ]
    assert weight_notes(whole) == []


def test_what_is_constant_is_said_in_words() -> None:
    whole = weighed([(f"b.{i}.bias", Role.BIAS, Constant(0.0), 0.0) for i in range(3)])
    assert weight_rows(whole) == [] and weight_notes(whole) == ["constant: bias 0 (3 tensors)"]
    text = render(Report((whole,)), "table")
    assert "constant: bias 0 (3 tensors)" in text and "kurtosis" not in text


def test_the_std_that_is_furthest_from_its_plan() -> None:
    whole = weighed([("a", Role.MLP_IN, Normal(0.02), 0.021), ("b", Role.MLP_OUT, Normal(0.02), 0.0182)])
    (note,) = weight_notes(whole)
    assert note == "the std furthest from its plan (9 % off) is that of b: 0.01820 for 0.02000"


def test_frozen_weights_and_broken_buffers_are_told() -> None:
    whole = module_run()
    frozen = tuple(replace(one, trainable=i > 1) for i, one in enumerate(whole.measured.parameters))
    bad = replace(whole.measured.parameters[0], name="rope.inv_freq", not_finite=3)
    good = replace(bad, name="mask", not_finite=0)
    notes = weight_notes(replace(whole, measured=replace(whole.measured, parameters=frozen, buffers=(bad, good))))
    assert "frozen: 2 parameters of 20" in notes and "buffers that hold inf or nan: rope.inv_freq" in notes


def test_roles_of_packed_matrices() -> None:
    def packed(*parts: tuple[Role, tuple[tuple[int, int], ...]]) -> Parameter:
        return Parameter("w", (96, 32), parts[0][0], 32, parts=tuple(Part(*part) for part in parts))

    qkv = packed(
        (Role.ATTENTION_QUERY, ((0, 32),)), (Role.ATTENTION_KEY, ((32, 64),)), (Role.ATTENTION_VALUE, ((64, 96),))
    )
    assert role_of(qkv) == "attention_query/key/value"
    assert parts_in_words(qkv.parts) == (
        "rows 0–31 attention_query, rows 32–63 attention_key, rows 64–95 attention_value"
    )
    heads = packed(
        (Role.ATTENTION_QUERY, ((0, 8), (16, 24), (32, 40))), (Role.ATTENTION_KEY, ((8, 16), (24, 32), (40, 41)))
    )
    assert parts_in_words(heads.parts) == (
        "3 blocks of 8 rows (from row 0) attention_query, 3 blocks, 17 rows (from row 8) attention_key"
    )
    assert role_of(packed((Role.MLP_GATE, ((0, 8),)), (Role.MLP_IN, ((8, 16),)))) == "mlp_gate/in"
    assert role_of(Parameter("w", (8, 8), Role.LM_HEAD, 8)) == "lm_head"


def test_numbers_in_names_become_stars() -> None:
    assert pattern("h.0.experts.11.w1.weight") == "h.*.experts.*.w1.weight"
    assert starred("added to the outputs of h.0.fc.weight") == "added to the outputs of h.*.fc.weight"
    assert starred("named like net.0.12.w, of std 0.5") == "named like net.*.*.w, of std 0.5"
    assert starred("std 0.02 in rows 0–63") == "std 0.02 in rows 0–63"
