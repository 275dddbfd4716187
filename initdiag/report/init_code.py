"""An init plan as Python code: the function that a person would write by hand for that module."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from initdiag.errors import PlanError, printable
from initdiag.report.init_names import name_patterns
from initdiag.report.init_packed import function_name, packed_function, pieces_of
from initdiag.report.init_rows import WIDTH, Numbers, loop_for, quoted, role_names, row_for, rule_for
from initdiag.schemes import SCHEMES, InitPlan, Scheme
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS


def init_code(plan: InitPlan, name: str, scheme: Scheme | None = None) -> str:
    """Write `init_weights(model)`, which draws what the plan says and needs nothing but torch.

    It has one rule per pattern of names, in the order of the model, and raises ValueError before it changes anything
    if a parameter has no rule or a rule no parameter. Parameters that are planned AsFound are left as they are.

    Args:
        name: of the model, for the docstring.
        scheme: of the plan, where it isn't one of SCHEMES. Its formulas are written where they give the plan's
            numbers, and it answers for the rows of packed matrices.

    Raises:
        PlanError: a name has a '*' in it, or the scheme can't answer for the rows of a packed matrix.
    """
    scheme = scheme or SCHEMES.get(plan.scheme)
    if odd := [entry.parameter.name for entry in plan.entries if "*" in entry.parameter.name]:
        raise PlanError(f"can't write code for the parameter '{printable(odd[0])}'; expected a name without '*'")
    n_layers = len({entry.parameter.layer for entry in plan.entries} - {None})
    pieces = {entry.parameter.name: pieces_of(entry, plan, scheme, n_layers) for entry in plan.entries}
    patterns = name_patterns(plan.entries, pieces)
    # what is there once per layer, a residual projection if possible, tells at run time that the depth is another
    once = [p for p in patterns if p.each is None and "*" in p.text and len(p.entries) == n_layers]
    once.sort(key=lambda p: p.entries[0].parameter.role not in RESIDUAL_PROJECTIONS)
    # and where layers are written out in the names, the names do
    named = [
        p for p in patterns if p.entries[0].parameter.layer is not None and (p.each is not None or "*" not in p.text)
    ]
    numbers = Numbers(scheme, plan.settings, {"n_layers": float(n_layers)} if once or named else {})
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
    return _assembled(plan, name, numbers, functions, rows, loops, once[0].text if once else "")


def _assembled(
    plan: InitPlan,
    name: str,
    numbers: Numbers,
    functions: list[str],
    rows: list[str],
    loops: list[str],
    once: str,
) -> str:
    """Put settings, helpers, rules and checks together; what isn't used isn't written."""
    body = "\n".join([*functions, *rows, *loops])
    scheme, settings = numbers.scheme, list[str]()
    by_depth = False  # a number depends on the depth
    for setting in reversed(list(plan.settings)):
        if re.search(rf"\b{setting}\b", _code("\n".join([body.replace("std=", ""), *settings]))):
            settings.insert(0, numbers.setting(setting))
            by_depth = by_depth or (scheme is not None and "n_layers" in scheme.parameters.get(setting, ""))
    deep = "n_layers" in _code("\n".join([body, *settings]))
    helpers = [line for kind, lines in _HELPERS.items() if re.search(rf"\b{kind}\(", _code(body)) for line in lines]
    left = any(": None," in line for line in rows)
    callable_type = "Callable[[torch.Tensor], object]" + (" | None" if left else "")
    code = [
        *([f"    n_layers = {numbers.sizes['n_layers']:.0f}"] if deep else []),
        *settings,
        *helpers,
        *functions,
        *([""] if settings or helpers or functions else []),
        "    # one rule for each parameter; * stands for any number",
        f"    rules: dict[str, {callable_type}] = {{",
        *rows,
        "    }",
        *loops,
        "",
        *_CHECKS,
        *(_DEPTH.format(once=quoted(once)).splitlines() if deep and once else []),
        *(_COUNT.format(count=len(plan.entries)).splitlines() if by_depth and not deep else []),
        "    for name, parameter in model.named_parameters():",
        *(_DRAW_OR_LEAVE if left else _DRAW),
    ]
    imports = [
        *(["import math"] if "math." in _code("\n".join(code)) else []),
        "import re",
        "from collections.abc import Callable",
        *(["from functools import partial"] if helpers else []),
        *("", "import torch", "from torch import nn", "", ""),
        *("@torch.no_grad()", "def init_weights(model: nn.Module) -> None:"),
        *_docstring(plan, name),
    ]
    return "\n".join([*imports, *code]) + "\n"


def _code(text: str) -> str:
    """Return code without its comments and names of parameters."""
    return re.sub(r'f?"[^"\n]*"|#.*', "", text)


def _docstring(plan: InitPlan, name: str) -> Iterator[str]:
    shown = re.sub(r'[\\"]', "'", printable(name))
    settings = ", ".join(f"{setting}={value:.4g}" for setting, value in plan.settings.items())
    first = f"Draw the weights of {shown} by the scheme {plan.scheme}" + (f": {settings}." if settings else ".")
    wrap = textwrap.TextWrapper(WIDTH - 8, break_on_hyphens=False)
    head, *rest = wrap.wrap(first)
    yield f'    """{head}'
    yield from (f"    {line}" for line in rest)
    yield ""
    yield "    Written by initdiag: a parameter without a rule, or the reverse, is a ValueError."
    yield '    """'


_HELPERS = {
    kind: ("", f"    def {kind}({values}) -> partial[torch.Tensor]:", f"        return partial({call})")
    for kind, values, call in (
        ("normal", "std: float", "nn.init.normal_, std=std"),
        ("uniform", "bound: float", "nn.init.uniform_, a=-bound, b=bound"),
        ("truncated", "std: float, cut: float", "nn.init.trunc_normal_, std=std, a=-cut * std, b=cut * std"),
        ("constant", "value: float", "nn.init.constant_, val=value"),
    )
}

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
