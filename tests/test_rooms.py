"""The floors of the house: a room imports only from the rooms below it (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "initdiag"
FLOORS = (
    *("errors", "versions", "memory", "inference", "dispatch"),
    *("schemes", "model", "config", "tokens", "weightless", "subjects"),
    *("engines", "trace", "measure", "theory", "rules", "report"),
    *("request", "translated", "case", "advice", "predict", "vary", "check", "compare", "plan", "cli"),
)


def rooms_imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            words = node.module.split(".")
            if words == ["initdiag"]:
                names |= {alias.name for alias in node.names if (PACKAGE / alias.name).exists()}
            elif words[0] == "initdiag":
                names.add(words[1])
    return names


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_only_from_below(room: str) -> None:
    files = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    for path in files:
        above = {other for other in rooms_imported(path) if FLOORS.index(other) > FLOORS.index(room)}
        assert not above, f"{path.relative_to(PACKAGE)} imports from above: {above}"


def test_every_room_is_on_a_floor() -> None:
    found = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_") and path.suffix in ("", ".py")}
    assert found == set(FLOORS)


def test_only_cli_prints_and_exits() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli":
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert not [call for call in calls if isinstance(call, ast.Name) and call.id in ("print", "exit")], path
