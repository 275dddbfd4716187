"""MOE001 on routers that tell tokens apart, and on those that don't."""

from __future__ import annotations

from dataclasses import replace

import pytest

from initdiag.measure import Branch, ParameterMeasure, PositionLogits, ResidualMeasure, RouterMeasure
from initdiag.rules import routing
from tests.rules.test_signal_rules import MEASURED, loud, spoken

TOKENS = 512
SEEN = replace(MEASURED, positions=(PositionLogits(0.3, 0.0, False),) * TOKENS)


def router(experts: int, chosen: int, load: float, name: str = "blocks.0.moe.gate") -> RouterMeasure:
    return RouterMeasure(name, experts, TOKENS * chosen, load / chosen, 0.0)


def weight(std: float, name: str = "blocks.0.moe.gate.weight", **more) -> ParameterMeasure:
    return ParameterMeasure(name, 0.0, std, 0, (8, 64), max_abs=3 * std, **more)


@pytest.mark.parametrize("experts", [2, 4, 8, 64])
def test_zero_routers_are_one_error_and_say_how_many(experts: int) -> None:
    names = [f"blocks.{layer}.moe.gate" for layer in range(3)]
    measured = replace(
        SEEN,
        routers=tuple(router(experts, 1, 1.0, name) for name in names),
        parameters=tuple(weight(0.0, f"{name}.weight") for name in names),
    )
    (found,) = spoken(routing.COLLAPSE, measured)
    assert found.severity == "error" and found.subject == names[0]
    assert "and 2 more: 100% of the tokens" in found.message and "blocks.0.moe.gate.weight" in found.help


@pytest.mark.parametrize(
    ("seen", "std", "severities"),
    [
        (router(8, 2, 0.39), 0.02, []),  # fresh Mixtral, first layer
        (router(60, 4, 0.85), 0.02, []),
        (router(4, 2, 1.0), 0.02, ["info"]),  # fresh Mixtral, layer 15 of 24
        (router(8, 2, 1.0), 0.0, ["error"]),
        (router(8, 2, 0.3), 0.0, []),  # zero, and ties are broken by noise
        (router(2, 2, 1.0), 0.0, []),  # every token goes to every expert
        (RouterMeasure("blocks.0.moe.gate", 8, 16, 1.0, 0.0), 0.0, []),  # too few to judge
    ],
)
def test_loads(seen: RouterMeasure, std: float, severities: list[str]) -> None:
    assert loud(spoken(routing.COLLAPSE, replace(SEEN, routers=(seen,), parameters=(weight(std),)))) == severities


def test_the_weight_may_be_the_name_and_others_are_not_meant() -> None:
    seen = (router(8, 2, 1.0, "blocks.0.moe.gate.weight"),)
    assert loud(spoken(routing.COLLAPSE, replace(SEEN, routers=seen, parameters=(weight(0.0),)))) == ["error"]
    other = weight(0.0, "blocks.0.moe.gate.weight_scale")
    assert loud(spoken(routing.COLLAPSE, replace(SEEN, routers=seen, parameters=(other,)))) == ["info"]


def test_tables_of_routes_are_judged_where_there_are_experts() -> None:
    table = ParameterMeasure("blocks.0.moe.table", 0.0, 0.0, 0, (1000,), "int64", max_abs=0.0, buffer=True)
    seen = replace(SEEN, routers=(router(1, 1, 1.0, table.name),), buffers=(table,))
    assert spoken(routing.COLLAPSE, seen) == ()  # token types, say
    branch = Branch(1, "moe", 0, "moe", None, 1.0, 1.0)
    (found,) = spoken(routing.COLLAPSE, replace(seen, residual=ResidualMeasure(1.0, (branch,), 1.0)))
    assert found.severity == "error" and "torch.arange(vocab_size)" in found.help
    full = replace(seen, buffers=(replace(table, std=2.3),), routers=(router(8, 1, 0.2, table.name),))
    assert spoken(routing.COLLAPSE, replace(full, residual=ResidualMeasure(1.0, (branch,), 1.0))) == ()
