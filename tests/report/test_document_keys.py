from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from initdiag.report import Report
from initdiag.report.document import document
from initdiag.report.document_keys import KEYS

BY_NAME = {"scheme_parameters", "versions", "norms", "rescaled"}  # their keys are names of the user's
AS_READS = {"wiring.head_read"}
SAID_THERE = {"parts"}


def keys(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path of the object, key) for every key of a document that isn't an object itself."""
    if isinstance(value, dict):
        for key, part in value.items():
            below = f"{path}.{key}".strip(".")
            if key in BY_NAME | SAID_THERE or below in AS_READS or not _objects(part):
                yield path, key
            else:
                yield from keys(part, below)
    elif isinstance(value, list):
        letter = "j" if "[i]" in path else "i"
        for part in value:
            yield from keys(part, f"{path}[{letter}]")


def _objects(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


def test_every_key_is_explained_and_every_explained_key_is_there(module: Report, checked: Report) -> None:
    """The module's report has all that can be measured, the config's has advice; an empty list has no keys below it."""
    empty = {("residual.branches[i]", "reads"), ("", "advice")}
    found = {*keys(document(module)), *(at for at in keys(document(checked)) if at[0].startswith("advice"))} - empty
    assert found == {(path, key) for path, meanings in KEYS.items() for key in meanings}
