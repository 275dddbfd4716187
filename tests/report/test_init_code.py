"""The code that `initdiag scheme NAME --for TARGET` prints: it is executed, and what it drew is looked at."""

from __future__ import annotations

import ast
import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from initdiag import config, subjects
from initdiag.config import with_init
from initdiag.errors import PlanError
from initdiag.report.init_code import WIDTH, init_code
from initdiag.schemes import (
    SCHEMES,
    AsFound,
    Constant,
    Distribution,
    Draw,
    InitPlan,
    Normal,
    Orthogonal,
    Parameter,
    Part,
    PlannedParameter,
    Role,
    Scheme,
    Truncated,
    Uniform,
    make_plan,
)
from initdiag.subjects import Subject
from tests.sampling import assert_mean, assert_std
from tests.small_models import WIRINGS
from tests.small_models import subject as small

SMALL_GPT2 = ["model.n_layers=3", "model.d_model=96", "model.vocab_size=1000", "model.context=64"]
TARGETS: dict[str, list[str]] = {
    "gpt2": SMALL_GPT2,
    "tiny": [],
    "tiny-untied": [],
    "llama-like": ["model.n_layers=2", "model.d_model=64", "model.vocab_size=500", "model.n_heads=4", "model.d_ff=80"],
    "transformer-original": ["model.n_layers=2", "model.d_model=64", "model.vocab_size=500", "model.d_ff=128"],
}

FEW = ("default", "gpt2", "scaled")


def loaded(target: str, scheme: str, overrides: Iterable[str] = ()) -> Subject:
    return subjects.load(with_init(config.load(target, list(overrides)), scheme=scheme))


def function(code: str) -> Callable[[nn.Module], None]:
    names: dict[str, Any] = {}
    exec(compile(code, "init.py", "exec"), names)
    found: Callable[[nn.Module], None] = names["init_weights"]
    return found


def marked(module: nn.Module) -> nn.Module:
    """Fill all parameters with NaN, so that what nobody draws is seen."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(math.nan)
    return module


def execute(code: str, module: nn.Module, seed: int = 0) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        function(code)(module)


def assert_drawn(tensor: Tensor, distribution: Distribution, what: str) -> None:
    """Assert that a tensor, NaN before, holds what it should: within five standard errors, constants exactly."""
    tensor = tensor.detach()
    match distribution:
        case AsFound():
            assert tensor.isnan().all(), f"{what} was to be left as it is"
        case Constant(value=value):
            assert torch.equal(tensor, torch.full_like(tensor, value)), what
        case Orthogonal(gain=gain, longer=longer):
            for matrix in tensor.double().reshape(-1, *tensor.shape[-2:]):
                flat = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
                assert flat.shape[1] == longer, what
                # float32's QR leaves an error of about √rows·6e-8 in products of unit vectors
                off = flat @ flat.T / gain**2 - torch.eye(len(flat), dtype=torch.float64)
                assert off.abs().max() < 1e-5, what
        case Normal(std=std) | Uniform(std=std) | Truncated(std=std):
            assert_std(tensor, std, distribution.kurtosis, what)
            assert_mean(tensor, 0.0, std, what)
            if isinstance(distribution, Uniform):
                assert tensor.abs().max() <= distribution.bound, what
            elif isinstance(distribution, Truncated):
                assert tensor.abs().max() <= distribution.cut * distribution.sigma, what
            elif tensor.numel() > 1000:  # a normal has 8.3 % beyond √3 std, a uniform of the same std has none
                assert tensor.abs().max() > math.sqrt(3) * std, what


def assert_follows(module: nn.Module, plan: InitPlan) -> None:
    parameters = dict(module.named_parameters())
    assert parameters.keys() == plan.by_name.keys()
    for name, parameter in parameters.items():
        assert_drawn(parameter, plan[name].distribution, name)


def entry(name: str, distribution: Distribution, role: Role = Role.OTHER, layer: int | None = None) -> PlannedParameter:
    return PlannedParameter(Parameter(name, (40, 40), role, 40, layer), distribution, 1.0)


def by_hand(*entries: PlannedParameter) -> InitPlan:
    return InitPlan("by hand", {}, entries)


def module_of(plan: InitPlan, rename: Callable[[str], str] = lambda name: name) -> nn.Module:
    """Make a module with the parameters of a plan."""
    root = nn.Module()
    for planned in plan.entries:
        *path, last = rename(planned.parameter.name).split(".")
        at = root
        for word in path:
            if not hasattr(at, word):
                at.add_module(word, nn.Module())
            at = getattr(at, word)
        at.register_parameter(last, nn.Parameter(torch.empty(planned.parameter.shape)))
    return marked(root)


# The reference Transformer


@pytest.mark.parametrize(
    ("target", "scheme"),
    [
        *(("llama-like", scheme) for scheme in SCHEMES),
        *((target, scheme) for target in TARGETS if target != "llama-like" for scheme in FEW),
    ],
)
def test_it_draws_the_plan(target: str, scheme: str) -> None:
    subject = loaded(target, scheme, TARGETS[target])
    module = marked(subject.build())
    execute(init_code(subject.plan, target), module)
    assert_follows(module, subject.plan)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shape=st.sampled_from(sorted(WIRINGS)),
    scheme=st.sampled_from(sorted(SCHEMES)),
    n_layers=st.integers(1, 11),
    std=st.floats(1e-4, 2.0),
    residual_std=st.none() | st.floats(1e-4, 2.0),
)
def test_any_architecture(shape: str, scheme: str, n_layers: int, std: float, residual_std: float | None) -> None:
    fields = {**WIRINGS[shape], "n_layers": n_layers}
    given = {"std": std, "residual_std": residual_std}
    init: dict[str, Any] = {name: value for name, value in given.items() if name in SCHEMES[scheme].parameters}
    subject = small(scheme, **init, **fields)
    module = marked(subject.build())
    execute(init_code(subject.plan, shape), module)
    assert_follows(module, subject.plan)


def test_it_is_drawn_in_the_order_of_the_model() -> None:
    """As the loop that people write: one normal_ after the other from the global generator."""
    subject = loaded("tiny", "gpt2")
    module, expected = subject.build(), subject.build()
    execute(init_code(subject.plan, "tiny"), module, seed=3)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            if "norm" not in name and "bias" not in name:
                parameter.normal_(0, 0.02, generator=generator)
                assert torch.equal(parameter, module.get_parameter(name)), name


def test_for_gpt2_it_is_what_a_person_would_write() -> None:
    code = init_code(loaded("gpt2", "scaled").plan, "gpt2")
    assert 20 <= code.count("\n") <= 60
    assert max(map(len, code.splitlines())) <= WIDTH
    assert "    residual_std = std / math.sqrt(2 * n_layers)  # 0.004082\n" in code
    assert '        "blocks.*.attention.out.weight": normal(residual_std),  # attention_out\n' in code
    assert "gpt2 by the scheme scaled: std=0.02, residual_std=0.004082" in (ast.get_docstring(ast.parse(code).body[-1]))


def test_what_the_user_set_is_written_as_set() -> None:
    plan = small("scaled", std=0.03, residual_std=0.01).plan
    assert "    std = 0.03\n    residual_std = 0.01\n" in init_code(plan, "mine")


def test_formulas_of_fan_in_are_written_with_their_value() -> None:
    code = init_code(loaded("tiny", "default").plan, "tiny")
    assert "uniform(1 / math.sqrt(64)),  # mlp_in, 0.125\n" in code


# Never in silence


def drawn_by(subject: Subject) -> Callable[[nn.Module], None]:
    return function(init_code(subject.plan, "small"))


def assert_refused(init_weights: Callable[[nn.Module], None], module: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init_weights(marked(module))
    assert all(parameter.isnan().all() for parameter in module.parameters()), "it changed a module that it refused"


def test_a_name_that_changed_is_refused() -> None:
    subject = small("scaled")
    module = subject.build()
    module.blocks[1].mlp.output = module.blocks[1].mlp.out
    del module.blocks[1].mlp.out
    assert_refused(drawn_by(subject), module, r"parameter blocks\.1\.mlp\.output\.weight has 0 rules, expected one")


def test_a_wrapped_module_is_refused() -> None:
    subject = small("scaled")
    assert_refused(drawn_by(subject), nn.Sequential(subject.build()), "parameter 0.token_embedding.weight has 0 rules")


def test_a_parameter_that_is_new_is_refused() -> None:
    subject = small("gpt2")
    module = subject.build()
    module.blocks[0].gain = nn.Parameter(torch.ones(3))
    assert_refused(drawn_by(subject), module, r"blocks\.0\.gain has 0 rules")


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    subject = small("gpt2")
    module = small("gpt2", biases=False).build()
    assert_refused(drawn_by(subject), module, r"no parameter is named blocks\.\*\.attention\.key\.bias, .*final_norm")


def test_another_depth_is_refused_where_a_std_depends_on_it() -> None:
    deeper = small("scaled", n_layers=5).build()
    assert_refused(drawn_by(small("scaled", n_layers=3)), deeper, "found 5 layers, expected n_layers = 3")
    execute(init_code(small("gpt2", n_layers=3).plan, "small"), marked(deeper))
    assert_follows(deeper, small("gpt2", n_layers=5).plan)


def test_another_depth_is_refused_where_the_formula_can_not_be_written() -> None:
    """Of an encoder-decoder, N is half the number of branches, which no count of layers gives."""
    parameters = [
        Parameter(f"{side}.{layer}.{name}", (40, 40), role, 40, layer)
        for side in ("encoder", "decoder")
        for layer in range(3)
        for name, role in (("q", Role.ATTENTION_QUERY), ("o", Role.ATTENTION_OUT))
    ]
    plan = make_plan(SCHEMES["scaled"], parameters, {"n_layers": 7.5})
    code = init_code(plan, "mine")
    execute(code, module := module_of(plan))
    assert_follows(module, plan)
    deeper = module_of(by_hand(*plan.entries, *(entry(f"decoder.3.{name}", Normal(1)) for name in "qo")))
    assert_refused(function(code), deeper, "found 14 parameters, expected 12: same depth?")


def test_what_nobody_declared_is_listed_and_left() -> None:
    plan = by_hand(
        *(entry(f"h.{layer}.gain", AsFound(0.1 * layer), Role.MULTIPLIER, layer) for layer in range(3)),
        entry("head", Normal(0.5)),
    )
    code = init_code(plan, "mine")
    assert '"h.*.gain": None,  # multiplier: left as it is\n' in code
    module = module_of(plan)
    execute(code, module)
    assert_follows(module, plan)


# Names and numbers


def test_numbers_that_tell_roles_apart_stay_in_the_names() -> None:
    plan = by_hand(
        *(
            entry(f"h.{layer}.{name}", distribution, role, layer)
            for layer in range(12)
            for name, distribution, role in (
                ("mlp.0.weight", Normal(0.5), Role.MLP_IN),
                ("mlp.2.weight", Normal(0.1), Role.MLP_OUT),
                ("ln_1", Constant(1), Role.NORM_SCALE),
                ("ln_2", Constant(1), Role.NORM_SCALE),
                ("experts.0.w", Normal(0.3), Role.MLP_IN),
                ("experts.1.w", Normal(0.3), Role.MLP_IN),
            )
        )
    )
    code = init_code(plan, "mine")
    for pattern in ("h.*.mlp.0.weight", "h.*.mlp.2.weight", "h.*.ln_1", "h.*.ln_2", "h.*.experts.*.w"):
        assert f'        "{pattern}": ' in code
    module = module_of(plan)
    execute(code, module)
    assert_follows(module, plan)


def test_layer_numbers_inside_words() -> None:
    plan = by_hand(*(entry(f"layer_{layer}.w1", Normal(0.5), Role.MLP_IN, layer) for layer in range(3)))
    code = init_code(plan, "mine")
    assert '"layer_*.w1": normal(0.5),  # mlp_in\n' in code
    execute(code, module := module_of(plan))
    assert_follows(module, plan)


@pytest.mark.parametrize("layers", [range(4), range(2, 6), (0, 3, 4)])
def test_stds_that_differ_by_layer_are_a_table(layers: Iterable[int]) -> None:
    plan = by_hand(
        *(
            entry(f"h.{layer}.e.{expert}.w", Normal(0.1 * (layer + 1)), Role.MLP_OUT, layer)
            for layer in layers
            for expert in range(2)
        )
    )
    code = init_code(plan, "mine")
    assert 'rules[f"h.{layer}.e.*.w"] = normal(value)\n' in code
    execute(code, module := module_of(plan))
    assert_follows(module, plan)


def test_stds_that_are_a_formula_of_the_layer_are_a_loop() -> None:
    scheme = Scheme(
        *("deep", "", ""), {Role.MLP_OUT: Draw("uniform", "std * (layer + 1) ** -0.5 / log(n_layers)")}, {"std": "0.5"}
    )
    parameters = [Parameter(f"h.{layer}.w", (40, 40), Role.MLP_OUT, 40, layer) for layer in range(3)]
    plan = make_plan(scheme, parameters, {"n_layers": 3})
    code = init_code(plan, "mine", scheme)
    assert "    for layer in range(3):\n" in code
    assert "0.28" not in code, "a number where the formula is known"
    execute(code, module := module_of(plan))
    assert_follows(module, plan)


def test_numbers_in_names_that_are_not_the_layer_are_not_taken_for_it() -> None:
    scheme = Scheme("deep", "", "", {Role.MLP_OUT: Draw("normal", "std / (layer + 1)")}, {"std": "0.5"})
    parameters = [Parameter(f"h.{2 - layer}.w", (40, 40), Role.MLP_OUT, 40, layer) for layer in range(3)]
    plan = make_plan(scheme, parameters, {})
    execute(init_code(plan, "mine", scheme), module := module_of(plan))
    assert_follows(module, plan)


def test_distributions_that_differ_without_a_pattern_are_written_name_by_name() -> None:
    stds = {(0, 0): 0.1, (0, 1): 0.2, (1, 0): 0.3, (1, 1): 0.1}
    plan = by_hand(*(entry(f"h.{i}.e.{j}.w", Normal(std), Role.MLP_OUT, i) for (i, j), std in stds.items()))
    execute(init_code(plan, "mine"), module := module_of(plan))
    assert_follows(module, plan)


def test_kinds_of_distributions_that_differ_by_layer() -> None:
    kinds = (Constant(0), Normal(0.1), Normal(0.2), Uniform(0.3))
    plan = by_hand(*(entry(f"h.{layer}.w", kind, Role.MLP_OUT, layer) for layer, kind in enumerate(kinds)))
    execute(init_code(plan, "mine"), module := module_of(plan))
    assert_follows(module, plan)


def test_names_that_are_not_identifiers() -> None:
    names = ["a.b-c", "x{layer}y.0.w", "x{layer}y.1.w", "(q).w", "it's", 'the "q"', "a\\b", "новый.вес", "q?.[0]+"]
    plan = by_hand(*(entry(name, Normal(0.1 + i)) for i, name in enumerate(names)))
    execute(init_code(plan, "mine"), module := module_of(plan))
    assert_follows(module, plan)
    with pytest.raises(PlanError, match=r"can't write code for the parameter 'a\.\*'; expected a name without '\*'"):
        init_code(by_hand(entry("a.*", Normal(1))), "mine")


@pytest.mark.parametrize("name", ['"""\nraise SystemExit\n"""', "C:\\new\\users", "a\nb", "x" * 200, 'ends with "'])
def test_any_name_of_a_model_can_stand_in_the_docstring(name: str) -> None:
    plan = small("gpt2").plan
    code = init_code(plan, name)
    assert [type(node) for node in ast.parse(code).body].count(ast.FunctionDef) == 1
    assert len(ast.parse(code).body) == len(ast.parse(init_code(plan, "mine")).body)
    function(code)


def test_truncated_normals_by_layer_and_by_part() -> None:
    plan = by_hand(
        *(entry(f"h.{layer}.w", Truncated(0.1 + layer, 2.0), Role.MLP_OUT, layer) for layer in range(3)),
        *(entry(f"h.{layer}.v", Truncated(0.3, 1.0 + layer), Role.MLP_OUT, layer) for layer in range(3)),
        *(entry(f"h.{layer}.u", Truncated(0.3, 1.5), Role.MLP_OUT, layer) for layer in range(3)),
    )
    code = init_code(plan, "mine")
    assert '        "h.*.u": truncated(0.3, 1.5),  # mlp_out\n' in code
    execute(code, module := module_of(plan))
    assert_follows(module, plan)


# Packed matrices


PACKED = Scheme(
    name="packed",
    summary="",
    source="",
    roles={
        Role.ATTENTION_QUERY: Draw("constant", "0"),
        Role.ATTENTION_KEY: Draw("normal", "1 / sqrt(fan_in)"),
        Role.ATTENTION_VALUE: Draw("uniform", "std"),
        Role.ATTENTION_OUT: Draw("normal", "std / sqrt(2 * n_layers)"),
        Role.BIAS: Draw("constant", "0.25"),
    },
    parameters={"std": "0.02"},
)
THIRDS = (
    Part(Role.ATTENTION_QUERY, ((0, 64),)),
    Part(Role.ATTENTION_KEY, ((64, 128),)),
    Part(Role.ATTENTION_VALUE, ((128, 192),)),
)
HEADS = tuple(  # q, k and v of one head after the other, as in GPT-NeoX
    Part(role, tuple((start, start + 16) for start in range(at, 192, 48)))
    for at, role in enumerate((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE))
    for at in (16 * at,)
)
UNEVEN = (Part(Role.ATTENTION_KEY, ((0, 10), (50, 70))), Part(Role.ROUTER, ((80, 90),)))  # the rest: the own role


class Conv1D(nn.Module):
    """y = x W + b with W of shape (inputs, outputs), as in GPT-2."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Experts(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(3, outputs))


@pytest.mark.parametrize("parts", [THIRDS, HEADS, UNEVEN], ids=["thirds", "heads", "uneven"])
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D, Experts])
def test_packed_matrices_are_drawn_by_their_parts(kind: type[nn.Module], parts: tuple[Part, ...]) -> None:
    model = nn.Sequential(*(nn.ModuleDict({"qkv": kind(64, 192), "out": nn.Linear(64, 64)}) for _ in range(3)))
    parameters = [
        Parameter(
            name,
            tuple(parameter.shape),
            Role.BIAS if "bias" in name else Role.ATTENTION_OUT if "out" in name else Role.ATTENTION_VALUE,
            fan_in=64,
            layer=int(name[0]),
            transposed=kind is Conv1D and "qkv" in name,
            parts=parts if name.endswith("qkv.weight") else (),
        )
        for name, parameter in model.named_parameters()
    ]
    plan = make_plan(PACKED, parameters, {"n_layers": 3})
    execute(init_code(plan, "packed", PACKED), marked(model))
    shares = {
        Role.ATTENTION_QUERY: Constant(0),
        Role.ATTENTION_KEY: Normal(1 / 8),
        Role.ATTENTION_VALUE: Uniform(0.02),
        Role.ROUTER: AsFound(0),  # the scheme doesn't say
    }
    for name, parameter in model.named_parameters():
        if not name.endswith("qkv.weight"):
            assert_drawn(parameter, plan[name].distribution, name)
            continue
        outputs_first = parameter.detach() if kind is nn.Linear else parameter.detach().transpose(-1, -2)
        outputs_first = parameter.detach().transpose(0, 1) if kind is Experts else outputs_first
        roles = [Role.ATTENTION_VALUE] * 192
        for part in parts:
            for start, stop in part.rows:
                roles[start:stop] = [part.role] * (stop - start)
        for role in set(roles):
            rows = [row for row, its in enumerate(roles) if its == role]
            assert_drawn(outputs_first[rows], shares[role], f"{name}, {role}")


def test_parts_that_are_drawn_alike_are_one_row() -> None:
    parameters = [
        Parameter(f"h.{layer}.c_attn.weight", (64, 192), Role.ATTENTION_QUERY, 64, layer, True, THIRDS)
        for layer in range(12)
    ]
    plan = make_plan(SCHEMES["gpt2"], parameters, {"n_layers": 12})
    assert '"h.*.c_attn.weight": normal(std),  # attention_query/key/value\n' in init_code(plan, "mine")


# What schemes are made of


def by_scheme(scheme: Scheme, parameters: Iterable[Parameter], **settings: float | str) -> tuple[str, InitPlan]:
    """Write the code for parameters of a model of three layers, d_model 48; run it, and look at what it drew."""
    sizes = {"d_model": 48.0, "n_layers": 3.0}
    plan = make_plan(scheme, parameters, sizes, settings)
    code = init_code(plan, "mine", scheme, sizes)
    execute(code, module := module_of(plan))
    assert_follows(module, plan)
    return code, plan


def layered(role: Role, *shape: int, transposed: bool = False) -> list[Parameter]:
    fan_in = shape[-2] if transposed else shape[-1]
    return [Parameter(f"h.{layer}.w", shape, role, fan_in, layer, transposed) for layer in range(3)]


def a_scheme(draw: Draw, parameters: dict[str, str] | None = None, **more: Any) -> Scheme:
    return Scheme("mine", "", "", {Role.MLP_OUT: draw}, parameters or {}, **more)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (3, 40, 60), (3, 60, 40)])
def test_orthogonal_matrices(shape: tuple[int, ...]) -> None:
    """Each expert's by itself: orthogonal_ would flatten (3, 40, 60) to 3 rows."""
    code, plan = by_scheme(a_scheme(Draw("orthogonal", "gain"), {"gain": "sqrt(2)"}), layered(Role.MLP_OUT, *shape))
    assert plan["h.0.w"].distribution == Orthogonal(math.sqrt(2), 60)
    assert '"h.*.w": orthogonal(gain),  # mlp_out\n' in code


ORTHOGONAL = Scheme(
    *("mine", "", ""),
    {
        Role.ATTENTION_QUERY: Draw("constant", "0.5"),
        Role.ATTENTION_KEY: Draw("orthogonal", "2 / sqrt(fan_out)"),
        Role.ATTENTION_VALUE: Draw("normal", "0.1"),
        Role.ATTENTION_OUT: Draw("normal", "0.1"),
        Role.ROUTER: Draw("orthogonal", "3"),
    },
)


@pytest.mark.parametrize("parts", [THIRDS, HEADS, UNEVEN], ids=["thirds", "heads", "uneven"])
@pytest.mark.parametrize("shape", [(192, 64), (64, 192), (2, 192, 64)], ids=str)
def test_orthogonal_parts_of_packed_matrices(shape: tuple[int, ...], parts: tuple[Part, ...]) -> None:
    """The rows of one role are orthogonal together, wherever they lie."""
    transposed = shape[-1] == 192
    parameter = Parameter("qkv", shape, Role.ATTENTION_VALUE, 64, 0, transposed, parts)
    plan = make_plan(ORTHOGONAL, [parameter], {})
    execute(init_code(plan, "mine", ORTHOGONAL), module := module_of(plan))
    drawn = module.get_parameter("qkv").detach()
    drawn = drawn.T if transposed else drawn
    for part in parts:
        rows = [row for start, stop in part.rows for row in range(start, stop)]
        gain = {Role.ATTENTION_KEY: 2 / math.sqrt(len(rows)), Role.ROUTER: 3.0}.get(part.role)
        expected = {Role.ATTENTION_QUERY: Constant(0.5), Role.ATTENTION_VALUE: Normal(0.1)}.get(part.role)
        assert_drawn(drawn[..., rows, :], expected or Orthogonal(gain or 0, 64), str(part.role))


def test_formulas_of_fan_out_are_written_with_its_value() -> None:
    scheme = a_scheme(Draw("uniform", "sqrt(6 / (fan_in + fan_out))"))
    code, _ = by_scheme(scheme, layered(Role.MLP_OUT, 40, 60))
    assert '"h.*.w": uniform(math.sqrt(6 / (60 + 40))),  # mlp_out, 0.2449\n' in code
    assert "(60 + 40)" in by_scheme(scheme, layered(Role.MLP_OUT, 60, 40, transposed=True))[0]


def test_parameters_that_no_number_needs_are_not_written() -> None:
    """The std of normal_(…, std=0.1) is not the scheme's."""
    scheme = replace(ORTHOGONAL, parameters={"std": "0.02"})
    parameter = Parameter("qkv", (192, 64), Role.ATTENTION_VALUE, 64, 0, False, THIRDS)
    code = init_code(make_plan(scheme, [parameter], {}), "mine", scheme)
    assert "std=0.1" in code and "    std = " not in code


def test_a_corrected_cut() -> None:
    """What is left is the formula's std, 1/√48; a sigma of that std would leave 0.8796 of it."""
    scheme = a_scheme(Draw("truncated", "1 / sqrt(d_model)", cut="2", corrected=True))
    code, plan = by_scheme(scheme, layered(Role.MLP_OUT, 200, 200))
    assert plan["h.0.w"].distribution.std == pytest.approx(48**-0.5)
    assert "truncated(1 / math.sqrt(d_model) / 0.87962566" in code and ", 2)," in code
    assert "cut to std 0.1443" in code


def test_a_cut_that_is_a_formula() -> None:
    scheme = a_scheme(Draw("truncated", "std", cut="bound / std"), {"std": "0.02", "bound": "0.05"})
    code, _ = by_scheme(scheme, layered(Role.MLP_OUT, 100, 100))
    assert '"h.*.w": truncated(std, bound / std),  # mlp_out\n' in code
    code, plan = by_scheme(scheme, layered(Role.MLP_OUT, 100, 100), std=0.1)
    assert plan["h.1.w"].distribution == Truncated(0.1, 0.5)
    assert "    std = 0.1\n    bound = 0.05\n" in code


def test_a_cut_that_depends_on_the_layer() -> None:
    scheme = a_scheme(Draw("truncated", "0.1 / (layer + 1)", cut="0.5 * (layer + 1)"))
    code, plan = by_scheme(scheme, layered(Role.MLP_OUT, 60, 60))
    assert 'rules[f"h.{layer}.w"] = truncated(0.1 / (layer + 1), 0.5 * (layer + 1))\n' in code
    execute(init_code(plan, "mine"), module := module_of(plan))  # the formulas are not known: a table
    assert_follows(module, plan)


DEPTHS = {"layer": "layer + 1", "total": "n_layers", "none": "1"}


@pytest.mark.parametrize(
    ("word", "written", "stds"),
    [
        ("layer", 'rules[f"h.{layer}.w"] = normal(std / math.sqrt(2 * (layer + 1)))\n', (2, 4, 6)),
        ("total", '"h.*.w": normal(std / math.sqrt(2 * n_layers)),  # mlp_out, 0.2041\n', (6, 6, 6)),
        ("none", '"h.*.w": normal(std / math.sqrt(2)),  # mlp_out, 0.3536\n', (2, 2, 2)),
    ],
)
def test_a_choice_is_written_as_its_formula(word: str, written: str, stds: tuple[int, ...]) -> None:
    scheme = a_scheme(Draw("normal", "std / sqrt(2 * depth)"), {"std": "0.5"}, choices={"depth": DEPTHS})
    code, plan = by_scheme(scheme, layered(Role.MLP_OUT, 40, 40), depth=word)
    assert [planned.distribution.std for planned in plan.entries] == [pytest.approx(0.5 / n**0.5) for n in stds]
    assert written in code
    assert f"by the scheme mine: depth={word}, std=0.5." in code


def test_a_setting_that_follows_from_a_choice() -> None:
    scheme = a_scheme(
        Draw("normal", "residual_std"), {"residual_std": "0.5 / sqrt(depth)"}, choices={"depth": {"total": "n_layers"}}
    )
    code, plan = by_scheme(scheme, layered(Role.MLP_OUT, 40, 40))
    assert "    residual_std = 0.5 / math.sqrt(n_layers)  # 0.2887\n" in code
    deeper = module_of(by_hand(*plan.entries, entry("h.3.w", Normal(1))))
    assert_refused(function(code), deeper, "found 4 layers, expected n_layers = 3")


def test_constants_by_layer_that_begin_with_one() -> None:
    """The first is 1, for which there is ones_; the others are not."""
    scheme = a_scheme(Draw("constant", "1 - layer / 4"))
    by_scheme(scheme, layered(Role.MLP_OUT, 7))
    plan = make_plan(scheme, layered(Role.MLP_OUT, 7), {})
    execute(init_code(plan, "mine"), module := module_of(plan))
    assert_follows(module, plan)


def test_another_depth_is_refused_for_any_formula_with_the_depth_in_it() -> None:
    """Of an encoder-decoder, N is none that a count of layers gives, and the formula is no parameter's."""
    scheme = a_scheme(Draw("normal", "0.5 / depth"), choices={"depth": {"total": "n_layers"}})
    plan = make_plan(scheme, layered(Role.MLP_OUT, 40, 40), {"n_layers": 4.5})
    deeper = module_of(by_hand(*plan.entries, entry("h.3.w", Normal(1))))
    code = init_code(plan, "mine", scheme)
    assert_refused(function(code), deeper, "found 4 parameters, expected 3: same depth")
    free = make_plan(a_scheme(Draw("normal", "0.5")), layered(Role.MLP_OUT, 40, 40), {"n_layers": 4.5})
    execute(init_code(free, "mine", a_scheme(Draw("normal", "0.5"))), deeper)


def test_what_the_forward_pass_has_to_do_stands_in_the_docstring() -> None:
    scheme = a_scheme(
        Draw("normal", "std"),
        {"std": "0.5", "base_width": "12"},
        forward={
            "embedding_multiplier": "sqrt(d_model)",
            "residual_multiplier": "1 / sqrt(layer + 1)",
            "attention_scale": "1 / head_dim",
            "logit_multiplier": "base_width / d_model",
            "placement": "post",
            "something_new": "8",
        },
        calibration="lsuv",
    )
    code, _ = by_scheme(scheme, layered(Role.MLP_OUT, 40, 40))
    said = " ".join((ast.get_docstring(ast.parse(code).body[-1]) or "").split())
    for line in (
        "- token embeddings times sqrt(d_model) = 6.9282 (embedding_multiplier)",
        "times 1 / sqrt(layer + 1) (residual_multiplier)",
        "query * key times 1 / head_dim (attention_scale)",
        "- logits times base_width / d_model = 0.25 (logit_multiplier)",
        "norm(x + f(x)) (placement: post)",
        "- something_new: 8",
        "Not done here: after the draw each matrix is divided, in the order of the forward pass",
    ):
        assert line in said
    assert "forward pass" not in init_code(small("gpt2").plan, "small")
    assert max(map(len, code.splitlines())) <= WIDTH


def test_sizes_are_read_off_the_shapes() -> None:
    """Where nobody told them; a formula that they don't make true is written as its number."""
    scheme = Scheme(
        *("mine", "", ""),
        {Role.TOKEN_EMBEDDING: Draw("normal", "1 / sqrt(d_model)"), Role.MLP_OUT: Draw("normal", "1 / sqrt(head_dim)")},
    )
    parameters = [Parameter("wte", (300, 48), Role.TOKEN_EMBEDDING, 48), *layered(Role.MLP_OUT, 48, 96)]
    code = init_code(make_plan(scheme, parameters, {"d_model": 48, "head_dim": 16}), "mine", scheme)
    assert "    d_model = 48\n" in code and '"wte": normal(1 / math.sqrt(d_model)),' in code
    assert '"h.*.w": normal(0.25),' in code
    by_head = replace(scheme, roles={**scheme.roles, Role.MLP_OUT: Draw("normal", "2 / (1 + tied)")})
    code = init_code(make_plan(by_head, parameters, {"d_model": 48, "tied": 1}), "mine", by_head)
    assert "    tied = 1\n" in code and "normal(2 / (1 + tied))" in code
    code = init_code(make_plan(scheme, parameters, {"d_model": 64, "head_dim": 16}), "mine", scheme)
    assert '"wte": normal(0.125),' in code and "d_model" not in code


# Hugging Face

GPT2_ROLES = {
    "wte.weight": Role.TOKEN_EMBEDDING,
    "wpe.weight": Role.POSITION_EMBEDDING,
    "attn.c_attn.weight": Role.ATTENTION_QUERY,
    "attn.c_proj.weight": Role.ATTENTION_OUT,
    "mlp.c_fc.weight": Role.MLP_IN,
    "mlp.c_proj.weight": Role.MLP_OUT,
    "ln_1.weight": Role.NORM_SCALE,
    "ln_2.weight": Role.NORM_SCALE,
    "ln_f.weight": Role.NORM_SCALE,
    "ln_1.bias": Role.NORM_BIAS,
    "ln_2.bias": Role.NORM_BIAS,
    "ln_f.bias": Role.NORM_BIAS,
    "bias": Role.BIAS,
}
LLAMA_ROLES = {
    "embed_tokens.weight": Role.TOKEN_EMBEDDING,
    "q_proj.weight": Role.ATTENTION_QUERY,
    "k_proj.weight": Role.ATTENTION_KEY,
    "v_proj.weight": Role.ATTENTION_VALUE,
    "o_proj.weight": Role.ATTENTION_OUT,
    "gate_proj.weight": Role.MLP_GATE,
    "up_proj.weight": Role.MLP_IN,
    "down_proj.weight": Role.MLP_OUT,
    "norm.weight": Role.NORM_SCALE,
    "lm_head.weight": Role.LM_HEAD,
}


def hugging_face(name: str) -> tuple[nn.Module, list[Parameter]]:
    transformers = pytest.importorskip("transformers")
    if name == "gpt2":
        shape = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=48, n_layer=3, n_head=4)
        module, roles = transformers.GPT2LMHeadModel(shape), GPT2_ROLES
    else:
        shape = transformers.LlamaConfig(
            **{"vocab_size": 300, "hidden_size": 48, "intermediate_size": 80},
            **{"num_hidden_layers": 3, "num_attention_heads": 4},
        )
        module, roles = transformers.LlamaForCausalLM(shape), LLAMA_ROLES
    parameters = []
    for path, parameter in module.named_parameters():
        numbers = [int(word) for word in path.split(".") if word.isdigit()]
        role = next(role for end, role in roles.items() if path.endswith(end))
        transposed = name == "gpt2" and parameter.dim() == 2 and ".h." in path
        fan_in = parameter.shape[0] if transposed else parameter.shape[-1]
        parts = ()
        if "c_attn.weight" in path:
            q, k, v = ((start, start + 48) for start in (0, 48, 96))
            parts = (
                *(Part(Role.ATTENTION_QUERY, (q,)), Part(Role.ATTENTION_KEY, (k,))),
                Part(Role.ATTENTION_VALUE, (v,)),
            )
        layer = numbers[0] if numbers else None
        parameters.append(Parameter(path, tuple(parameter.shape), role, fan_in, layer, transposed, parts))
    return module, parameters


@pytest.mark.parametrize(
    ("name", "scheme"), [*(("gpt2", scheme) for scheme in SCHEMES), *(("llama", scheme) for scheme in FEW)]
)
def test_hugging_face_names(name: str, scheme: str) -> None:
    module, parameters = hugging_face(name)
    sizes = {"vocab_size": 300, "context": 32, "d_model": 48, "n_layers": 3, "n_heads": 4, "n_kv_heads": 4}
    sizes |= {"head_dim": 12, "d_ff": 192 if name == "gpt2" else 80, "tied": int(name == "gpt2")}
    plan = make_plan(SCHEMES[scheme], parameters, sizes)
    code = init_code(plan, name, sizes=sizes)
    execute(code, marked(module))
    thirds = {parameter.name: parameter for parameter in parameters if parameter.parts}
    for path, parameter in module.named_parameters():
        roles = SCHEMES[scheme].roles
        if path in thirds and len({roles[part.role] for part in thirds[path].parts}) > 1:
            for part in thirds[path].parts:  # each is drawn as the matrix of its own that it would be elsewhere
                (start, stop), layer = part.rows[0], thirds[path].layer
                alone = Parameter("alone", (48, stop - start), part.role, 48, layer, transposed=True)
                expected = make_plan(SCHEMES[scheme], [alone], sizes)["alone"].distribution
                assert_drawn(parameter[:, start:stop], expected, f"{path}, {part.role}")
        else:
            assert_drawn(parameter, plan[path].distribution, path)
    if name == "gpt2":
        assert module.lm_head.weight is module.transformer.wte.weight, "the tie is gone"
        assert "lm_head" not in code, "a tied tensor is written twice"


# Form


KINDS = (
    *(Normal(0.1), Uniform(1e-5), Truncated(0.02, 3.0), Orthogonal(0.5, 40)),
    *(Constant(0), Constant(1), Constant(-0.5), AsFound(1.0)),
)


def codes() -> dict[str, str]:
    long = {
        **{f"encoder.{'very_' * n}long.{{}}.weight": Normal(1 / 3) for n in range(5, 13)},
        **{f"encoder.{'very_' * n}long.{{}}.bias": Constant(0) for n in range(5, 13)},
        **{f"encoder.{'very_' * n}long.{{}}.by_layer": None for n in range(2, 13)},
    }
    entries = (
        entry(name.format(layer), distribution or Uniform(layer + 1 / 3), Role.MLP_OUT, layer)
        for name, distribution in long.items()
        for layer in (1, 2, 4)
    )
    parameters = [
        Parameter(f"h.{layer}.qkv.{number}", shape, Role.ATTENTION_OUT, 64, layer, transposed, parts)
        for layer in range(2)
        for number, (shape, transposed, parts) in enumerate(
            [
                *[((192, 64), False, parts) for parts in (THIRDS, HEADS, UNEVEN)],
                *[((64, 192), True, parts) for parts in (THIRDS, HEADS, UNEVEN)],
                *[((3, 192, 64), False, parts) for parts in (THIRDS, HEADS, UNEVEN)],
                *[((3, 64, 192), True, parts) for parts in (THIRDS, HEADS, UNEVEN)],
            ]
        )
    ]
    long_formula = replace(
        PACKED, roles={**PACKED.roles, Role.ATTENTION_OUT: Draw("normal", "min(std, 2 * std ** 2 / sqrt(fan_in))")}
    )
    cut = a_scheme(
        Draw("truncated", "std / sqrt(depth)", cut="3 * sqrt(depth) + bound / sqrt(fan_in)", corrected=True),
        {"std": "d_model ** -0.5", "bound": "0.5"},
        choices={"depth": DEPTHS},
        forward={
            "residual_multiplier": "sqrt(layer + 1) / (n_layers + layer) * d_model ** (-1 / 3)",
            "placement": "post",
        },
    )
    layers = layered(Role.MLP_OUT, 40, 40)
    cuts = {word: make_plan(cut, layers, {"n_layers": 3, "d_model": 40}, {"depth": word}) for word in DEPTHS}
    return {
        "orthogonal": init_code(make_plan(ORTHOGONAL, parameters, {"n_layers": 2}), "packed", ORTHOGONAL),
        **{f"cut_{word}": init_code(plan, "cut", cut, {"d_model": 40}) for word, plan in cuts.items()},
        **{f"cut_{word}_table": init_code(plan, "cut") for word, plan in cuts.items()},
        "long": init_code(by_hand(*entries), "x" * 100),
        "packed": init_code(make_plan(PACKED, parameters, {"n_layers": 2}), "packed", PACKED),
        "packed_long": init_code(make_plan(long_formula, parameters, {"n_layers": 2}), "packed", long_formula),
        "found": init_code(by_hand(entry("a.b", AsFound(1.0))), "found"),
        "kinds": init_code(by_hand(*(entry(f"a.b{i}", kind) for i, kind in enumerate(KINDS))), "kinds"),
        **{
            f"{target}_{scheme}": init_code(loaded(target, scheme, TARGETS[target]).plan, target)
            for target in TARGETS
            for scheme in (SCHEMES if target == "gpt2" else FEW)
        },
    }


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
def test_it_is_formatted_as_ruff_does(tmp_path: Path) -> None:
    for name, code in codes().items():
        (tmp_path / f"{name}.py").write_text(code)
    for arguments in (["format", "--diff"], ["check", "--select", "E4,E7,E9,F,I,B,N,SIM,RET,C4,UP"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "--no-cache", str(tmp_path)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr


def test_it_needs_torch_only() -> None:
    for name, code in codes().items():
        imported = {
            alias if isinstance(node, ast.Import) else str(node.module)
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in [alias.name for alias in node.names]
        }
        assert imported <= {"math", "re", "collections.abc", "functools", "torch"}, name
