"""An init plan as Python code: the function that a person would write by hand for that module."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping

from initdiag.errors import PlanError, printable
from initdiag.report.demands import calibration, demands_with_numbers
from initdiag.report.init_names import name_patterns
from initdiag.report.init_numbers import Numbers, depends_on_depth, sizes_of
from initdiag.report.init_packed import function_name, packed_function
from initdiag.report.init_rows import WIDTH, loop_for, quoted, role_names, row_for, rule_for
from initdiag.schemes import SCHEMES, InitPlan, Packed, Scheme
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS


def init_code(plan: InitPlan, name: str, scheme: Scheme | None = None, sizes: Mapping[str, float] | None = None) -> str:
    """Write `init_weights(model)`, which draws what the plan says and needs nothing but torch.

    It has one rule per pattern of names, in the order of the model, and raises ValueError before it changes anything
    if a parameter has no rule or a rule no parameter. Parameters that are planned AsFound are left as they are. What
    the scheme demands of the forward pass stands in its docstring.

    Args:
        name: of the model, for the docstring.
        scheme: of the plan, where it isn't one of SCHEMES. Its formulas are written where they give the plan's
            numbers.
        sizes: what formulas may use, as far as it is known; the shapes of the plan tell some of it.

    Raises:
        PlanError: a name has a '*' in it.
    """
    scheme = scheme or SCHEMES.get(plan.scheme)
    if odd := [entry.parameter.name for entry in plan.entries if "*" in entry.parameter.name]:
        raise PlanError(f"can't write code for the parameter '{printable(odd[0])}'; expected a name without '*'")
    sizes = {**sizes_of(plan), **(sizes or {})}
    n_layers = len({entry.parameter.layer for entry in plan.entries} - {None})
    drawn = {entry.parameter.name: entry.distribution for entry in plan.entries}
    pieces = {name: one.pieces if isinstance(one, Packed) else () for name, one in drawn.items()}
    patterns = name_patterns(plan.entries, pieces)
    # what is there once per layer, a residual projection if possible, tells at run time that the depth is another
    once = [p for p in patterns if p.each is None and "*" in p.text and len(p.entries) == n_layers]
    once.sort(key=lambda p: p.entries[0].parameter.role not in RESIDUAL_PROJECTIONS)
    # and where layers are written out in the names, the names do
    named = [
        p for p in patterns if p.entries[0].parameter.layer is not None and (p.each is not None or "*" not in p.text)
    ]
    checked = bool(once or named)
    numbers = Numbers(
        scheme, plan.settings, {size: value for size, value in sizes.items() if size != "n_layers" or checked}
    )
    functions: list[str] = []
    rows: list[str] = []
    loops: list[str] = []
    for pattern in patterns:
        entry = pattern.entries[0]
        if pattern.each is not None:
            loops += ["", *loop_for(pattern, numbers)]
        elif parts := pieces[entry.parameter.name]:
            function = function_name(parts, functions)
            functions += ["", *packed_function(function, entry.parameter, parts, numbers)]
            rows += row_for(pattern.text, function, role_names([part.role for part in parts]))
        else:
            rows += row_for(pattern.text, *rule_for(entry, numbers))
    docstring = _docstring(plan, name, scheme, sizes)
    return _assembled(plan, docstring, numbers, functions, rows, loops, once[0].text if once else "")


def _assembled(
    plan: InitPlan,
    docstring: Iterable[str],
    numbers: Numbers,
    functions: list[str],
    rows: list[str],
    loops: list[str],
    once: str,
) -> str:
    """Put settings, helpers, rules and checks together; what isn't used isn't written."""
    body = "\n".join([*functions, *rows, *loops])
    settings = list[str]()
    for setting in reversed([name for name, value in plan.settings.items() if not isinstance(value, str)]):
        if _used(setting, [body, *settings]):
            settings.insert(0, numbers.setting(setting))
    sizes = [size for size in numbers.sizes if _used(size, [body, *settings])]
    deep = "n_layers" in sizes
    kinds = [kind for kind in _HELPERS if re.search(rf"\b{kind}\(", _code(body))]
    stacked = any(len(entry.parameter.shape) > 2 for entry in plan.entries)
    helpers = [
        line for kind in kinds for line in (_ORTHOGONAL_EACH if kind == "orthogonal" and stacked else _HELPERS[kind])
    ]
    left = any(": None," in line for line in rows)
    callable_type = "Callable[[torch.Tensor], object]" + (" | None" if left else "")
    code = [
        *(f"    {size} = {numbers.sizes[size]:.12g}" for size in sizes),
        *settings,
        *helpers,
        *functions,
        *([""] if sizes or settings or helpers or functions else []),
        "    # one rule for each parameter; * stands for any number",
        *([f"    rules: dict[str, {callable_type}] = {{", *rows, "    }"] if rows else []),
        *([] if rows else [f"    rules: dict[str, {callable_type}] = {{}}"]),
        *loops,
        "",
        *_CHECKS,
        *(_DEPTH.format(once=quoted(once)).splitlines() if deep and once else []),
        *(
            _COUNT.format(count=len(plan.entries)).splitlines()
            if depends_on_depth(plan, numbers.scheme) and not deep
            else []
        ),
        "    for name, parameter in model.named_parameters():",
        *(_DRAW_OR_LEAVE if left else _DRAW),
    ]
    imports = [
        *(["import math"] if "math." in _code("\n".join(code)) else []),
        "import re",
        "from collections.abc import Callable",
        *(["from functools import partial"] if "partial(" in "\n".join(helpers) else []),
        *("", "import torch", "from torch import nn", "", ""),
        *("@torch.no_grad()", "def init_weights(model: nn.Module) -> None:"),
        *docstring,
    ]
    return "\n".join([*imports, *code]) + "\n"


def _code(text: str) -> str:
    """Return code without its comments and names of parameters."""
    return re.sub(r'f?"[^"\n]*"|#.*', "", text)


def _used(name: str, lines: Iterable[str]) -> bool:
    """Whether code uses a variable; `std=` is an argument of torch's."""
    return re.search(rf"\b{name}\b(?!=)", _code("\n".join(lines))) is not None


def _docstring(plan: InitPlan, name: str, scheme: Scheme | None, sizes: Mapping[str, float]) -> Iterator[str]:
    wrap = textwrap.TextWrapper(WIDTH - 8, break_on_hyphens=False)
    settings = ", ".join(
        f"{setting}={value}" if isinstance(value, str) else f"{setting}={value:.4g}"
        for setting, value in plan.settings.items()
    )
    first = f"Draw the weights of {printable(name)} by the scheme {plan.scheme}" + (
        f": {settings}." if settings else "."
    )
    head, *rest = wrap.wrap(_harmless(first))
    yield f'    """{head}'
    yield from (f"    {line}" for line in rest)
    yield ""
    yield "    Written by initdiag: a parameter without a rule, or the reverse, is a ValueError."
    if scheme and (wanted := demands_with_numbers(scheme, sizes, plan.settings)):
        yield ""
        yield "    The scheme is more than its draws. The forward pass, which this can't change, needs:"
        yield ""
        for line in wanted:
            item = textwrap.wrap(_harmless(line), WIDTH - 6, break_on_hyphens=False, break_long_words=False)
            yield from (f"    {'  ' if i else '- '}{part}" for i, part in enumerate(item))
    if scheme and (after := calibration(scheme)):
        yield ""
        yield from (f"    {line}" for line in wrap.wrap(f"Not done here: {_harmless(after)}."))
    yield '    """'


def _harmless(text: str) -> str:
    """Take out what would end a docstring, and signs that an ASCII terminal can't show."""
    return re.sub(r'[\\"]', "'", text.replace("·", "*"))


_HELPERS = {
    kind: ("", f"    def {kind}({values}) -> partial[torch.Tensor]:", f"        return partial({call})")
    for kind, values, call in (
        ("normal", "std: float", "nn.init.normal_, std=std"),
        ("uniform", "bound: float", "nn.init.uniform_, a=-bound, b=bound"),
        ("truncated", "std: float, cut: float", "nn.init.trunc_normal_, std=std, a=-cut * std, b=cut * std"),
        ("orthogonal", "gain: float", "nn.init.orthogonal_, gain=gain"),
        ("constant", "value: float", "nn.init.constant_, val=value"),
    )
}
# orthogonal_ takes (experts, outputs, inputs) for one matrix of experts rows
_ORTHOGONAL_EACH = """
    def orthogonal(gain: float) -> Callable[[torch.Tensor], None]:
        def draw(weight: torch.Tensor) -> None:
            for matrix in weight.view(-1, *weight.shape[-2:]):
                nn.init.orthogonal_(matrix, gain=gain)

        return draw
""".rstrip("\n").splitlines()

_CHECKS = r"""
    regex = {rule: re.escape(rule).replace(r"\*", r"\d+") for rule in rules}
    rule_of = {}
    for name, _ in model.named_parameters():
        fits = [rule for rule in rules if re.fullmatch(regex[rule], name)]
        if len(fits) != 1:
            raise ValueError(f"parameter {name} has {len(fits)} rules, expected one")
        rule_of[name] = fits[0]
    if unused := rules.keys() - set(rule_of.values()):
        raise ValueError(f"no parameter is named {', '.join(sorted(unused))}")
""".strip("\n").splitlines()

_DEPTH = """
    layers = list(rule_of.values()).count({once})
    if layers != n_layers:
        raise ValueError(f"found {{layers}} layers, expected n_layers = {{n_layers}}")
""".strip("\n")

_COUNT = """
    if len(rule_of) != {count}:
        raise ValueError(f"found {{len(rule_of)}} parameters, expected {count}: same depth?")
""".strip("\n")

_DRAW = ["        rules[rule_of[name]](parameter)"]
_DRAW_OR_LEAVE = [
    "        draw = rules[rule_of[name]]",
    "        if draw is not None:",
    "            draw(parameter)",
]
